"""Issues of other projects, tried: one test for each row of docs/field.md, of its name."""

from __future__ import annotations

import re
import sys
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi
from cuda.core.utils import StridedMemoryView
from numba import cuda

from conformance.tests.doubles import consumers
from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.capture import RELAXED, Captures
from conformance.tests.simulated.machine import Machine

ROW = re.compile(r"^\| \[(?P<project>[\w-]+) #(?P<number>\d+)\]\((?P<link>https://\S+)\) \|", re.MULTILINE)


def array(machine: Machine, **changes: Any) -> Cai:
    return Cai(interface(**{"data": (machine.device_memory(4096), False), **changes}))


def test_numba_4719(machine: Machine) -> None:
    made = cuda.to_device(np.arange(6.0))
    tensor = tvm_ffi.from_dlpack(cd.view(made))
    assert tensor.data_ptr() == made.device_ctypes_pointer.value
    ready, consumer = machine.stream(), machine.stream()
    view = cd.view(made, producer_stream=ready)
    machine.clear()
    view.__dlpack__(stream=consumer, max_version=(1, 3))
    assert machine.order() == [("cuEventRecord", ready), ("cuStreamWaitEvent", consumer)]


def test_pytorch_32868(machine: Machine) -> None:
    constant = cd.view(array(machine, data=(machine.device_memory(4096), True)))
    with pytest.raises(TypeError, match="read only"):
        consumers.torch(constant)
    capsule = constant.__dlpack__(stream=1, max_version=(1, 0))
    assert abi.read(capsule).flags == abi.READ_ONLY


def test_pytorch_54139() -> None:
    """The recipe runs in test_docs_recipes, with a double that demands a device; `to` takes the call by DLPack."""
    recipe = (ROOT / "docs" / "streams.md").read_text(encoding="utf-8")
    assert 'torch.as_tensor(v.on(current), device="cuda")' in recipe and "torch.as_tensor(v.on(current))" not in recipe
    assert cd.explain(np.zeros(3), to="torch").call == "torch.from_dlpack(v)"


def test_cupy_10172(machine: Machine) -> None:
    pointer = machine.device_memory(4096)
    # -8 bytes, taken for an unsigned number of bytes and divided by the item size.
    wrong = (2**64 - 8) // 4
    tensor = abi.make((6,), strides=(wrong,), device=(2, 0), data=pointer)
    capsule = tensor.capsule()
    assert refuse(lambda: cd.view(capsule), ValueError).rule == "span-overflow"

    class Both(Dlpack):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return interface(shape=(6,), strides=(-8,), data=(pointer + 64, False))

    view = cd.view(Both(abi.make((6,), strides=(wrong,), device=(2, 0), data=pointer)))
    assert (view.elem_strides, view.ptr) == ((-2,), pointer + 64)


def test_nanobind_1241(machine: Machine) -> None:
    """It asks without a stream, and the data is ready on a captured one; bindings/test_nanobind has the module."""
    stream = machine.stream()
    view, captures = cd.view(array(machine, stream=stream)), Captures(machine)
    captures.begin(stream, RELAXED)
    try:
        refused = refuse(lambda: view.__dlpack__(max_version=(1, 1)), BufferError)
        assert refused.rule == "capture-legacy" and refused.message == cd.explain(view, to="nanobind").refused
        with cd.use_stream(stream):
            assert abi.read(view.__dlpack__(max_version=(1, 1))).data == view.ptr
    finally:
        captures.close()


def test_cutlass_3359(machine: Machine) -> None:
    view = cd.view(array(machine))
    assert abi.name(view.__dlpack__()) == abi.LEGACY
    assert abi.name(view.__dlpack__(stream=1, max_version=(1, 0))) == abi.VERSIONED
    assert abi.name(cd.to_dlpack(array(machine))) == abi.LEGACY


def test_cutile_python_88(machine: Machine) -> None:
    """The capsule's deleter ends the consumer's share, and not the array that the view holds."""
    ready, launch = machine.stream(), machine.stream()
    made = array(machine, stream=ready)
    view = cd.view(made)
    machine.clear()
    ordered = view.on(launch)
    assert machine.order() == [("cuEventRecord", ready), ("cuStreamWaitEvent", launch)]
    references = sys.getrefcount(made)
    capsule = ordered.__dlpack__(stream=-1)
    assert abi.read(capsule).data == view.ptr
    del capsule
    assert sys.getrefcount(made) == references and ordered.owner is made


def test_jax_40789(machine: Machine) -> None:
    constant = cd.view(array(machine, data=(machine.device_memory(4096), True)))
    told = cd.explain(constant, to="jax", stream=1)
    assert told.refused is not None and "read-only" in told.refused
    assert "jax.dlpack.from_dlpack(cd.view(v, read_only=False))" in told.remedies
    assert abi.read(cd.view(constant, read_only=False).__dlpack__(stream=1)).data == constant.ptr


def test_cudf_19122(machine: Machine) -> None:
    mask = array(machine, shape=(6,), typestr="|b1")
    masked = array(machine, shape=(6,), mask=mask)
    assert refuse(lambda: cd.view(masked), BufferError).rule == "mask-present"
    values, missing = cd.split_masked(masked)
    assert missing is not None
    assert (values.ptr, values.shape) == (masked.__cuda_array_interface__["data"][0], (6,))
    assert missing.ptr == mask.__cuda_array_interface__["data"][0] and missing.dtype == "bool"


@needs.numba_cuda
def test_numba_cuda_mlir_181(machine: Machine) -> None:
    """What a kernel captures is looked for by `is_cuda_array`, and read once, when the kernel is compiled."""
    ready = machine.stream()
    pointer = machine.device_memory(4096)
    made = Dlpack(abi.make((6,), device=(2, 0), data=pointer))
    assert not cuda.is_cuda_array(made)
    captured = cd.view(made, producer_stream=ready)
    assert cuda.is_cuda_array(captured)
    read = captured.__cuda_array_interface__
    assert (read["data"], read["shape"], read["stream"]) == ((pointer, False), (6,), ready)
    machine.clear()
    assert cuda.is_cuda_array(captured.synchronize())
    assert machine.order() == [("cuStreamSynchronize", ready)]


def test_cccl_6883(machine: Machine) -> None:
    """It reads the dict of whatever has one, and no stream; bindings that read `data[0]` have its double."""
    ready, work = machine.stream(), machine.stream()
    made = Dlpack(abi.make((6,), device=(2, 0), data=machine.device_memory(4096)))
    with pytest.raises(AttributeError):
        consumers.cuda_compute(made)
    view = cd.view(made, producer_stream=ready)
    machine.clear()
    assert consumers.cuda_compute(view.on(work)) == view.ptr
    assert machine.order() == [("cuEventRecord", ready), ("cuStreamWaitEvent", work)]


def test_cuda_python_1624(machine: Machine) -> None:
    """It takes bfloat16 today; what it refuses to export, the view that it was made of exports."""
    pointer = machine.device_memory(4096)
    producer = Dlpack(abi.make((6,), dtype=(abi.BFLOAT, 16, 1), device=(2, 0), data=pointer))
    view = cd.view(producer)
    taken = StridedMemoryView.from_dlpack(view, stream_ptr=1)
    assert (taken.ptr, str(taken.dtype), taken.shape) == (pointer, "bfloat16", (6,))
    with pytest.raises(BufferError, match="bfloat16"):
        taken.__dlpack__(stream=1)
    tensor = tvm_ffi.from_dlpack(view)
    assert (tensor.data_ptr(), str(tensor.dtype)) == (pointer, "bfloat16")


def test_tensorflow_78091(machine: Machine) -> None:
    """`device` names a GPU, and the memory is the CPU's: what is exported counts, and a copy is asked for."""
    numbers = np.arange(6, dtype=np.int32)

    class EagerTensor(Dlpack):
        __module__ = "tensorflow.python.framework.ops"
        device = "/job:localhost/replica:0/task:0/device:GPU:0"

        def __dlpack__(self, stream: Any = None) -> object:  # type: ignore[override]
            return self.made.capsule()

        __dlpack_device__ = lambda self: (abi.CPU, 0)  # noqa: E731

    def made() -> EagerTensor:
        return EagerTensor(abi.make((6,), dtype=(abi.INT, 32, 1), data=numbers.ctypes.data))

    assert (cd.view(made()).device, cd.view(made()).ptr) == ((1, 0), numbers.ctypes.data)
    told = cd.explain(made(), to="cupy")
    assert told.refused is not None and "cupy takes no memory of device type cpu" in told.refused
    assert told.remedies == ('cupy.from_dlpack(cd.from_dlpack(v, device="cuda"))',)
    copied = cd.from_dlpack(made(), device="cuda")
    assert copied.device == (2, 0)
    copied.synchronize()
    assert machine.read(copied.ptr, 24) == numbers.tobytes()


def test_each_row_has_its_test() -> None:
    text = (ROOT / "docs" / "field.md").read_text(encoding="utf-8")
    rows = list(ROW.finditer(text))
    named = {f"test_{row['project'].replace('-', '_')}_{row['number']}" for row in rows}
    assert named == {name for name in globals() if re.fullmatch(r"test_\w+_\d+", name)}
    assert all(row["link"].endswith(f"/{row['project']}/issues/{row['number']}") for row in rows)
    assert len(rows) == text.count("\n| [") and len(rows) > 8
