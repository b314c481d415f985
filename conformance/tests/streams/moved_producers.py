"""Producers with a table of the C Exchange API that go to another stream after the import, and routes to a consumer.

Shared by tests and random programs. A route reads the array on the consumer's stream; the producer's later writes have
to wait for that, on whatever stream it works by then.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi, exchange

#: DLPack's devices of each kind of memory.
KINDS = {"device": (abi.CUDA, 0), "pinned": (abi.CUDA_HOST, 0), "managed": (abi.CUDA_MANAGED, 0)}


@dataclass
class Moving:
    """A library whose arrays come by its table, and whose current stream changes."""

    producer: exchange.Producer
    array: Any

    @classmethod
    def of(cls, address: int, device: tuple[int, int], stream: int, **described: Any) -> Moving:
        """`described` is the array's shape and type, if not those of `abi.make`."""
        producer = exchange.Producer(abi.make(device=device, data=address, **described))
        producer.stream = stream
        kind = exchange.make_type(exchange.capsule(exchange.table(producer)), producer)
        return cls(producer, kind())

    def go(self, stream: int) -> None:
        """Makes another stream the library's current one."""
        self.producer.stream = stream


@dataclass
class Use:
    """What a consumer does: it reads on `stream`; `between` is a stream of its own that data may pass.

    `move` is called where the producer goes to its other stream; `read` enqueues the read of an address.
    """

    stream: int
    between: int
    move: Callable[[], None]
    read: Callable[[int], None]

    def copy(self, view: cd.CaiView) -> None:
        made = view.__dlpack__(stream=self.stream, copy=True, max_version=(1, 3))
        tensor = abi.consume(made)
        self.read(tensor.data)
        abi.release(tensor)

    def inside(self, lent: cd.CaiView) -> str | None:
        """Reads a lent view; what the end of its block is going to do."""
        self.read(lent.ptr)
        self.move()
        return lent.return_edge

    def lend(self, view: cd.CaiView) -> str | None:
        with view.consume(self.stream) as lent:
            return self.inside(lent)


Route = Callable[[cd.CaiView, Use], "str | None"]


def _copied(view: cd.CaiView, use: Use) -> None:
    use.move()
    use.copy(view)


def _copied_in(view: cd.CaiView, use: Use) -> None:
    use.move()
    made = cd.from_dlpack(view, copy=True, stream=use.stream)
    use.read(made.ptr)


def _copied_in_a_loan(view: cd.CaiView, use: Use) -> str | None:
    with view.consume(use.between) as lent:
        use.move()
        use.copy(lent)
        return lent.return_edge


def _nested(view: cd.CaiView, use: Use) -> str | None:
    with view.consume(use.between) as lent:
        return use.lend(lent)


def _async(view: cd.CaiView, use: Use) -> str | None:
    async def inside() -> str | None:
        async with view.consume(use.stream) as lent:
            return use.inside(lent)

    return asyncio.run(inside())


def _never_left(view: cd.CaiView, use: Use) -> None:
    block = view.consume(use.stream)
    use.inside(block.__enter__())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cd.ConsumeWarning)
        del block
        gc.collect()


LOANS: dict[str, Route] = {
    "consume": lambda view, use: use.lend(view),
    "consume-async": _async,
    "nested": _nested,
    "never-left": _never_left,
    "after-on": lambda view, use: use.lend(view.on(use.between)),
    "after-join": lambda view, use: use.lend(cd.join([view], on=use.between)[0]),
    "after-synchronize": lambda view, use: use.lend(view.synchronize()),
    "after-wait": lambda view, use: use.lend(asyncio.run(view.wait())),
    "of-a-view": lambda view, use: use.lend(cd.view(view.on(use.between))),
    "of-another-shape": lambda view, use: use.lend(cd.view(view, shape=(6,)).on(use.between)),
}
COPIES: dict[str, Route] = {
    "copy": _copied,
    "copy-by-from-dlpack": _copied_in,
    "copy-in-a-loan": _copied_in_a_loan,
    "copy-after-on": lambda view, use: _copied(view.on(use.between), use),
    "copy-after-synchronize": lambda view, use: _copied(view.synchronize(), use),
}
ROUTES = LOANS | COPIES
