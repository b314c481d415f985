"""Random programs of asyncio tasks with `policy` and `use_stream` blocks, beside a model: shared by tests and soak.

Tasks enter and leave blocks in any order, share block objects, start tasks of their own and give way to one another.
The model is a list of open blocks for each task, which a new task gets a copy of.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import cai_dlpack as cd
from cai_conformance import abi, exchange

from conformance.tests.interpreter.threads import THREADS_INHERIT
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.race import Calls, Track

_TABLE = exchange.table_of(cd.CaiView)
_work_stream = exchange.WorkStream(_TABLE.work_stream)


def work_stream(device: int = 0) -> int:
    """Returns the work stream that the exchange table reports; 0 is the legacy default stream."""
    out = ctypes.c_void_p(0xBAD)
    assert _work_stream(abi.CUDA, device, ctypes.byref(out)) == 0
    return out.value or 0


@dataclass(frozen=True)
class Setting:
    """A block: its object, and the policy or the stream (with its device) that it sets."""

    block: Any
    policy: str | None = None
    stream: tuple[int, int] | None = None


@dataclass(frozen=True)
class Open:
    """A block that is open in a task; `is_own`: entered in that very task."""

    setting: Setting
    is_own: bool = True


Facts: TypeAlias = tuple[str, int, int]


def expected(blocks: list[Open]) -> Facts:
    """Returns the policy and the work streams of the two devices that these blocks set."""
    policy, streams = "event", {0: 0, 1: 0}
    for each in blocks:
        if each.setting.policy:
            policy = each.setting.policy
        if each.setting.stream:
            device, stream = each.setting.stream
            streams[device] = stream
    return policy, streams[0], streams[1]


class Programs:
    """Runs programs over the streams of a track, each of its own seed."""

    def __init__(self, track: Track) -> None:
        self.track, self.wrong = track, 0
        self.view = track.view(track.a)
        self.calls: dict[str, Calls] = {
            "event": one_event(track.a, track.b),
            "host": [("cuStreamSynchronize", track.a)],
            "none": [],
        }
        self.words = {"waits for an event": "event", "the host waits": "host", "nothing to do": "none"}
        self.words["nobody waits"] = "none"

    def found(self) -> Facts:
        """Returns what the library reads in the current context, by `explain` and the exchange table."""
        order = cd.explain(self.view, stream=self.track.b).order
        assert order is not None
        return next(name for words, name in self.words.items() if words in order), work_stream(0), work_stream(1)

    def made(self) -> str:
        """Returns the policy by which an export is ordered."""
        self.track.machine.clear()
        self.view.__dlpack__(stream=self.track.b, max_version=(1, 3))
        made = self.track.machine.order()
        return next((name for name, calls in self.calls.items() if calls == made), str(made))

    def wrongs(self, seed: int) -> int:
        """Runs the program of this seed; returns how often the library read something else than the model."""
        self.random, self.wrong = random.Random(seed), 0
        streams = [(0, self.track.a), (0, self.track.b), (1, self.track.b)]
        self.settings = [Setting(cd.policy(sync=sync), policy=sync) for sync in ("event", "host", "none")]
        self.settings += [Setting(cd.use_stream(each[1], device_id=each[0]), stream=each) for each in streams]
        self.left = 60
        asyncio.run(self._both())
        self.wrong += self.found() != ("event", 0, 0)
        return self.wrong

    async def _both(self) -> None:
        await asyncio.gather(self._task([]), self._task([]))

    async def _task(self, blocks: list[Open]) -> None:
        inherited = [replace(each, is_own=False) for each in blocks]
        blocks, started = [*inherited], list[asyncio.Task[None]]()
        steps: list[Callable[[list[Open]], None]] = [self._enter, self._enter, self._leave, self._leave]
        while self.left > 0:
            self.left -= 1
            kind = self.random.randrange(8)
            if kind < len(steps):
                steps[kind](blocks)
            elif kind == 4 and len(started) < 2:
                started.append(asyncio.create_task(self._task(list(blocks))))
            elif kind == 5:
                await self._elsewhere(blocks)
            else:
                await asyncio.sleep(0)
            self._compare(blocks)
        for task in started:
            await task
        while len(own := [each for each in blocks if each.is_own]) > 0:
            self._leave(blocks, self.random.choice(own))
        self.wrong += blocks != inherited
        self._compare(blocks)

    def _enter(self, blocks: list[Open]) -> None:
        setting = self.random.choice(self.settings)
        assert setting.block.__enter__() is setting.block
        blocks.append(Open(setting))

    def _leave(self, blocks: list[Open], one: Open | None = None) -> None:
        setting = (one or Open(self.random.choice(self.settings))).setting
        at = max((at for at, each in enumerate(blocks) if each.setting is setting), default=None)
        try:
            setting.block.__exit__(None, None, None)
        except RuntimeError:
            is_left = False
        else:
            is_left = True
        is_own = at is not None and blocks[at].is_own
        self.wrong += is_left != is_own
        if at is not None and is_own:
            del blocks[at]

    async def _elsewhere(self, blocks: list[Open]) -> None:
        """`asyncio.to_thread` copies the context, and a new thread begins with an empty one (`THREADS_INHERIT`)."""
        before = expected(blocks)
        self.wrong += await asyncio.to_thread(self.found) != before
        seen: list[Facts] = []
        thread = threading.Thread(target=lambda: seen.append(self.found()))
        thread.start()
        thread.join()
        self.wrong += seen != [before if THREADS_INHERIT else expected([])]

    def _compare(self, blocks: list[Open]) -> None:
        self.wrong += (self.found(), self.made()) != (expected(blocks), expected(blocks)[0])
