"""KvikIO, UCXX, cuda.compute and CuTe DSL read views, on the simulated driver: as their rows of the table say.

The driver does what is pending when somebody waits for it, and not before. KvikIO writes and reads files, of the host's
and of a device's memory; UCXX sends and receives, of the host's alone: its transports for a device need one. Of
cuda.compute and CuTe DSL it is what reads an argument: their kernels are not compiled.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest
from cai_dlpack import _core

from conformance.matrix import silent
from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]

ROWS = {row["name"]: row for row in _core._partners()}


def pending(machine: Machine, values: np.ndarray[Any, Any]) -> cd.CaiView:
    return on_device(machine, values, machine.stream(), False)


def cute(view: cd.CaiView) -> silent.Argument:
    from cutlass.cute.runtime import from_dlpack

    assert view.itemsize is not None
    return silent.cute(from_dlpack(view), view.itemsize)


READERS = {
    "cuda.compute": silent.compute,
    "kvikio": lambda view: silent.array_of("kvikio", view),
    "ucxx": lambda view: silent.array_of("ucxx", view),
    "cutlass.cute": cute,
}


#: Types that few libraries have, some of which have no format in a buffer.
ODD: list[np.dtype[Any]] = [
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype("|S4"),
    np.dtype("<M8[s]"),
    np.dtype([("x", "<f4"), ("y", "<i2")]),
]


def of_host(chosen: random.Random) -> cd.CaiView:
    """A view of memory of the host, now and then read-only, backwards, or of a type that few libraries have."""
    array = drawn(chosen)
    if array.ndim and chosen.random() < 0.2:
        array = array[::-1]
    if chosen.random() < 0.2:
        array = np.zeros((2, 3), chosen.choice(ODD))
    if chosen.random() < 0.3:
        array = array.view()
        array.flags.writeable = False
    return cd.view(array)


@pytest.mark.parametrize("memory", ["device", "host"])
@pytest.mark.parametrize("name", READERS)
def test_what_explain_says_is_taken_is_read_and_nothing_else(lazy: Machine, name: str, memory: str) -> None:
    chosen, stream = random.Random(name), lazy.stream()
    seen = set()
    for _ in range(400):
        of_device = memory == "device"
        view = on_device(lazy, drawn(chosen), stream, chosen.random() < 0.3) if of_device else of_host(chosen)
        refused = cd.explain(view, to=name).refused
        try:
            read = READERS[name](view)
        except Exception:
            read = None
        assert (read is None) == (refused is not None), (view, refused)
        seen.add(refused is None)
        if read is None:
            continue
        # Without elements there is no address; a buffer has one all the same.
        assert read.shape == view.shape and (read.ptr == view.ptr or (memory == "host" and not view.size))
        interface = getattr(view, "__cuda_array_interface__", {"typestr": f"|V{view.itemsize}", "strides": None})
        assert read.typestr == (f"|V{view.itemsize}" if name == "cutlass.cute" else interface["typestr"])
        assert of_steps(view, read.strides) in (of_steps(view, view.byte_strides), interface["strides"])
    assert seen == ({False} if (name, memory) == ("cuda.compute", "host") else {True, False})


def of_steps(view: cd.CaiView, strides: tuple[int, ...] | None) -> Any:
    """The strides of axes on which there is a second element; those of an array without elements lead nowhere."""
    if strides is None or not view.size:
        return None
    return tuple(step for extent, step in zip(view.shape, strides, strict=True) if extent > 1)


@pytest.mark.parametrize("name", READERS)
def test_nobody_waits_as_the_row_says(lazy: Machine, name: str) -> None:
    view = pending(lazy, np.arange(6.0))
    lazy.clear()
    READERS[name](view)
    assert (ROWS[name]["calls"][0]["waits"] == "nobody waits") == (lazy.order() == [])


def test_kvikio_writes_what_is_ready(lazy: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIKIO_COMPAT_MODE", "ON")
    import kvikio

    values = np.arange(1000.0)

    def written(view: Any) -> np.ndarray[Any, Any]:
        with kvikio.CuFile(tmp_path / "array", "w") as file:
            assert file.write(view) == values.nbytes
        return np.fromfile(tmp_path / "array")

    assert np.array_equal(written(pending(lazy, values).synchronize()), values)
    assert np.array_equal(written(cd.view(values)), values)
    # The control: it asks for no stream.
    assert not np.array_equal(written(pending(lazy, values)), values)

    into = pending(lazy, np.zeros(1000)).synchronize()
    values.tofile(tmp_path / "array")
    with kvikio.CuFile(tmp_path / "array", "r") as file:
        assert file.read(into) == values.nbytes
    assert lazy.read(into.ptr, values.nbytes) == values.tobytes()


def sent_by_ucxx(view: Any) -> np.ndarray[Any, Any]:
    """What arrives of an array of 1000 float64."""
    import ucxx

    async def exchange() -> np.ndarray[Any, Any]:
        ucxx.reset()
        ucxx.init(options={"TLS": "tcp,self"})
        received: asyncio.Future[np.ndarray[Any, Any]] = asyncio.get_running_loop().create_future()

        async def serve(endpoint: Any) -> None:
            into = np.zeros(1000)
            await endpoint.recv(cd.view(into).synchronize())
            received.set_result(into)
            await endpoint.close()

        listener = ucxx.create_listener(serve)
        endpoint = await ucxx.create_endpoint("127.0.0.1", listener.port)
        await endpoint.send(view)
        found = await received
        await endpoint.close()
        listener.close()
        return found

    return asyncio.run(asyncio.wait_for(exchange(), 30))


def test_ucxx_sends_and_receives() -> None:
    values = np.arange(1000.0)
    assert np.array_equal(sent_by_ucxx(cd.view(values).synchronize()), values)


def test_ucxx_sends_what_lies_between_and_explain_says_that_it_takes_no_such_array(lazy: Machine) -> None:
    values = np.arange(2000.0)
    assert np.array_equal(sent_by_ucxx(values[::2]), values[:1000])
    strided = on_device(lazy, values[::2], lazy.stream(), False)
    assert cd.explain(strided, to="ucxx").refused is not None
