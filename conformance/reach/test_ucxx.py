"""UCXX sends and fills memory of the host by views, over TCP. Device memory needs a GPU: `make gpu PARTS=reach`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import ucxx
from ucxx._lib.arr import Array

from conformance.tests.reach.page import stated


def carried(sent: Callable[[], Any], into: Callable[[], Any]) -> None:
    """One message within this process; each end makes what it gives to UCXX."""

    async def exchange() -> None:
        ucxx.reset()
        ucxx.init(options={"TLS": "tcp,self"})
        arrived = asyncio.Event()

        async def serve(endpoint: Any) -> None:
            await endpoint.recv(into())
            arrived.set()
            await endpoint.close()

        listener = ucxx.create_listener(serve)
        endpoint = await ucxx.create_endpoint("127.0.0.1", listener.port)
        await endpoint.send(sent())
        await arrived.wait()
        await endpoint.close()
        listener.close()

    asyncio.run(asyncio.wait_for(exchange(), 30))


def test_what_arrives_is_what_left() -> None:
    values, into = np.arange(1000.0), np.zeros(1000)
    carried(lambda: cd.view(values).synchronize(), lambda: cd.view(into).synchronize())
    assert np.array_equal(into, values)


@pytest.mark.parametrize("read_only", [False, True])
def test_it_is_given_the_memory_of_the_view_itself(read_only: bool) -> None:
    values, into = np.arange(1000.0), np.zeros(1000)
    view, target = cd.view(values, read_only=read_only).synchronize(), cd.view(into).synchronize()
    taken = Array(view), Array(target)
    assert stated("ucxx", "host") == (0, 0)
    assert [each.ptr for each in taken] == [view.ptr, target.ptr] == [values.ctypes.data, into.ctypes.data]
    carried(lambda: taken[0], lambda: taken[1])
    assert np.array_equal(into, values)
