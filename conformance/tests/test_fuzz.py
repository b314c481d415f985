"""The checks of `conformance/fuzz`: each fails if what it forbids is done, and none if it is not."""

from __future__ import annotations

import pytest

from conformance.tests.interpreter.process import ROOT, on_the_simulator

BEFORE = """
import cai_dlpack as cd
from cai_conformance import abi
from cai_conformance.cuda import driver
from conformance.fuzz import calls, foreign, target
from conformance.fuzz.evil import Bytes, Case, MOST_ASKED

kept = []

def run(call, array=lambda case: cd.view(case_interface(), device_id=0, owner=kept)):
    calls.OF_AN_ARRAY, calls.OF_A_VIEW, calls.ARRAYS = [call], [lambda case, view: None], [array]
    target.PATIENCE = 0.1
    target.run(bytes([0x80]))

def case_interface():
    return calls.interface()

def export(case, array):
    out = [0]
    case.exported = 15
    foreign._export(id(array), out)
    return out[0]
"""
#: What a call does, and what is said of it.
BREACHES = {
    "references": ("run(lambda case, array: kept.append(cd.DType))", "references to <class 'cai_dlpack.DType'>"),
    "memory": ("run(lambda case, array: driver().allocate(4))", "Live(allocations=2"),
    "views": ("run(lambda case, array: kept.append(cd.view(array)))", "the array is kept alive"),
    "questions": (
        "run(lambda case, array: [case.is_too_much() for _ in range(MOST_ASKED + 1)])",
        "10001 questions",
    ),
    "a table's tensor": ("run(export, foreign.Exchanger)", "the tensor of a table is kept"),
    "another's table": ("run(export)", "the table of a class was called with an object of another"),
    "a tensor of another layout": (
        "run(lambda case, array: cd.view(case_interface(), device_id=0, owner=kept), foreign.under_the_other_name)",
        "a tensor was read by the layout of another",
    ),
    "a pending exception": (
        "target._occurred = lambda: 1; run(lambda case, array: None)",
        "a call has left an exception",
    ),
    "a refusal without a rule": (
        "target.RULES.clear(); run(lambda case, array: cd.view(5))",
        "no rule: TypeRefusal",
    ),
    "SystemError": ("run(lambda case, array: exec('raise SystemError'))", "SystemError"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found(breach: str) -> None:
    code, message = BREACHES[breach]
    ended = on_the_simulator(BEFORE + code)
    # In the development mode a warning of what was left open comes last.
    told = [line for line in ended.stderr.splitlines() if "ResourceWarning" not in line]
    assert ended.returncode == 1 and message in told[-1], ended.stderr


def test_a_read_behind_the_guarded_memory_ends_the_process() -> None:
    code = "import ctypes; ctypes.string_at(foreign.GUARDED.put(b'12345678'), LENGTH)"
    assert on_the_simulator(BEFORE + code.replace("LENGTH", "8")).returncode == 0
    assert on_the_simulator(BEFORE + code.replace("LENGTH", "9")).returncode < 0


WORKER = """
import os, pathlib, tempfile
import cai_dlpack as cd
from conformance.fuzz import run, target
at_hand = pathlib.Path(tempfile.mkdtemp()) / "input"
at_hand.write_bytes(bytes(2 + run.LONGEST))
"""
#: What an input does while the interpreter ends, and the exit code that comes of it.
ENDS = {"None": 0, "cd.view(5)": 0, "exec('raise SystemError')": 1, "exec('raise BaseException')": 1, "os.abort()": -6}


@pytest.mark.parametrize("call", ENDS)
def test_what_happens_at_the_end_of_the_interpreter_is_seen(call: str) -> None:
    code = f"""
target.run_at_the_end = lambda data: {call}
run.end([b"1", b"2", b"3"], at_hand)
"""
    ended = on_the_simulator(WORKER + code)
    assert ended.returncode == ENDS[call], ended.stderr


def test_an_input_that_never_ends_is_ended() -> None:
    code = """
run.PATIENCE, target.run = 1, lambda data: [None for _ in iter(int, 1)]
run.work([b"1"], 1, 1, at_hand, False)
"""
    ended = on_the_simulator(WORKER + code)
    assert ended.returncode == 1 and "Timeout" in ended.stderr, ended.stderr


def test_the_kept_inputs_are_right() -> None:
    """One in twenty of them, in both grammars, while the interpreter runs and while it ends."""
    lines = (ROOT / "conformance" / "fuzz" / "corpus.txt").read_text().splitlines()[::20]
    code = f"""
inputs = [bytes.fromhex(line) for line in {lines!r}]
run.work(inputs, 0, 1, at_hand, False)
run.end(inputs, at_hand)
"""
    ended = on_the_simulator(WORKER + code)
    assert ended.returncode == 0, ended.stderr
