"""Arrays that leave the process, on a device with what is still to be written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine

TYPES = ("|b1", "|u1", "<i2", "<f4", "<f8", "<c16")


def drawn(chosen: random.Random) -> np.ndarray[Any, Any]:
    """A part of an array with axes in any order; strides are positive or zero, as `numpy.broadcast_to` makes them."""
    shape = [chosen.choice((0, 1, 2, 3, 5)) for _ in range(chosen.randrange(4))]
    whole = np.zeros([extent * 2 for extent in shape], chosen.choice(TYPES))
    whole[...] = np.arange(whole.size).reshape(whole.shape)
    part = whole[tuple(slice(None, None, 2) if chosen.random() < 0.5 else slice(extent) for extent in shape)]
    part = part.transpose(chosen.sample(range(part.ndim), part.ndim))
    return np.broadcast_to(part, (2, *part.shape)) if chosen.random() < 0.2 else np.asarray(part)


def on_device(machine: Machine, array: np.ndarray[Any, Any], stream: int, read_only: bool) -> cd.CaiView:
    """The array in device memory, which `stream` has still to write."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    data = machine.device_memory(max(base.nbytes, 1))
    machine.write(data, b"\xee" * base.nbytes)
    if base.nbytes:
        machine.control.store(stream, data, base.tobytes())
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    described = interface(
        shape=array.shape,
        typestr=array.dtype.str,
        strides=array.strides,
        data=(data + offset if array.size else 0, read_only),
        stream=stream,
    )
    return cd.view(Cai(described), device_id=0)


@pytest.fixture
def lazy(machine: Machine) -> Iterator[Machine]:
    """What is pending is done when somebody waits for it, and not before."""
    before = machine.control.schedule
    machine.control.schedule = "lazy"
    yield machine
    machine.control.schedule = before
