"""Tests data whose producer declares no stream: assumed by the table of partners, warned of, refused if strict."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import Sim, abi
from cuda.core import Device
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, Legacy, cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track
from conformance.tests.streams.silent_producers import PARTNERS, SILENT, of_a_user, of_library

DEVICE = (abi.CUDA, 0)


def modules(silence: str) -> list[str]:
    """The modules of the partners with this silence, each with one below it."""
    chosen = [row["modules"] for row in PARTNERS if row["silence"].startswith(silence)]
    return [name for names in chosen for module in names for name in (module, f"{module}.arrays")]


UNKNOWN, ON_DEFAULT, READY = modules("undeclared: unknown"), modules("undeclared: pending"), modules("ready")


def of(library: str, kind: Any, *arguments: Any) -> Any:
    """An object of a new type of a library."""
    made = type("Array", (kind,), {"__module__": library})
    return made(*arguments)


def silent(library: str, track: Track | None = None, **changes: Any) -> Any:
    """An array of a library whose dict names no stream."""
    data = (FAKE_POINTER if track is None else track.data, False)
    return of(library, Cai, interface(**{"data": data, "version": 2, "stream": ..., **changes}))


@pytest.fixture
def quiet() -> Any:
    """The warnings of a test, which may be none."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


def test_the_table_knows_every_silence() -> None:
    assert {"numba", "cudf", "pycuda"} <= set(ON_DEFAULT)
    assert {"torch", "warp", "jax", "rmm", "pylibraft", "cuda.core", "tvm_ffi", "paddle"} <= set(UNKNOWN)
    assert {"numpy", "tensorflow"} <= set(READY)


# --- what is assumed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("library", UNKNOWN)
def test_a_stream_that_the_table_cannot_tell_is_warned_of(library: str, version: int) -> None:
    with pytest.warns(cd.StreamWarning, match="stream-undeclared"):
        view = cd.view(silent(library, version=version), device_id=0)
    assert (view.stream, view.producer_stream) == (LEGACY, "unknown")


@pytest.mark.parametrize("library", [*ON_DEFAULT, *UNKNOWN])
@pytest.mark.parametrize("mixed", [None, "numpy.lib.mixins", "users.mixins"])
def test_a_subclass_is_silent_as_its_library_is(library: str, mixed: str | None) -> None:
    mine = of_a_user(library, Cai, mixed)(interface(stream=None))
    with cd.policy(strict=True):
        refused = refuse(lambda: cd.view(mine, device_id=0), BufferError)
    assert refused.rule == "stream-undeclared"
    assert cd.view(mine, device_id=0, producer_stream=None).stream is None


@pytest.mark.parametrize("library", [row["modules"][0] for row in PARTNERS if "ignores `stream`" in row["quirks"]])
def test_a_subclass_ignores_the_stream_as_its_library_does(library: str, track: Track) -> None:
    mine = of_a_user(library, Dlpack)(abi.make(device=DEVICE, data=track.data))
    with pytest.warns(cd.StreamWarning, match="stream-undeclared"):
        assert cd.view(mine).stream == LEGACY


@pytest.mark.parametrize("library", [*ON_DEFAULT, *UNKNOWN])
def test_a_dict_is_silent_as_its_owner_is(library: str) -> None:
    """The owner of a bare dict, and one beside an object that shows another one's dict."""
    theirs = silent(library, version=3, stream=None)
    for shown in (theirs.__cuda_array_interface__, cai(stream=None)):
        with cd.policy(strict=True):
            refused = refuse(partial(cd.view, shown, owner=theirs, device_id=0), BufferError)
        assert refused.rule == "stream-undeclared"
    declared = cd.view(interface(stream=0x5500), owner=theirs, device_id=0)
    assert (declared.stream, declared.producer_stream) == (0x5500, 0x5500)
    assert cd.view(interface(stream=None), owner=object(), device_id=0).stream is None


@pytest.mark.parametrize("row", PARTNERS, ids=lambda row: row["modules"][0])
def test_an_object_of_a_library_speaks_for_its_dict_and_its_owner_s_library_adds_its_doubt(row: dict[str, Any]) -> None:
    """A container tells nothing, nor does an object of no library."""
    shown = of_library(row["modules"][0], Cai)(interface(stream=None))
    of_others = [(of_library(other["modules"][0], Cai)(interface(stream=None)), other in SILENT) for other in PARTNERS]
    for owner, is_doubtful in [(shown, False), (object(), False), ([shown], False), *of_others]:
        take = partial(cd.view, shown, owner=owner, device_id=0, strict=True)
        if row in SILENT or is_doubtful:
            assert refuse(take, BufferError).rule == "stream-undeclared", owner
        else:
            assert take().stream is None, owner


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("library", ON_DEFAULT)
def test_a_default_stream_is_assumed_without_a_warning(library: str, version: int, quiet: list[Any]) -> None:
    view = cd.view(silent(library, version=version), device_id=0)
    assert (view.stream, view.producer_stream) == (LEGACY, LEGACY)
    assert quiet == []


@pytest.mark.parametrize("library", [*UNKNOWN, *ON_DEFAULT])
def test_undeclared_data_is_read_after_the_default_stream(library: str, track: Track) -> None:
    for _ in track.control.orders():
        track.machine.write(track.data, bytes(24))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            view = cd.view(silent(library, track), device_id=0)
        track.write(LEGACY, 7)
        view.__dlpack__(stream=track.b, max_version=(1, 3))
        track.read(track.b)
        track.wait(track.b)
        assert track.seen() == 7


def test_without_that_order_it_is_read_too_early(track: Track) -> None:
    outcomes = set()
    for _ in track.control.orders():
        track.machine.write(track.data, bytes(24))
        view = cd.view(silent("anybody", track), device_id=0)
        track.write(LEGACY, 7)
        view.__dlpack__(stream=track.b, max_version=(1, 3))
        track.read(track.b)
        track.wait(track.b)
        outcomes.add(track.seen())
        track.wait(LEGACY)
    assert outcomes == {0, 7}


@pytest.mark.parametrize("library", [*UNKNOWN, *ON_DEFAULT])
def test_nothing_pending_is_the_callers_word_and_costs_nothing(library: str, track: Track, quiet: list[Any]) -> None:
    view = cd.view(silent(library, track), device_id=0, producer_stream=None)
    assert (view.stream, view.producer_stream) == (None, None)
    with track.control.no_calls():
        view.__dlpack__(stream=track.b, max_version=(1, 3))
    with cd.policy(strict=True):
        cd.view(silent(library, track), device_id=0, producer_stream=None)
    assert quiet == []


@pytest.mark.parametrize("library", [*UNKNOWN, *ON_DEFAULT])
def test_no_elements_have_nothing_pending(library: str, quiet: list[Any]) -> None:
    with cd.policy(strict=True):
        view = cd.view(silent(library, shape=(0, 3), data=(0, False)), device_id=0)
    assert (view.stream, quiet) == (None, [])


@pytest.mark.parametrize("library", UNKNOWN)
def test_what_says_nothing_in_its_dict_is_asked_by_dlpack(library: str) -> None:
    class Both(Dlpack):
        __cuda_array_interface__ = interface(stream=...)

    producer = of(library, Both, abi.make(device=DEVICE, data=FAKE_POINTER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cd.view(producer)
    assert [call["stream"] for call in producer.calls] == [LEGACY]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_unlisted_producer_is_taken_at_its_word(version: int, quiet: list[Any]) -> None:
    view = cd.view(silent("anybody", version=version), device_id=0)
    assert (view.stream, view.producer_stream) == (None, None if version == 3 else "unknown")
    assert quiet == []


def test_every_array_type_of_numba_is_numbas() -> None:
    """numba-cuda installs its modules as `numba.cuda...`: under its own name, `numba_cuda...`, none is imported."""
    numba.cuda.to_device(np.zeros(3))
    kinds = {
        member
        for name, module in list(sys.modules.items())
        if name.startswith(("numba.cuda", "numba_cuda")) and "simulator" not in name
        for member in vars(module).values()
        if isinstance(member, type) and hasattr(member, "__cuda_array_interface__")
    }
    assert {"DeviceNDArray", "DeviceRecord", "ManagedNDArray", "MappedNDArray"} <= {kind.__name__ for kind in kinds}
    (row,) = (row for row in PARTNERS if row["name"] == "numba")
    for kind in kinds:
        assert any(kind.__module__.startswith(f"{module}.") for module in row["modules"]), kind.__module__
    done = on_the_simulator("import numba_cuda.numba.cuda.cudadrv.devicearray")
    assert done.returncode != 0, "its types may have another module's name: the table has to have it"


# --- a default stream of a thread, in Numba's dict ----------------------------------------------------------------


def on_its_own_stream(track: Track) -> Any:
    """An array of Numba's own, of the calling thread's default stream, which something still writes."""
    array = numba.cuda.device_array(24, np.uint8, stream=numba.cuda.per_thread_default_stream())
    assert array.__cuda_array_interface__["stream"] == PER_THREAD
    track.machine.write(array.device_ctypes_pointer.value, bytes(24))
    return array


def elsewhere(body: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        Machine(Sim()).set_current(0)
        try:
            found.append(body())
        except BufferError as error:
            found.append(error.rule)  # type: ignore[attr-defined]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_numbas_2_is_the_stream_of_the_thread_that_imports(track: Track) -> None:
    view = cd.view(on_its_own_stream(track))
    track.machine.clear()
    view.on(track.b)
    assert (view.stream, track.machine.order()) == (PER_THREAD, one_event(PER_THREAD, track.b))
    assert elsewhere(lambda: view.on(track.b)) == "stream-thread"


@pytest.mark.parametrize(("told", "waits"), [({}, False), ({"producer_stream": LEGACY}, True)])
def test_numbas_2_on_another_thread(told: dict[str, Any], waits: bool, track: Track) -> None:
    """It is taken for the reader's own, and nothing waits for the writer; 1 waits for the streams of all threads."""
    array = on_its_own_stream(track)
    with track.control.gate(PER_THREAD):
        view = elsewhere(lambda: cd.view(array, **told).on(track.b))
        assert view.stream == track.b
        assert bool(track.control.pending(track.b)) == waits
    track.wait(track.b)


# --- DLPack without a stream --------------------------------------------------------------------------------------


def test_a_tensor_of_tvm_ffi_is_undeclared(track: Track) -> None:
    """Its `__dlpack__` takes a stream and uses none, whatever tvm-ffi's own work stream is."""
    tensor = tvm_ffi.from_dlpack(track.view(None))
    with tvm_ffi.use_raw_stream(tensor.device, track.a), pytest.warns(cd.StreamWarning, match="tvm_ffi.*Tensor"):
        view = cd.view(tensor)
    assert (view.stream, view.producer_stream) == (LEGACY, "unknown")
    for _ in track.control.orders():
        track.machine.write(track.data, bytes(24))
        with tvm_ffi.use_raw_stream(tensor.device, track.a):
            named = cd.view(tensor, producer_stream=track.a)
        track.write(track.a, 7)
        named.__dlpack__(stream=track.b, max_version=(1, 3))
        track.read(track.b)
        track.wait(track.b)
        assert track.seen() == 7


IGNORES = [row["modules"][0] for row in PARTNERS if "ignores `stream`" in row["quirks"]]


@pytest.mark.parametrize("library", IGNORES)
def test_a_stream_that_is_asked_for_in_vain_is_not_claimed(library: str, track: Track) -> None:
    producer = of(library, Dlpack, abi.make(device=DEVICE, data=track.data))
    with pytest.warns(cd.StreamWarning):
        view = cd.from_dlpack(producer, stream=track.a)
    assert view.stream == LEGACY
    track.machine.clear()
    view.on(track.a)
    assert track.machine.order() == one_event(LEGACY, track.a)


@pytest.mark.parametrize("library", IGNORES)
@pytest.mark.parametrize(("device", "warns"), [((3, 0), True), ((13, 0), True), ((1, 0), False)])
def test_memory_that_the_host_reads(library: str, device: Any, warns: bool, quiet: list[Any]) -> None:
    producer = of(library, Dlpack, abi.make(device=device, data=FAKE_POINTER))
    assert cd.view(producer).stream == (LEGACY if warns else None)
    assert [each.category for each in quiet] == [cd.StreamWarning] * warns


def test_who_takes_no_stream_is_warned_of(track: Track) -> None:
    with pytest.warns(cd.StreamWarning):
        view = cd.from_dlpack(Legacy(abi.make(device=DEVICE, data=track.data)))
    assert (view.stream, view.producer_stream) == (LEGACY, "unknown")


def test_who_takes_no_stream_works_on_the_callers(track: Track, quiet: list[Any]) -> None:
    """Nothing but this package orders the stream that was asked for after the one that the caller names."""
    track.machine.clear()
    view = cd.from_dlpack(Legacy(abi.make(device=DEVICE, data=track.data)), stream=track.b, producer_stream=track.a)
    assert (view.stream, view.producer_stream, quiet) == (track.b, track.a, [])
    assert track.machine.order() == one_event(track.a, track.b)


# --- Python's own registry ----------------------------------------------------------------------------------------


def test_the_classes_of_warnings() -> None:
    for kind in (cd.StreamWarning, cd.VersionWarning, cd.ConsumeWarning):
        assert issubclass(kind, cd.InterchangeWarning)
        assert kind.__module__ == "cai_dlpack" and kind.__doc__
    assert issubclass(cd.InterchangeWarning, UserWarning)
    assert issubclass(cd.ConsumeWarning, ResourceWarning), "ignored, as by default"


WARNED: dict[str, tuple[type[Warning], Callable[[], object]]] = {
    "undeclared": (cd.StreamWarning, lambda: cd.view(silent("torch"), device_id=0)),
    "stream-0": (cd.StreamWarning, lambda: cd.view(cai(stream=0), device_id=0)),
    "version": (cd.VersionWarning, lambda: cd.view(cai(version=99), device_id=0)),
}


@pytest.mark.parametrize(("category", "call"), WARNED.values(), ids=WARNED)
def test_the_filters_decide_how_often(category: type[Warning], call: Callable[[], object]) -> None:
    for action, times in (("always", 3), ("ignore", 0)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action, category)  # type: ignore[arg-type]
            for _ in range(3):
                call()
        assert [each.category for each in seen] == [category] * times
    with warnings.catch_warnings():
        warnings.simplefilter("error", category)
        for _ in range(3):
            refuse(call, category)


def test_a_warning_is_of_the_callers_line() -> None:
    """So that Python's default filter prints it once for each line, not once for each type."""
    producer = silent("torch")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            cd.view(producer, device_id=0)
        cd.view(producer, device_id=0)
    lines = [(each.filename, each.lineno) for each in seen]
    assert len(lines) == 2 and lines[1][1] == lines[0][1] + 1, lines
    assert {name for name, _ in lines} == {__file__}


# --- strict -------------------------------------------------------------------------------------------------------


def numbas(track: Track) -> object:
    return numba.cuda.to_device(np.zeros(3))


def core_buffer(track: Track) -> object:
    device = Device(0)
    device.set_current()
    return device.allocate(64, stream=device.create_stream())


UNDECLARED: dict[str, Callable[[Track], Any]] = {
    "numba": numbas,
    "cuda.core": core_buffer,
    "cuda.core, by its table": lambda track: StridedMemoryView.from_dlpack(core_buffer(track), stream_ptr=-1),
    "tvm-ffi": lambda track: tvm_ffi.from_dlpack(track.view(None)),
    "a dict of version 2": lambda track: cai(version=2, stream=..., data=(track.data, False)),
    "a default stream": lambda track: silent("pycuda", track),
    "an unknown stream": lambda track: silent("rmm", track),
    "no keyword": lambda track: Legacy(abi.make(device=DEVICE, data=track.data)),
}
DECLARED: dict[str, Callable[[Track], Any]] = {
    "a stream": lambda track: track.producer(track.a),
    "none, by version 3": lambda track: track.producer(None),
    "a stream of numba": lambda track: numba.cuda.device_array(3, stream=numba.cuda.stream()),
    "DLPack": lambda track: Dlpack(abi.make(device=DEVICE, data=track.data)),
    "the host": lambda track: np.zeros(3),
    "a view": lambda track: track.view(1),
}


@pytest.mark.parametrize("make", UNDECLARED.values(), ids=UNDECLARED)
def test_strict_refuses_what_is_undeclared(make: Callable[[Track], Any], track: Track) -> None:
    producer = make(track)
    live = cd.stats()["live"]
    with cd.policy(strict=True):
        for call in (cd.view, cd.to_dlpack):
            found = refuse(lambda call=call: call(producer), BufferError)  # type: ignore[misc]
            check_refusal(found, "stream-undeclared", "object", hint="producer_stream=")
        for named in (track.a, None):
            assert cd.view(producer, producer_stream=named).stream == named
    check_refusal(refuse(lambda: cd.view(producer, strict=True), BufferError), "stream-undeclared", "object")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cd.view(producer)
    assert cd.stats()["live"] == live


@pytest.mark.parametrize("make", DECLARED.values(), ids=DECLARED)
def test_strict_takes_what_is_declared(make: Callable[[Track], Any], track: Track) -> None:
    with cd.policy(strict=True):
        cd.view(make(track))


def test_so_it_does_where_the_data_is_wanted_elsewhere(track: Track) -> None:
    """The producer's own refusal of the device would tell nothing of the stream."""
    tensor = tvm_ffi.from_dlpack(track.view(track.a))
    refused = refuse(lambda: cd.from_dlpack(tensor, device="cpu", strict=True), BufferError)
    check_refusal(refused, "stream-undeclared", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cd.StreamWarning)
        with pytest.raises(cd.StreamWarning):
            cd.from_dlpack(tensor, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cd.StreamWarning)
        assert cd.from_dlpack(tensor, device="cpu").device == (1, 0)


def test_strict_refuses_what_the_interface_forbids() -> None:
    with cd.policy(strict=True):
        for changes, rule in ({"stream": 0}, "stream-zero"), ({"version": ...}, "version-missing"):
            producer = cai(**changes)
            assert refuse(lambda: cd.view(producer, device_id=0), ValueError).rule == rule  # noqa: B023


def test_strict_refuses_a_return_edge_that_cannot_be_made(track: Track) -> None:
    view = cd.view(Dlpack(abi.make(device=DEVICE, data=track.data)))
    with cd.policy(strict=True):
        check_refusal(refuse(lambda: view.consume(track.b), BufferError), "stream-unknown", None)
        cd.view(view, producer_stream=None).consume(track.b)
    view.consume(track.b)


def test_the_two_settings_nest_apart(track: Track) -> None:
    producer = silent("pycuda", track)
    with cd.policy(strict=True), cd.policy(sync="host"):
        refuse(lambda: cd.view(producer), BufferError)
        with cd.policy(strict=False):
            view = cd.view(producer)
            track.machine.clear()
            view.__dlpack__(stream=track.b, max_version=(1, 3))
            assert track.machine.order() == [("cuStreamSynchronize", LEGACY)]
        refuse(lambda: cd.view(producer), BufferError)
    cd.view(producer)
    with cd.policy(sync="event", strict=True):
        refuse(lambda: cd.view(producer), BufferError)


def test_a_policy_of_nothing_is_a_mistake() -> None:
    check_refusal(refuse(cd.policy, TypeError), "argument-type", "sync", hint="strict=")


PROGRAM = """
import cai_dlpack as cd
class Old:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 2}
try:
    cd.view(Old(), device_id=0)
except BufferError as refused:
    print(refused.rule)
with cd.policy(strict=False):
    print(cd.view(Old(), device_id=0).stream)
"""


@pytest.mark.parametrize(("value", "printed"), [("1", ["stream-undeclared", "None"]), ("0", ["None"])])
def test_the_environment_makes_every_import_strict(value: str, printed: list[str]) -> None:
    done = on_the_simulator(PROGRAM, CAI_DLPACK_STRICT=value)
    assert (done.stdout.split(), done.returncode) == (printed, 0), done.stderr


@pytest.mark.parametrize("value", ["", "yes", "2"])
def test_a_wrong_environment_is_refused_at_the_import(value: str) -> None:
    done = on_the_simulator("import cai_dlpack", CAI_DLPACK_STRICT=value)
    assert done.returncode == 1
    assert "ValueError" in done.stderr and "CAI_DLPACK_STRICT" in done.stderr and f"'{value}'" in done.stderr


# --- explain ------------------------------------------------------------------------------------------------------


# Whether `__dlpack__` takes a stream is not found out without calling it.
SEEN = {name: make for name, make in UNDECLARED.items() if name != "no keyword"}


@pytest.mark.parametrize("make", SEEN.values(), ids=SEEN)
def test_explain_tells_the_three_states_apart(make: Callable[[Track], Any], track: Track) -> None:
    producer = make(track)
    found = cd.explain(producer)
    assert found.ready is not None and found.ready.startswith("undeclared"), found
    assert "undeclared" in str(found) and found.refused is None
    assert "names the stream that" not in str(found) and "makes the data ready" not in str(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream = cd.view(producer).stream
    assert ("legacy default stream (1)" in found.ready) == (stream == LEGACY)
    with cd.policy(strict=True):
        refused = cd.explain(producer).refused
    assert refused is not None and "[stream-undeclared]" in refused


def test_explain_tells_what_is_declared(track: Track) -> None:
    assert cd.explain(track.producer(track.a)).ready == f"on stream {track.a:#x}"
    assert cd.explain(track.producer(None)).ready == "now"
    assert cd.explain(track.view(1)).ready == "on the legacy default stream (1)"
    assert cd.explain(Dlpack(abi.make(device=DEVICE, data=track.data))).ready is None
