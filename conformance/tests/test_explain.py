"""Checks `cd.explain` against what the import and the export then do."""

from __future__ import annotations

import contextvars
import ctypes
import re
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange
from cai_dlpack import _core
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import Dlpack
from conformance.tests.expectations.refusal import refuse
from conformance.tests.simulated.machine import Machine


def array(**changed: Any) -> Any:
    entries = {"shape": (3, 4), "typestr": "<f4", "data": (0x1000, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__={**entries, **changed})


def test_an_interface_with_a_stream_is_taken_by_it(machine: Machine) -> None:
    ready, mine = machine.stream(), machine.stream()
    found = cd.explain(array(stream=ready), stream=mine, device_id=0)
    assert found.route == "cai"
    assert found.order is not None
    assert f"stream {mine:#x} waits for an event on stream {ready:#x}" in found.order
    assert found.driver_calls == ("cuEventRecord", "cuStreamWaitEvent")
    assert found.refused is None


@pytest.mark.parametrize(
    ("stream", "asked", "said", "calls"),
    [
        (None, "a", "nothing to do", ()),
        ("a", "a", "nothing to do", ()),
        ("a", -1, "nobody waits: the order is yours", ()),
        (None, -1, "nothing to do: the data is ready", ()),
        (1, None, "nothing to do", ()),
        ("a", None, "the legacy default stream (1) waits for an event", ("cuEventRecord", "cuStreamWaitEvent")),
    ],
)
def test_the_order_is_the_plan(stream: Any, asked: Any, said: str, calls: tuple[str, ...], machine: Machine) -> None:
    streams = {"a": machine.stream()}
    found = cd.explain(array(stream=streams.get(stream, stream)), stream=streams.get(asked, asked), device_id=0)
    assert found.order is not None and said in found.order
    assert found.driver_calls == calls


def test_the_policy_is_part_of_the_plan(machine: Machine) -> None:
    ready, mine = machine.stream(), machine.stream()
    with cd.policy(sync="host"):
        found = cd.explain(array(stream=ready), stream=mine, device_id=0)
    assert found.order is not None and f"the host waits for stream {ready:#x}" in found.order
    assert found.driver_calls == ("cuStreamSynchronize",)


def test_a_capture_is_part_of_the_plan(machine: Machine) -> None:
    """The questions about captures are asked: they invalidate none."""
    view, mine = cd.view(array(stream=machine.stream()), device_id=0), machine.stream()
    assert view.stream is not None
    stream = ctypes.c_void_p(view.stream)
    assert machine.driver.cuStreamBeginCapture_v2(stream, 0) == 0
    found = cd.explain(view, stream=mine)
    graph = ctypes.c_void_p()
    with pytest.raises(BufferError) as refusal:
        view.__dlpack__(stream=mine, max_version=(1, 0))
    assert machine.driver.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert found.refused == str(refusal.value)
    assert found.order == f"refused: {refusal.value}" and found.driver_calls == ()


def test_an_old_interface_is_taken_at_its_word_with_a_warning() -> None:
    text = str(cd.explain(array(version=2), device_id=0))
    assert "cai" in text and "producer_stream=" in text


def test_numpy_goes_by_dlpack() -> None:
    found = cd.explain(np.arange(3))
    assert (found.route, found.ready, found.refused) == ("dlpack", "now", None)
    assert found.driver_calls == () and found.unknown is None


def test_what_numpy_does_not_export_goes_by_its_interface() -> None:
    assert cd.explain(np.zeros(3, ml_dtypes.bfloat16)).route == "array_interface"
    dates = cd.explain(np.zeros(3, "M8[s]"))
    assert dates.route == "array_interface" and dates.refused is None
    assert dates.order is not None and dates.order.startswith("refused: ") and "datetime" in dates.order
    assert "typestr-datetime" in (cd.explain(np.zeros(3, "M8[s]"), to="torch").refused or "")
    objects = cd.explain(np.zeros(3, object))
    assert objects.route is None and objects.refused is not None


def test_the_keywords_are_those_of_view(machine: Machine) -> None:
    pending = cd.explain(array(), producer_stream=machine.stream(), device_id=0, to="tvm")
    assert pending.driver_calls == ("cuEventRecord", "cuStreamWaitEvent")
    assert pending.call == "tvm_ffi.from_dlpack(v)"
    wrong = cd.explain(np.arange(3), dtype="float32")
    with pytest.raises(BufferError) as refusal:
        cd.view(np.arange(3), dtype="float32")
    assert (wrong.route, wrong.refused) == (None, str(refusal.value))
    old = array(version=9)
    with pytest.warns(cd.VersionWarning) as given:
        cd.view(old, device_id=0)
    assert cd.explain(old, device_id=0).warnings == tuple(str(each.message) for each in given)


def test_who_waits_is_not_known_without_the_consumers_stream(machine: Machine) -> None:
    view = cd.view(array(stream=machine.stream()), device_id=0)
    found = cd.explain(view, to="torch")
    assert found.unknown is not None and "cannot be known without stream=" in found.unknown
    assert found.driver_calls is None and found.order is not None and "unless the consumer works there" in found.order
    named = cd.explain(view, to="torch", stream=1)
    assert "who waits" not in str(named.unknown) and named.driver_calls == ("cuEventRecord", "cuStreamWaitEvent")


def test_a_refusal_is_the_one_that_the_import_raises() -> None:
    with pytest.raises(BufferError) as refusal:
        cd.view(array(typestr="|O8"))
    found = cd.explain(array(typestr="|O8"))
    assert found.route is None
    assert found.refused == str(refusal.value)


@pytest.mark.parametrize(
    "changes", [{"typestr": ">f4"}, {"strides": (13, 4)}, {"typestr": "|V4", "descr": [("x", "<f4")]}]
)
def test_what_dlpack_cannot_say_is_refused_by_its_readers(changes: dict[str, Any]) -> None:
    producer = array(**changes)
    for what in (producer, cd.view(producer, device_id=0)):
        with pytest.raises(BufferError) as refusal:
            cd.to_dlpack(what, device_id=0)
        for to in ("torch", "jax", "tvm_ffi", "cupy"):
            assert (cd.explain(what, device_id=0, to=to).refused or "").startswith(str(refusal.value))
        assert cd.explain(what, device_id=0).refused is cd.explain(what, device_id=0, to="numba").refused is None
        assert f"by DLPack   refused: {refusal.value}" in str(cd.explain(what, device_id=0))


def test_an_object_without_either_protocol_is_refused() -> None:
    found = cd.explain(3)
    assert found.route is None and found.refused is not None


@pytest.mark.parametrize(
    ("to", "changed", "refused"),
    [
        ("jax", {"data": (0x1000, True)}, "read-only"),
        ("torch", {"data": (0x1000 + 32, False), "strides": (-16, 4)}, "negative strides"),
        ("torch", {}, None),
        ("numba", {"data": (0x1000, True)}, None),
    ],
)
def test_a_consumer_that_would_refuse(to: str, changed: dict[str, Any], refused: str | None) -> None:
    view = cd.view(array(**changed), device_id=0)
    found = cd.explain(view, to=to)
    assert found.route == "view" and found.call is not None
    if refused is None:
        assert found.refused is None
    else:
        assert found.refused is not None and refused in found.refused


def test_the_device_decides_for_a_consumer() -> None:
    found = cd.explain(cd.view(np.arange(3)), to="cupy")
    assert found.refused is not None and "device type cpu" in found.refused


def test_memory_of_another_kind_has_a_remedy(machine: Machine) -> None:
    view = cd.view(array(data=(machine.device_memory(64), False)))
    refused = cd.explain(view, to="numpy").refused
    assert refused is not None and 'np.from_dlpack(v, device="cpu") copies it' in refused


PARTNERS = _core._partners()


@pytest.mark.parametrize("row", PARTNERS, ids=lambda row: row["name"])
def test_every_partner_is_explained_under_all_its_names(row: dict[str, Any]) -> None:
    view = cd.view(array(), device_id=0)
    distributions = [name.replace("*", digits) for name in row["distributions"] for digits in ("12", "130")]
    names = [row["name"], row["title"], row["distribution"], *row["aliases"], *distributions]
    texts = {str(cd.explain(view, to=name)) for name in names}
    assert len(texts) == 1
    (text,) = texts
    assert f"to {row['name']}" in text and row["calls"][0]["code"] in text


@pytest.mark.parametrize("typed", ["pyarrow", "onnxruntime", "array-api-strict", "pylibraft", "xgboost", "DALI"])
def test_the_partners_of_the_page_are_taken(typed: str) -> None:
    assert cd.explain(cd.view(np.arange(3)), to=typed).route == "view"


@pytest.mark.parametrize("to", ["cutile", "cute", "mpi4py"])
def test_a_consumer_that_asks_for_no_order_is_one_for_whom_nobody_waits(to: str, machine: Machine) -> None:
    """A race is not told as "nothing to do", as ready data is."""
    device = machine.device_memory(64)
    pending = cd.explain(array(data=(device, False), stream=machine.stream()), to=to)
    assert pending.order is not None and pending.order.startswith("nobody waits: the order is yours")
    assert pending.driver_calls == ()
    assert "pass v.on(s)" in str(pending) or "pass v.synchronize()" in str(pending)
    ready = cd.explain(array(data=(device, False)), to=to)
    assert ready.order is not None and ready.order.startswith("nothing to do: the data is ready")
    with cd.policy(sync="none"):
        told = cd.explain(array(data=(device, False), stream=machine.stream()), to="torch", stream=machine.stream())
    assert told.order == 'nobody waits: the policy "none" leaves the order to the caller'


@pytest.mark.parametrize("to", ["kvikio", "ucxx"])
def test_memory_of_the_host_is_told_by_the_call_that_reads_it(to: str, machine: Machine) -> None:
    """The same expression reads it by a buffer; the order is that of device memory alone."""
    host = cd.explain(np.zeros(3), to=to)
    assert (host.refused, host.dropped, host.driver_calls) == (None, None, ())
    assert host.order is not None and host.order.startswith("nothing to do") and "advice" not in str(host)
    device = cd.explain(array(data=(machine.device_memory(64), False), stream=machine.stream()), to=to)
    assert device.call == host.call and device.refused is None
    assert device.order is not None and device.order.startswith("nobody waits") and "advice" in str(device)
    strided = cd.explain(np.zeros((4, 4))[:, ::2], to=to)
    assert strided.refused is not None and any("copy=True" in remedy for remedy in strided.remedies)
    assert "without a buffer format" in (cd.explain(np.zeros(3, ml_dtypes.bfloat16), to=to).refused or "")


@pytest.mark.parametrize("to", ["torch", "cupy"])
def test_a_call_that_ignores_streams_is_no_remedy_for_one_that_does_not_exist(to: str, machine: Machine) -> None:
    pending = array(data=(machine.device_memory(64), False), stream=machine.stream())
    refused = cd.explain(pending, to=to, stream=7)
    assert refused.refused is not None and refused.refused.endswith("does not exist, any more or in this context")
    assert refused.remedies == ()
    # For what the call refuses by the table it is one.
    assert cd.explain(pending, to=to, stream=machine.stream()).refused is None


@pytest.mark.parametrize("to", ["mpi4py", "pycuda", "ucxx", "tvm_ffi", "cudf"])
def test_no_view_is_to_be_ordered_if_the_data_is_ready(to: str, machine: Machine) -> None:
    device = machine.device_memory(64)
    pending = array(data=(device, False), stream=machine.stream())
    ready = cd.view(array(data=(device, False)))
    assert "pass v." in str(cd.explain(pending, to=to))
    assert "pass v." not in str(cd.explain(ready, to=to)) and "advice" not in str(cd.explain(ready, to=to))
    assert "advice      hold the view until the kernel is done" in str(cd.explain(ready, to="cutile"))
    assert "pass -1" in str(cd.explain(np.zeros(3), to="cuda.core"))


@pytest.mark.parametrize("library", [np, np.ndarray, tvm_ffi, tvm_ffi.Tensor, StridedMemoryView], ids=repr)
def test_a_library_is_named_by_its_module_or_its_class_as_for_to(library: Any) -> None:
    given = np.zeros(3)
    named = {np: "numpy", np.ndarray: "numpy", StridedMemoryView: "cuda.core"}.get(library, "tvm_ffi")
    assert str(cd.explain(given, to=library)) == str(cd.explain(given, to=named))
    assert cd.explain(given, to=cd.CaiView).call is None


@pytest.mark.parametrize(
    "library, kind",
    [(3, TypeError), (object(), TypeError), (int, ValueError), (cd, ValueError), ("torhc", ValueError)],
)
def test_what_names_no_library_is_refused_as_by_to(library: Any, kind: type[Exception]) -> None:
    by_explain = refuse(lambda: cd.explain(np.zeros(3), to=library), kind)
    by_to = refuse(lambda: cd.to(np.zeros(3), library), kind)
    assert by_explain.rule == by_to.rule
    assert by_explain.message == by_to.message.replace("argument 'library'", "argument 'to'")


def test_an_unknown_consumer_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'torhc'.*torch"):
        cd.explain(array(), to="torhc")


def test_a_producer_is_asked_if_nothing_has_to_wait_and_nothing_is_kept() -> None:
    class Producer(Dlpack):
        asked = 0

        def __dlpack__(self, **keywords: Any) -> object:
            Producer.asked += 1
            return super().__dlpack__(**keywords)

    before = cd.stats()["live"]
    made = abi.make()
    found = cd.explain(Producer(made), to="numpy")
    assert (found.route, found.refused, found.unknown) == ("dlpack", None, None)
    assert (Producer.asked, made.released) == (1, 1)
    # What earlier tests left may end meanwhile.
    assert cd.stats()["live"] <= before

    on_device = cd.explain(Producer(abi.make(device=(2, 0))), to="tvm_ffi")
    assert (on_device.route, on_device.refused, on_device.order) == ("dlpack", None, None)
    assert on_device.unknown is not None and "cannot be known without calling its __dlpack__" in on_device.unknown
    assert Producer.asked == 1


def test_a_capsule_is_read_and_not_taken() -> None:
    capsule = np.arange(3).__dlpack__(max_version=(1, 0))
    assert cd.explain(capsule, to="numpy").route == "capsule"
    assert cd.explain(capsule).refused is None
    assert cd.view(capsule).shape == (3,)
    used = cd.explain(capsule)
    assert used.route is None and used.refused is not None and "[capsule-used]" in used.refused


def test_an_interrupt_is_no_refusal() -> None:
    class Interrupted:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cd.explain(Interrupted())


# --- by the table of the C Exchange API: a tensor is taken, and given back -----------------------------------


def exchanger(producer: exchange.Producer, **members: Any) -> Any:
    """An array of a library that has a table."""
    attribute = exchange.capsule(exchange.table(producer, lends=True))
    return exchange.make_type(attribute, producer, **{"__module__": "tvm_ffi", **members})()


def test_a_table_says_what_explain_says(machine: Machine) -> None:
    made = abi.make((2, 3), device=(2, 0), data=machine.device_memory(64), dtype=(abi.BFLOAT, 16, 1))
    producer = exchange.Producer(made)
    producer.stream = machine.stream()
    machine.clear()
    found = cd.explain(exchanger(producer), to="torch", stream=machine.stream())
    assert (found.route, found.refused) == ("exchange", None)
    assert "(2, 3) bfloat16 on (2, 0)" in str(found)
    assert found.order is not None and f"waits for an event on stream {producer.stream:#x}" in found.order
    assert producer.exported == made.released == 1, "taken, and given back"
    assert producer.fallbacks == []
    assert "cuEventRecord" not in machine.names()


def test_a_table_that_says_less_than_dlpack_is_not_the_route() -> None:
    producer = exchange.Producer()
    found = cd.explain(exchanger(producer, requires_grad=True))
    assert (found.route, found.unknown, len(producer.fallbacks)) == ("dlpack", None, 1)
    pinned = exchange.Producer()
    assert cd.explain(exchanger(pinned, is_pinned=lambda self: True)).route == "dlpack"
    negated = cd.explain(exchanger(producer, is_neg=lambda self: True))
    assert negated.refused is not None and "values-lazy" in negated.refused


def test_a_table_that_fails_by_runtime_error_is_not_the_route() -> None:
    """As `view` does: the producer's `__dlpack__` is asked instead."""

    def fails(self: object) -> bool:
        raise RuntimeError("Exception raised from C++")

    producer = exchange.Producer()
    # A C function of an object, which fails with the exception of its `__bool__`.
    failing_table = exchange.table(producer, from_object=ctypes.pythonapi.PyObject_IsTrue)
    failing = exchange.make_type(exchange.capsule(failing_table), producer, __bool__=fails)()
    found = cd.explain(failing)
    assert (found.route, found.refused) == ("dlpack", None)
    assert len(producer.fallbacks) == 1
    assert cd.view(failing).ptr == producer.made.tensor.data


@pytest.mark.parametrize(("flags", "told"), [(abi.READ_ONLY, True), (0, False)])
def test_the_flag_of_a_tensor_is_told(flags: int, told: bool) -> None:
    producer = exchange.Producer(abi.make(flags=flags))
    found = cd.explain(exchanger(producer, __module__="elsewhere"), to="jax")
    assert ("read-only" in str(found).lower(), found.refused is not None) == (told, told)
    assert producer.exported == producer.made.released == 1, "taken, and given back"


# --- what can be known is told ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keywords", "to"), [({"device_id": 3}, None), ({}, "numpy"), ({}, "pyarrow")])
def test_a_refusal_of_the_announced_device_is_not_unknown(keywords: dict[str, Any], to: str | None) -> None:
    on_device = Dlpack(abi.make(device=(2, 0)))
    refused = cd.explain(on_device, to=to, **keywords).refused
    assert refused is not None and ("[pointer-device]" in refused or "device type cuda" in refused)
    assert on_device.calls == []


def test_a_shape_that_no_array_has_is_refused_before_the_producer_is_called() -> None:
    on_device = Dlpack(abi.make(device=(2, 0)))
    for call in (cd.view, cd.explain):
        with pytest.raises(ValueError, match="shape-extent"):
            call(on_device, shape=(-2,))
    assert on_device.calls == []


def test_a_stream_for_memory_of_the_cpu_is_refused_and_not_raised() -> None:
    told = cd.explain(np.arange(3.0), stream=5)
    assert told.route == "dlpack" and told.refused is not None and "[stream-cpu]" in told.refused
    # Libraries pass None for the CPU, but for the one that passes on what it is passed.
    for to in ("numpy", "tvm_ffi", "torch"):
        assert cd.explain(np.arange(3.0), to=to, stream=5).refused is None
    told = cd.explain(np.arange(3.0), to="cuda.core", stream=5)
    assert told.refused is not None and "[stream-cpu]" in told.refused
    (remedy,) = told.remedies
    from cuda.core.utils import StridedMemoryView

    assert eval(remedy, {"StridedMemoryView": StridedMemoryView, "v": cd.view(np.arange(3.0))}).shape == (3,)
    with pytest.raises(TypeError):
        cd.explain(np.arange(3.0), to="numpy", stream="five")  # type: ignore[arg-type]


@pytest.mark.parametrize("to", ["numpy", "tvm_ffi", "torch", "pyarrow", "cuda.core"])
@pytest.mark.parametrize(("stream", "rule"), [(0, "stream-zero"), (2**64, "stream-range"), (-2, "stream-range")])
def test_what_is_no_stream_is_refused_for_memory_without_streams(to: str, stream: int, rule: str) -> None:
    try:
        told = cd.explain(np.arange(3.0), to=to, stream=stream).refused or ""
    except ValueError as error:
        told = str(error)
    assert f"[{rule}]" in told or "[stream-cpu]" in told, told
    assert cd.explain(np.arange(3.0), to=to, stream=-1).refused is None


def test_a_warning_that_a_filter_makes_an_error_is_the_refusal() -> None:
    old = array(version=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(cd.VersionWarning) as raised:
            cd.view(old, device_id=0)
        told = cd.explain(old, device_id=0)
    assert (told.route, told.refused, told.warnings) == (None, str(raised.value), ())
    assert cd.explain(old, device_id=0).refused is None


def test_a_consumer_without_the_flag_is_told() -> None:
    held = np.arange(3)
    held.flags.writeable = False
    for producer, to, dropped in [
        (held, "tvm_ffi", "the read-only flag"),
        (held, "numpy", None),
        (np.arange(3), "tvm_ffi", None),
    ]:
        assert cd.explain(producer, to=to).dropped == dropped
    assert "dropped     the read-only flag" in str(cd.explain(held, to="tvm_ffi"))


@pytest.mark.parametrize("text", ["", "first\nsecond"])
def test_an_exception_is_explained_by_its_first_line_or_its_type(text: str) -> None:
    class Failing:
        @property
        def __cuda_array_interface__(self) -> object:
            raise LookupError(text)

        def __dlpack_device__(self) -> object:
            raise LookupError(text)

        __dlpack__ = __dlpack_device__

    found = str(cd.explain(Failing()))
    said = text.split("\n")[0] or "LookupError"
    for name in ("__cuda_array_interface__", "__dlpack__"):
        assert f"{name} ({said}" in found, found
    assert "second" not in found


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128", "float32", "complex64", "int8"])
def test_what_jax_makes_of_64_bits_is_told(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(jax_enable_x64=False)
    is_wide = np.dtype(dtype).itemsize == (16 if dtype.startswith("complex") else 8)
    for module in (None, SimpleNamespace(config=config)):
        monkeypatch.setitem(sys.modules, "jax", module)
        told = cd.explain(np.zeros(3, dtype), to="jax").dropped or ""
        assert ("half the bits of 64-bit types" in told) is is_wide
    config.jax_enable_x64 = True
    assert cd.explain(np.zeros(3, dtype), to="jax").dropped is None


class TestBuilds:
    """Some builds of a library take device memory, some do not."""

    @pytest.mark.parametrize("name", ["jax", "tensorflow", "paddle", "torch", "xgboost", "mpi4py"])
    def test_only_trying_tells(self, name: str) -> None:
        found = cd.explain(array(), to=name, device_id=0)
        assert found.refused is None
        assert found.unknown == (
            f"whether {name}, as it is installed, takes memory of device type cuda: cannot be known without trying"
        )
        assert found.unknown in str(found)
        rows = {row["name"]: row for row in _core._partners()}
        if 1 in rows[name]["calls"][0]["devices"]:
            assert cd.explain(np.zeros(3, np.float32), to=name).unknown is None

    def test_what_else_is_unknown_stays(self, machine: Machine) -> None:
        found = cd.explain(array(stream=machine.stream()), to="jax", device_id=0)
        assert found.unknown is not None
        assert re.match(r"who waits.*: cannot be known without stream=.*; whether jax, as", found.unknown)

    def test_of_a_producer_that_is_not_asked(self) -> None:
        found = cd.explain(Dlpack(abi.make(device=(2, 0))), to="jax")
        assert found.unknown is not None and found.unknown.endswith("cuda: cannot be known without trying")

    @pytest.mark.parametrize(
        ("cuda", "refused", "unknown"), [(None, True, False), ("13.0", False, False), ("no attribute", False, True)]
    )
    def test_a_library_that_is_imported_tells(
        self, cuda: str | None, refused: bool, unknown: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = SimpleNamespace() if cuda == "no attribute" else SimpleNamespace(cuda=cuda)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=version))
        found = cd.explain(array(), to="torch", device_id=0)
        assert (found.refused is not None, found.unknown is not None) == (refused, unknown)
        if found.refused is not None:
            assert found.refused.endswith("[transfer-refused]") and "torch.version.cuda" in found.refused
        assert cd.explain(np.zeros(3), to="torch").refused is None


@pytest.mark.parametrize("pinned", [False, True], ids=["a name alone", "the driver's"])
@pytest.mark.parametrize("device_type", [abi.CUDA_HOST, abi.CUDA_MANAGED])
def test_device_memory_is_advised_only_if_it_can_be_named_so(device_type: int, pinned: bool, machine: Machine) -> None:
    """A producer may call memory pinned or managed that the driver does not know."""
    memory = {abi.CUDA_HOST: machine.pinned_memory, abi.CUDA_MANAGED: machine.managed_memory}
    data = memory[device_type](64) if pinned else None
    view = cd.view(abi.make((3,), device=(device_type, 0), data=data).capsule(), producer_stream=None)
    advised = 0
    for name in ("torch", "cupy", "onnxruntime", "tensorflow", "jax", "paddle"):
        found = cd.explain(view, to=name)
        presented = [line for line in found.remedies if "present_as" in line]
        advised += len(presented)
        assert ("present_as" in (found.refused or "")) == bool(presented)
    assert (advised > 0) == pinned
    if not pinned:
        with pytest.raises(BufferError):
            view.present_as("cuda")


@pytest.mark.parametrize("fault", [{"dtype": (77, 8, 1)}, {"data": 0}, {"ndim": -1}, {}])
def test_the_device_that_is_announced_is_judged_before_the_producer_is_asked(fault: dict[str, Any]) -> None:
    """Of a tensor with two faults, `explain`, which does not ask for it, and `view` name the same one."""
    tensor = abi.make(**{"device": (abi.CUDA, 5), "data": 4096, **fault})
    producer = Dlpack(tensor)
    found = cd.explain(producer, device_id=0)
    with pytest.raises(cd.Refusal) as refused:
        cd.view(producer, device_id=0)
    assert found.refused == str(refused.value).partition("\n")[0]
    assert refused.value.rule == "pointer-device"


@pytest.mark.parametrize("is_crossed", [False, True])
def test_greenlets_of_one_thread_have_warnings_of_their_own(is_crossed: bool, machine: Machine) -> None:
    """They begin and end in any order, and another one imports meanwhile."""
    import greenlet

    main, found = greenlet.getcurrent(), dict[str, cd.Explanation]()

    class Switches:
        def __init__(self, is_undeclared: bool) -> None:
            self.goes, self.is_undeclared = True, is_undeclared

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            if self.goes:
                self.goes = False
                main.switch()
            stream = 0 if self.is_undeclared else None
            return {"shape": (3,), "typestr": "<f4", "data": (0x1000, False), "version": 3, "stream": stream}

    def explain(name: str, is_undeclared: bool) -> None:
        found[name] = cd.explain(Switches(is_undeclared), device_id=0)

    def warned() -> int:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            cd.view(SimpleNamespace(__cuda_array_interface__=undeclared), device_id=0)
        return len(seen)

    undeclared = {"shape": (3,), "typestr": "<f4", "data": (0x1000, False), "version": 3, "stream": 0}
    first, second = (
        greenlet.greenlet(lambda name=name: explain(name, name == "first")) for name in ("first", "second")
    )
    first.switch()
    second.switch()
    assert warned() == 1
    for each in (first, second) if is_crossed else (second, first):
        each.switch()
    assert first.dead and second.dead
    assert (len(found["first"].warnings), len(found["second"].warnings)) == (1, 0)
    assert warned() == 1


@pytest.mark.parametrize("is_crossed", [False, True])
def test_greenlets_of_one_thread_have_trials_of_their_own(is_crossed: bool, machine: Machine) -> None:
    """Each has its own notes of its producer."""
    import greenlet

    main, found = greenlet.getcurrent(), dict[str, cd.Explanation]()

    class Waits(Dlpack):
        """One that would make a stream wait, so that `__dlpack__` is not called."""

        def __dlpack_device__(self) -> Any:
            main.switch()
            return super().__dlpack_device__()

    def explain(name: str) -> None:
        made = abi.make() if name == "second" else abi.make(device=(abi.CUDA, 0), data=machine.device_memory(64))
        found[name] = cd.explain(Waits(made))

    first, second = (greenlet.greenlet(lambda name=name: explain(name)) for name in ("first", "second"))
    first.switch()
    second.switch()
    order = [first, second] if is_crossed else [second, first]
    while not (first.dead and second.dead):
        for each in order:
            if not each.dead:
                each.switch()
    assert found["first"].unknown is not None and found["first"].refused is None
    assert found["second"].unknown is None and found["second"].refused is None


def test_another_thread_with_a_copy_of_the_context_has_its_warnings(machine: Machine) -> None:
    undeclared = {"shape": (3,), "typestr": "<f4", "data": (0x1000, False), "version": 3, "stream": 0}
    seen = list[int]()

    class Asks:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(view,))
            thread.start()
            thread.join()
            return undeclared

    def view() -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            cd.view(SimpleNamespace(__cuda_array_interface__=undeclared), device_id=0)
        seen.append(len(found))

    assert len(cd.explain(Asks(), device_id=0).warnings) == 1
    assert seen and set(seen) == {1}
