"""The calls that order a consumer after the producer's stream: the ways into the same plan of waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd

Face = Callable[[cd.CaiView, int], Any]


def consume(view: cd.CaiView, stream: int) -> Any:
    """Enters and leaves the block; returns its return edge."""
    with view.consume(stream) as lent:
        return lent.return_edge


def consume_async(view: cd.CaiView, stream: int) -> Any:
    """Does so in a coroutine."""

    async def inside() -> Any:
        async with view.consume(stream) as lent:
            return lent.return_edge

    return asyncio.run(inside())


# For a consumer on a stream, and for the host.
STREAM_FACES: dict[str, Face] = {
    "on": lambda view, stream: view.on(stream),
    "dlpack": lambda view, stream: view.__dlpack__(stream=stream, max_version=(1, 3)),
    "to-dlpack": lambda view, stream: cd.to_dlpack(view, stream=stream),
    "join": lambda view, stream: cd.join([view], on=stream),
    "consume": consume,
    "consume-async": consume_async,
}
HOST_FACES: dict[str, Face] = {
    "synchronize": lambda view, _: view.synchronize(),
    "host": lambda view, _: cd.to_dlpack(view, stream="host"),
    "wait": lambda view, _: asyncio.run(view.wait()),
}
