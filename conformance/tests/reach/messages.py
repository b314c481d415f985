"""A view on its way, within one process: as Dask's serializers send it, and as pickle does."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import cai_dlpack as cd


class Sent(NamedTuple):
    """What is on the way: what describes it, and its bytes on the host."""

    header: Any
    frames: list[Any]


def sent(engine: str, view: cd.CaiView) -> Sent:
    if engine == "dask":
        from cai_dlpack import dask
        from distributed.protocol import serialize

        dask.register()
        return Sent(*serialize(view, serializers=["dask"], on_error="raise"))
    frames: list[Any] = []
    return Sent(pickle.dumps(view, 5, buffer_callback=frames.append), frames)


def received(engine: str, message: Sent) -> cd.CaiView:
    if engine == "dask":
        from cai_dlpack import dask
        from distributed.protocol import deserialize

        dask.register()
        found: cd.CaiView = deserialize(*message)
        return found
    loaded: cd.CaiView = pickle.loads(message.header, buffers=message.frames)
    return loaded
