"""Enters and leaves blocks, by random programs, with an allocation that fails; prints what came out wrong.

A program, for a process of its own on the simulated driver: `_testcapi.set_nomemory` is the process's. What is open is
compared with a list: a call that raises has changed nothing, and can be made again.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import contextvars
import random
import sys
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
from cai_conformance import Sim, abi

from conformance.tests.doubles.producers import Dlpack, cai
from conformance.tests.faults.world import Simulated

LEGACY, PER_THREAD = 1, 2
PROGRAMS, STEPS = 300, 12
#: An allocation beyond those of a call: none fails.
NONE = 1 << 30


def attempt(call: Callable[[], Any], nth: int) -> Any:
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        return call()
    except BaseException as error:  # a panic is no Exception
        return error.with_traceback(None)
    finally:
        _testcapi.remove_mem_hooks()


class Blocks:
    """Blocks of two streams and of a strict policy, and those of them that are open, outermost first."""

    def __init__(self, world: Simulated) -> None:
        self.array = Dlpack(abi.make(device=(abi.CUDA, 0), data=world.address("device")))
        self.view = cd.view(cai(stream=world.a, data=(world.address("device"), False)), device_id=0)
        self.undeclared = cai(version=2, stream=..., data=(world.address("device"), False))
        self.streams = {cd.use_stream(stream, device_id=0): stream for stream in (world.a, world.b, world.a)}
        self.policies = [cd.policy(strict=True), cd.policy(strict=False)]
        self.all: list[Any] = [*self.streams, *self.policies]
        self.open: list[Any] = []

    def step(self, draw: random.Random) -> tuple[bool, str | None]:
        """Enters or leaves one; whether memory was lacking, and what was wrong."""
        is_leaving = bool(self.open) and draw.random() < 0.5
        block = draw.choice(self.open if is_leaving else self.all)
        nth = draw.choice([NONE, *range(12)])
        enter, leave = block.__enter__, block.__exit__
        result = attempt(lambda: leave(None, None, None) if is_leaving else enter(), nth)
        if not isinstance(result, BaseException):
            self.forget(block) if is_leaving else self.open.append(block)
        elif is_leaving or not isinstance(result, MemoryError):  # Leaving needs no memory.
            return True, f"allocation {nth} of {'leaving' if is_leaving else 'entering'} {block}: {result!r}"
        return isinstance(result, MemoryError), self.compared(f"{'left' if is_leaving else 'entered'} by {nth}")

    def in_a_copy(self, draw: random.Random) -> str | None:
        """A block cannot be left in a copy of its context, whatever has failed before, or fails then."""
        if not self.open:
            return None
        leave, nth = draw.choice(self.open).__exit__, draw.choice([NONE, *range(40)])
        copy = contextvars.copy_context()
        result = copy.run(attempt, lambda: leave(None, None, None), nth)
        # A SystemError is CPython's own: it lacks the memory for the step between a function and who handles its error.
        if type(result) not in ((RuntimeError,) if nth == NONE else (RuntimeError, MemoryError, SystemError)):
            return f"allocation {nth} of leaving in a copy: {result!r}"
        after = f"refused in a copy by {nth}"
        return copy.run(self.compared, after) or self.compared(after)

    def handed_over(self, draw: random.Random) -> tuple[bool, str | None]:
        """The block of a call that names the library's work stream ends with the call."""
        nth = draw.randrange(40)
        result = attempt(lambda: cd.to(self.view, "tvm_ffi", stream=PER_THREAD), nth)
        return isinstance(result, MemoryError), self.compared(f"handed over with allocation {nth}")

    def forget(self, block: Any) -> None:
        innermost = len(self.open) - 1 - self.open[::-1].index(block)
        del self.open[innermost]

    def compared(self, after: str) -> str | None:
        streams = [self.streams[block] for block in self.open if block in self.streams]
        policies = [self.policies.index(block) for block in self.open if block in self.policies]
        expected = [LEGACY, *streams][-1], [1, *policies][-1] == 0
        found = cd.from_dlpack(self.array).stream, cd.explain(self.undeclared).refused is not None
        return None if found == expected else f"{after}: {found} for {expected}"

    def run(self, draw: random.Random) -> tuple[int, list[str]]:
        failed, wrong = 0, list[str | None]()
        for _ in range(STEPS):
            for is_failed, found in (self.step(draw), self.handed_over(draw)):
                failed += is_failed
                wrong.append(found)
            wrong.append(self.in_a_copy(draw))
        while self.open:
            block = draw.choice(self.open)
            block.__exit__(None, None, None)
            self.forget(block)
            wrong.append(self.compared("left at the end"))
        return failed, [found for found in wrong if found]


def main() -> int:
    world = Simulated(Sim().library)
    failed, wrong = 0, list[str]()
    # The first blocks of the process, too: no class is made without memory.
    for nth in range(20):
        for make in (lambda: cd.use_stream(world.a, device_id=0), lambda: cd.policy(strict=True)):
            made = attempt(make, nth)
            failed += isinstance(made, MemoryError)
            if isinstance(made, BaseException) and not isinstance(made, MemoryError):
                wrong.append(f"allocation {nth} of the first: {made!r}")
    for seed in range(PROGRAMS):
        count, found = contextvars.Context().run(Blocks(world).run, random.Random(seed))
        failed += count
        wrong += [f"program {seed}: {each}" for each in found]
    print("\n".join(wrong))
    print(f"{failed} failed allocations, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
