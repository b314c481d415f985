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
#: C functions that catch no panic: why none leaves them, which would end the process.
UNCAUGHT = {
    "count_loads": "copies a number",
    "none": "returns a number, in a test",
    "dealloc": "drops a view, whose owner's end does not unwind (`Kind::end`)",
    "destroy": "calls C functions, and a deleter, which does not unwind",
    "delete_legacy": "releases an owner, whose end does not unwind (`Kind::end`)",
    "delete_versioned": "releases an owner, whose end does not unwind (`Kind::end`)",
    "delete_legacy_in_capsule": "releases an owner, whose end does not unwind (`Kind::end`)",
    "delete_versioned_in_capsule": "releases an owner, whose end does not unwind (`Kind::end`)",
    "on_pending_call": "releases owners, whose end does not unwind (`Kind::end`)",
    "ended": "sends to a channel, which returns its error",
    "run": "copies memory by a plan that was made before",
    "by_exception": "calls C functions alone",
    "stay": "asks the unwinder and sleeps",
    "look": "compares addresses",
    "class_ended": "stores an atomic",
    "close_all": "closes files",
    "shut": "exchanges an atomic, and yields",
    "admit": "stores an atomic",
    "count": "stores an atomic",
    "forget": "stores an atomic",
    "reset_in_child": "stores atomics",
    "take": "stores an atomic",
    "leave": "stores an atomic",
    "no_thread_state": "returns NULL",
}
#: A C function and its body: to the brace that stands below its beginning.
C_FUNCTION = re.compile(r'^([ \t]*)(?:unsafe )?extern "C" fn (\w+)[^{;]*\{(.*?)^\1\}', re.MULTILINE | re.DOTALL)
#: `run` of the exchange table catches, and calls its argument.
CATCHES = re.compile(r"\bcatch_unwind\(|\brun\(py, ")
#: Statics that are filled by one thread while others wait: why no forked child does.
WAITED_FOR = {
    Path("view/detach.rs"): "filled by a constant, as the module is imported",
    Path("view/worker.rs"): "filled by a constant, as the module is imported",
    Path("view/keep/poll.rs"): "asked for with a driver, which a forked child does not get",
    Path("process/inherited.rs"): "asked for with a driver, which a forked child does not get",
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


@pytest.mark.parametrize("path", sources(PYTHON), ids=lambda path: str(path.relative_to(PYTHON)))
def test_no_call_asks_pyo3_for_the_gil_that_it_has(path: Path) -> None:
    """`Python::attach` panics while the interpreter ends, when finalisers run: `gil::with` and `counted` do not.

    At import, when there is an interpreter, it is called so that it has been. Both it and `try_attach` believe PyO3's
    count, which tells nothing of the GIL: where it is not known to be held, `gil.rs` looks first.
    """
    code = re.sub(r"//[^\n]*", "", path.read_text())
    allowed = 1 if path.relative_to(PYTHON) == Path("module.rs") else 0
    assert code.count("Python::attach(") == allowed
    trying = {"cpython/gil.rs": 3, "cpython/counted.rs": 1, "class/consume.rs": 1}
    assert code.count("Python::try_attach(") == trying.get(str(path.relative_to(PYTHON)), 0)


def test_c_functions_catch_panics() -> None:
    """A panic that leaves a C function ends the process. None is known that any input causes."""
    seen = set()
    for path in [path for path in sources(SOURCE) if not path.name.endswith("tests.rs")]:
        for _, name, body in C_FUNCTION.findall(path.read_text()):
            is_caught = CATCHES.search(body) is not None
            assert is_caught != (name in UNCAUGHT), f"{path}: {name}: catches is {is_caught}"
            seen.add(name)
    assert set(UNCAUGHT) < seen


#: Files that start a thread which stays in GLOBAL mode, and why no capture is broken there.
IN_GLOBAL_MODE = {"driver/pending.rs": "no owner ends there: it waits for a context that was asked for captures"}


def test_threads_are_in_relaxed_mode() -> None:
    """An owner's end may call anything, and in GLOBAL mode what it calls breaks captures of other threads."""
    starts = {str(path.relative_to(SOURCE)): path.read_text() for path in sources(SOURCE) if path.name != "tests.rs"}
    starts = {name: text for name, text in starts.items() if "thread::Builder::new()" in text}
    in_global_mode = {name for name, text in starts.items() if ".relax(driver)" not in text}
    assert len(starts) > len(in_global_mode)
    assert in_global_mode == set(IN_GLOBAL_MODE)


@pytest.mark.parametrize("path", sources(SOURCE), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_proof_is_not_pasted(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert not re.search(r"SAFETY: [Aa]s (above|before)", line), f"{path}:{number}: {line.strip()}"


@pytest.mark.parametrize("path", sources(SOURCE), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_forked_child_waits_for_no_static(path: Path) -> None:
    """The thread that was filling it is the parent's: a `OnceBox` or an atomic is filled by whoever asks."""
    cells = re.findall(r"\bstatic (\w+): *[\w:]*\b(?:Py|GIL)?(?:OnceLock|OnceCell|LazyLock|Once)\b", path.read_text())
    assert bool(cells) == (path.relative_to(SOURCE) in WAITED_FOR), cells
