"""Tests the rules of the Rust source that the compiler does not hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT

SOURCE = ROOT / "src"
PYTHON = SOURCE / "python"

#: C functions in src/python that CPython does not call, or that call no Python: why each needs no guard against the
#: thread's exit of its own.
UNGUARDED = {
    "from_object": "by `run`, which begins with it",
    "borrow": "by `run`, which begins with it",
    "to_object": "by `run`, which begins with it",
    "destroy": "calls a deleter, which begins with it if it calls Python (`keeping_exception`)",
    "forget": "stores an atomic in a forked child",
    "stay": "is the guard",
    "look": "is the guard",
    "on_pending_call": "drains the queue, whose releases begin with it (`keeping_exception`)",
    "reset_in_child": "stores atomics in a forked child",
    "class_ended": "stores an atomic",
    "by_exception": "is called by our own code only, inside a guarded call",
    "no_thread_state": "returns NULL",
}
#: `#[pyfunction]`s and `#[pymethods]` outside the declarations: why.
BY_PYO3 = {
    Path("cpython/thread_exit.rs"): "the macro `entries!`, which puts the guard into every method",
    Path("cpython/reaper.rs"): "the function that atexit calls on the main thread, which is not killed",
}


def sources(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.rs"))
    assert found
    return found


@pytest.mark.parametrize("path", sources(PYTHON), ids=lambda path: str(path.relative_to(PYTHON)))
def test_python_enters_by_declarations(path: Path) -> None:
    """`signature!` and `entries!` put the guard against the thread's exit first, so that nobody has to remember it."""
    attributes = re.findall(r"^\s*#\[(?:pyo3::)?(pyfunction|pymethods)\b", path.read_text(), re.MULTILINE)
    if path.relative_to(PYTHON) not in BY_PYO3:
        assert not attributes, f"declare it by signature! or entries!: {attributes}"


@pytest.mark.parametrize("path", sources(PYTHON), ids=lambda path: str(path.relative_to(PYTHON)))
def test_c_functions_are_guarded(path: Path) -> None:
    text = path.read_text()
    for found in re.finditer(r'extern "C" fn (\w+)[^{;]*\{(.*?)^\s*\}', text, re.MULTILINE | re.DOTALL):
        name, body = found.groups()
        is_guarded = "thread_exit::guard();" in body
        assert is_guarded != (name in UNGUARDED), f"{name}: guarded is {is_guarded}, listed {name in UNGUARDED}"


@pytest.mark.parametrize("path", sources(SOURCE), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_proof_is_not_pasted(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert not re.search(r"SAFETY: [Aa]s (above|before)", line), f"{path}:{number}: {line.strip()}"
