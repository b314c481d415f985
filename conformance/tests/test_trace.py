"""Tests the trace: a line for each conversion, that tells the truth, costs nothing off, and changes no result."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange
from cuda.core.utils import StridedMemoryView

from conformance.tests import hostile
from conformance.tests.doubles.producers import FAKE_POINTER, Cai, cai, interface
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT, on_the_simulator
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_access import from_the_table

LOGGER = logging.getLogger("cai_dlpack")
LOOSE: Any = cd
BORROW = exchange.Borrow(exchange.table_of(cd.CaiView).borrow)


class Lines(logging.Handler):
    """Keeps the messages; `does` is done for each."""

    def __init__(self, does: Callable[[str], object] = len) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.does = does

    def handle(self, record: logging.LogRecord) -> bool:  # errors pass, as `emit` may not let them
        self.lines.append(record.getMessage())
        self.does(self.lines[-1])
        return True


@contextmanager
def logged(does: Callable[[str], object] = len, traced: bool = True) -> Iterator[list[str]]:
    """The lines of the body, which is traced."""
    handler = Lines(does)
    level, propagates = LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False
    try:
        with cd.policy(trace=traced):
            yield handler.lines
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagates


def read(line: str) -> dict[str, str]:
    """A line as a dict: the function, and its facts by name."""
    function, _, rest = line.partition(":")
    facts = re.findall(r"(\w+)=(.*?)(?= \w+=|$)", rest)
    return {"function": function, **dict(facts)}


def calls_of(line: str) -> list[str]:
    """The driver's calls of a line."""
    calls = read(line)["calls"]
    return [] if calls == "none" else calls.split(",")


def array(machine: Machine, **changes: Any) -> Cai:
    return cai(**{"data": (machine.device_memory(64), False), **changes})


SHAPE = {"shape": "(2, 3)", "dtype": "float32"}


def consumed(view: cd.CaiView, stream: int) -> None:
    with view.consume(stream):
        pass


def conversions(machine: Machine) -> dict[str, tuple[Callable[[], object], dict[str, str]]]:
    """Label -> a conversion, and what its line must tell."""
    given, host = array(machine), np.zeros((2, 3), "f4")
    producer = machine.stream()
    pending, view = array(machine, stream=producer), cd.view(given)
    late, consumer = cd.view(pending), machine.stream()
    handle = f"{consumer:#x}"
    capsule, table = cd.to_dlpack(host), exchange.Producer()
    by_table = exchange.make_type(exchange.capsule(exchange.table(table)), table)()
    on_device = {**SHAPE, "device": "(2, 0)"}
    on_host = {**SHAPE, "device": "(1, 0)", "stream": "None"}
    of_view = {"producer": "cai_dlpack.CaiView", "route": "view"}
    name = f"{Cai.__module__}.Cai"
    return {
        "cai": (lambda: cd.view(given), {"function": "view", "producer": name, "route": "cai", **on_device}),
        "pending": (lambda: cd.view(pending), {"stream": f"{producer:#x}"}),
        "named": (lambda: cd.from_cai(given, producer_stream=1), {"function": "from_cai", "stream": "1 (legacy)"}),
        "dlpack": (lambda: cd.view(host), {"producer": "numpy.ndarray", "route": "dlpack", **on_host}),
        "from": (lambda: cd.from_dlpack(host), {"function": "from_dlpack", "route": "dlpack", **on_host}),
        "interface": (lambda: cd.view(host.astype(">f4")), {"route": "array_interface", "dtype": ">f4"}),
        "exchange": (lambda: cd.view(by_table), {"function": "view", "route": "exchange", **on_host}),
        "capsule": (lambda: cd.from_dlpack(capsule), {"producer": "PyCapsule", "route": "capsule", **on_host}),
        "again": (lambda: cd.view(view), {**of_view, **on_device}),
        "fast capsule": (
            lambda: cd.to_dlpack(given, stream=-1, device_id=0),
            {"function": "to_dlpack", "route": "cai", "requested": "-1", **on_device, "made": "PyCapsule"},
        ),
        "slow capsule": (lambda: cd.to_dlpack(host), {"route": "dlpack", **SHAPE, "made": "PyCapsule"}),
        "export": (lambda: view.__dlpack__(stream=2), {"function": "__dlpack__", "requested": "2", **on_device}),
        "dict": (view.to_cai, {"function": "to_cai", **of_view, **on_device, "made": "dict"}),
        "attribute": (
            lambda: view.__cuda_array_interface__,
            {"function": "__cuda_array_interface__", **of_view, **on_device},
        ),
        "on": (lambda: cd.view(pending).on(2), {"function": "on", "stream": "2 (per-thread)", "requested": "2"}),
        "handle": (lambda: late.on(consumer), {"function": "on", "stream": handle, "requested": handle}),
        "synchronize": (late.synchronize, {"function": "synchronize", "stream": "None"}),
        "wait": (lambda: asyncio.run(late.wait()), {"function": "wait", **of_view, "stream": f"{producer:#x}"}),
        "block": (lambda: consumed(late, consumer), {"function": "__exit__", **of_view, "requested": handle}),
        "join": (
            lambda: cd.join([late, pending, producer], on=consumer),
            {"function": "join", "requested": handle, "made": "list"},
        ),
        "to": (lambda: cd.to(host, np), {"function": "to", "route": "dlpack", **on_host, "made": "numpy.ndarray"}),
        "table": (
            lambda: cd.to(given, StridedMemoryView),
            {"function": "to", "route": "cai", **on_device, "made": "cuda.core._memoryview.StridedMemoryView"},
        ),
        "masked": (lambda: cd.split_masked(given), {"function": "split_masked", "route": "cai", **on_device}),
    }


LABELS = [
    *("cai", "pending", "named", "dlpack", "from", "interface", "exchange", "capsule", "again", "fast capsule"),
    *("slow capsule", "export", "dict", "attribute", "on", "handle", "synchronize", "wait", "block", "join", "to"),
    *("table", "masked"),
]


def once(calls: str) -> str:
    """With the queries for an event that follow one another as one: how many they are is a matter of time."""
    mode = "cuThreadExchangeStreamCaptureMode"
    return re.sub(rf"(,{mode},cuCtxPushCurrent,cuEventQuery,cuCtxPopCurrent,{mode})+", r"\1", calls)


@pytest.mark.parametrize("label", LABELS)
def test_a_line_tells_what_was_done(label: str, machine: Machine) -> None:
    cases = conversions(machine)
    assert [*cases] == LABELS
    call, expected = cases[label]
    machine.clear()
    with logged() as lines:
        call()
    found = read(lines[-1])
    assert expected.items() <= found.items(), lines
    names, told = (
        once(",".join(each)) for each in (machine.names(), (calls for line in lines for calls in calls_of(line)))
    )
    assert names == told
    assert re.fullmatch(r"\d+\.\dus", found["time"])
    # The line before is of the consumer's call of `__dlpack__`, of the view, or of the block's begin.
    assert len(lines) == (2 if label in {"to", "on", "block"} else 1), lines


def test_a_block_has_a_line_at_each_end(machine: Machine) -> None:
    producer, consumer = machine.stream(), machine.stream()
    view = cd.view(array(machine, stream=producer))

    async def awaited() -> None:
        async with view.consume(consumer):
            pass

    machine.clear()
    with logged() as lines:
        consumed(view, consumer)
        asyncio.run(awaited())
        refused = raised(lambda: consumed(view, 7))  # no stream
    found = [read(line) for line in lines]
    assert [line["function"] for line in found[:4]] == ["__enter__", "__exit__", "__aenter__", "__aexit__"]
    assert {line["requested"] for line in found[:4]} == {f"{consumer:#x}"}
    assert found[0]["stream"] == f"{consumer:#x}" and found[1]["stream"] == f"{producer:#x}"
    assert all("made" not in line for line in found)
    assert found[4]["function"] == "__enter__" and found[4]["raised"].endswith(type(refused).__name__)
    assert ",".join(machine.names()) == ",".join(calls for line in lines for calls in calls_of(line))


REFUSED: dict[str, tuple[Callable[[Any], object], object]] = {
    "nothing": (LOOSE.view, 3),
    "typestr": (LOOSE.view, cai(typestr="zz")),
    "shape": (LOOSE.to_dlpack, cai(shape=[-1])),
    "unknown": (LOOSE.view, cai(data=(1, False))),
    "class": (LOOSE.from_dlpack, np.ndarray),
    "argument": (lambda obj: LOOSE.view(obj, shape="x"), cai()),
    "keyword": (lambda obj: LOOSE.view(obj, nothing=1), cai()),
    "count": (lambda obj: LOOSE.view(), None),
    "library": (lambda obj: LOOSE.to(obj, "nothing"), cai()),
    "capsule": (lambda obj: obj.__dlpack__(max_version=0), cd.view(np.zeros(3))),
    "masked": (LOOSE.view, np.ma.masked_array([1, 2], [True, False])),
}


def raised(call: Callable[[], object]) -> Any:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("accepted")


@pytest.mark.parametrize("label", REFUSED)
def test_a_line_tells_the_rule(label: str) -> None:
    call, given = REFUSED[label]
    expected = raised(lambda: call(given))
    with logged() as lines:
        try:
            raise KeyError  # which becomes the context
        except KeyError:
            found = raised(lambda: call(given))
    assert (type(found), str(found), found.rule, found.field) == (
        type(expected),
        str(expected),
        expected.rule,
        expected.field,
    )
    assert isinstance(found.__context__, KeyError) and found.__suppress_context__ == expected.__suppress_context__
    (line,) = map(read, lines)
    assert line["refused"] == f"[{expected.rule}]"
    assert "route" not in line


class Trouble(Exception):
    pass


class Raises:
    @property
    def __cuda_array_interface__(self) -> Any:
        raise Trouble("of its own")


def test_an_exception_of_the_producer_is_named() -> None:
    with logged() as lines:
        assert str(raised(lambda: LOOSE.view(Raises()))) == "of its own"
    assert read(lines[0])["raised"].endswith("Trouble")


def test_nothing_is_written_off() -> None:
    with logged(traced=False) as lines, cd.policy(sync="host"):
        cd.view(np.zeros(3))
        with cd.policy(trace=True):
            cd.view(np.zeros(3))
            with cd.policy(trace=False):
                cd.view(np.zeros(3))
        cd.view(np.zeros(3))
        assert len(lines) == 1


def test_another_thread_is_not_of_the_context() -> None:
    with logged() as lines:
        thread = threading.Thread(target=lambda: cd.view(np.zeros(3)))
        thread.start()
        thread.join()
    inherits = getattr(sys.flags, "thread_inherit_context", False)
    assert len(lines) == (1 if inherits else 0)


def test_a_conversion_inside_has_a_line_before(machine: Machine) -> None:
    class Wraps:
        def __init__(self) -> None:
            self.inside = array(machine)

        @property
        def __cuda_array_interface__(self) -> Any:
            return cd.view(self.inside).__cuda_array_interface__

    wraps = Wraps()
    machine.clear()
    with logged() as lines:
        cd.view(wraps)
    found = [read(line) for line in lines]
    assert [line["function"] for line in found] == ["view", "__cuda_array_interface__", "view"]
    assert {line["route"] for line in found} == {"cai", "view"}
    # The calls inside are of the outer one too.
    assert found[2]["calls"] == ",".join(machine.names())
    assert found[2]["calls"].startswith(found[0]["calls"])


def test_the_table_writes_its_line_with_the_next() -> None:
    view, read_only = cd.view(np.zeros((2, 3), "f4")), cd.view(np.zeros(3), read_only=True)
    with logged() as lines:
        tvm_ffi.from_dlpack(view)
        memoryview(view)
        refused = raised(lambda: BORROW(id(read_only), ctypes.byref(abi.DLTensor())))
        from_the_table(abi.make((2, 3)))
        assert not lines, "until Python code may run"
        cd.view(view)
    assert isinstance(refused, BufferError)
    table, buffer, borrowed, taken, last = map(read, lines)
    assert taken["function"] == "managed_tensor_to_py_object_no_sync" and taken["route"] == "exchange"
    of_view = {"producer": "cai_dlpack.CaiView", "route": "view"}
    assert table["function"] == "managed_tensor_from_py_object_no_sync"
    assert {**SHAPE, **of_view}.items() <= table.items() and of_view.items() <= buffer.items()
    assert buffer["function"] == "__buffer__" and last["function"] == "view"
    assert borrowed["refused"] == "[read-only-writer]" and borrowed["producer"] == of_view["producer"]


# --- loggers that do what they may -------------------------------------------------------------------------


@contextmanager
def unraisable() -> Iterator[list[Any]]:
    found: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda report: found.append(report.exc_value)
    try:
        yield found
    finally:
        sys.unraisablehook = hook


@pytest.mark.parametrize("error", [ValueError("of the logger"), SystemExit(3), RecursionError(), MemoryError()])
@pytest.mark.parametrize("call", [lambda: cd.view(np.zeros(3)).shape, lambda: raised(lambda: LOOSE.view(3)).rule])
def test_an_error_of_the_logger_is_reported(call: Callable[[], object], error: BaseException) -> None:
    def fail(_: str) -> None:
        raise error

    expected = call()
    with unraisable() as reported, logged(fail) as lines:
        assert call() == expected
    assert reported == [error] and len(lines) == 1


@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "handled"])
def test_an_interrupt_in_the_logger_is_the_users(handler: Any, thread: str) -> None:
    """The thread that logs gets it, also if Python does not handle SIGINT."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    def look_for_signals() -> None:
        cd.view(np.zeros(3))
        for _ in range(100):  # between byte codes
            pass

    def call() -> None:
        with logged(interrupt), pytest.raises(KeyboardInterrupt):
            look_for_signals()

    before = signal.signal(signal.SIGINT, handler)
    try:
        if thread == "main":
            call()
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(call).result()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("label", LABELS)
def test_a_logger_that_converts_and_frees_what_it_can(label: str, machine: Machine) -> None:
    """It does not call itself for ever, and what the conversion uses lives."""
    call, _ = conversions(machine)[label]
    garbage: list[Any] = []

    def converts(_: str) -> None:
        cd.view(np.zeros(3))
        cd.to(np.zeros(3), np)
        raised(lambda: LOOSE.view(cai(typestr="zz")))
        garbage.append(weakref.WeakSet())
        gc.collect()

    before = cd.stats()["panics"]
    with unraisable() as reported, logged(converts) as lines:
        made = call()
    assert not reported and len(lines) == len(garbage) > 0
    kept = LOOSE.view(made) if type(made).__name__ in {"CaiView", "ndarray"} else None
    del made, kept
    assert cd.stats()["panics"] == before


def test_a_logger_that_takes_the_array_away(machine: Machine) -> None:
    """The producer's dict is emptied while the line is written: the view has what it has read."""
    holder = [array(machine, shape=(5,))]

    def take(_: str) -> None:
        for given in holder:
            vars(given).clear()
        holder.clear()
        gc.collect()

    with logged(take):
        view = cd.view(holder[0])
    assert view.shape == (5,) and not holder


def test_traced_under_a_collector_at_every_allocation(machine: Machine) -> None:
    cases = conversions(machine)
    expected = {label: str(type(call())) for label, (call, _) in conversions(machine).items()}
    with hostile.collecting_always(), logged(lambda _: cd.view(np.zeros(3))) as lines:
        for label, (call, _) in cases.items():
            assert str(type(call())) == expected[label]
    assert len(lines) >= len(cases)


# --- the environment ---------------------------------------------------------------------------------------

PROGRAM = """
import logging, sys
{before}
import cai_dlpack as cd, numpy as np, tvm_ffi
cd.view(np.zeros(3))
try:
    cd.view(3)
except TypeError as refused:
    print(refused.rule)
v = cd.view(np.zeros(3))
tvm_ffi.from_dlpack(v)
"""
#: Beginnings of the lines that the program writes; the last one at the end of the process.
WRITES = ["view: producer=numpy.ndarray", "view: producer=int refused=[protocol-missing]", "view:", "managed_tensor_"]


def lines_of(stderr: str) -> list[str]:
    return [line.partition(": ")[2] for line in stderr.splitlines() if line.startswith("cai_dlpack: ")]


@pytest.mark.parametrize(
    ("value", "before", "writes"),
    [
        ("1", "", WRITES),
        ("0", "", []),
        ("1", "logging.getLogger('cai_dlpack').setLevel(logging.INFO)", []),
        ("1", "logging.basicConfig(format='%(name)s: %(message)s')", WRITES),
        ("1", "logging.basicConfig(stream=sys.stdout)", []),
        ("1", "logging.disable()", []),
    ],
)
def test_the_environment_traces_a_process(value: str, before: str, writes: list[str]) -> None:
    done = on_the_simulator(PROGRAM.format(before=before), CAI_DLPACK_TRACE=value)
    assert done.returncode == 0, done.stderr
    assert "protocol-missing" in done.stdout
    found = lines_of(done.stderr)
    assert len(found) == len(writes), done.stderr
    assert all(line.startswith(start) for line, start in zip(found, writes, strict=True)), found


@needs.numba_cuda
def test_the_line_of_the_page_is_written(machine: Machine) -> None:
    import numba.cuda

    given = numba.cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    with logged() as lines:
        cd.to_dlpack(given, stream=-1)
    page = (ROOT / "docs" / "python.md").read_text("utf-8").replace(" \\\n   ", "")
    (shown,) = re.findall(r"^to_dlpack: .*$", page, re.MULTILINE)
    assert {**read(shown), "time": ""} == {**read(lines[0]), "time": ""}


def test_a_wrong_environment_is_refused_at_the_import() -> None:
    done = on_the_simulator("import cai_dlpack", CAI_DLPACK_TRACE="yes")
    assert done.returncode == 1
    assert "ValueError" in done.stderr and "CAI_DLPACK_TRACE" in done.stderr and "'yes'" in done.stderr


NVTX = {
    "good": """
def push_range(message, domain): print("push", message, domain)
def pop_range(domain): print("pop", domain)
""",
    "another": "",
    "raising": "def push_range(message, domain): raise OSError(message)\ndef pop_range(domain): print('never')",
    "broken": "1 / 0",
}


@pytest.mark.parametrize("package", NVTX)
def test_ranges_of_nvtx(package: str, tmp_path: Path) -> None:
    (tmp_path / "nvtx.py").write_text(NVTX[package])
    before = f"sys.path.insert(0, {str(tmp_path)!r})"
    done = on_the_simulator(PROGRAM.format(before=before), CAI_DLPACK_TRACE="1")
    assert done.returncode == 0, done.stderr
    pairs = ["push cai_dlpack.view cai_dlpack", "pop cai_dlpack"]
    ranges = [line for line in done.stdout.splitlines() if line != "protocol-missing"]
    assert ranges == (3 * pairs if package == "good" else [])
    assert len(lines_of(done.stderr)) == len(WRITES)
    trouble = {"raising": "OSError", "broken": "ZeroDivisionError"}.get(package)
    assert trouble is None or trouble in done.stderr
    assert ("Traceback" in done.stderr) == (trouble is not None)


def test_the_kept_lines_are_bounded() -> None:
    view = cd.view(np.zeros(3))
    with logged() as lines:
        for _ in range(5000):
            memoryview(view)
        cd.view(view)
    assert 0 < len(lines) <= 1001


def test_a_pointer_that_is_refused_is_named(machine: Machine) -> None:
    machine.clear()
    with logged() as lines:
        raised(lambda: cd.view(Cai(interface(data=(FAKE_POINTER, False)))))
    assert read(lines[0])["calls"] == ",".join(machine.names()) != ""
