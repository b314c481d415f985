"""Several that claim one capsule: exactly one of our imports wins, and the tensor is released once."""

from __future__ import annotations

import ctypes
import threading
from functools import partial

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.ownership import native
from conformance.tests.ownership.together import together

BATCH = 5_000


@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
def test_native_threads_that_claim_at_once_have_one_winner(versioned: bool) -> None:
    """Half of the races each way. Each thread takes the GIL by itself, as a C++ library would."""
    races = native.figure(100_000, 1_000_000) // 2
    batch = min(BATCH, races)
    made = abi.make(versioned=versioned)
    before = cd.stats()["live"]
    for _ in range(races // batch):
        capsules = [made.capsule() for _ in range(batch)]
        addresses = (ctypes.c_void_p * batch)(*map(id, capsules))
        first, second = (ctypes.c_ubyte * batch)(), (ctypes.c_ubyte * batch)()
        code = native.without_gil().race(
            ctypes.c_void_p(id(cd.from_dlpack)), addresses, ctypes.c_size_t(batch), first, second
        )
        assert code == 0
        assert all(one + other == 1 for one, other in zip(first, second, strict=True))
    assert made.released == races // batch * batch
    assert cd.stats()["live"] == before


def test_python_threads_that_claim_at_once_have_one_winner() -> None:
    races = native.figure(10_000, 100_000)
    made = abi.make()
    capsules = [made.capsule() for _ in range(races)]
    start = threading.Barrier(2, timeout=60)
    won: list[list[int]] = [[], []]
    refusals: set[str] = set()

    def claim(mine: list[int]) -> None:
        for number, capsule in enumerate(capsules):
            if number % 100 == 0:
                start.wait()
            try:
                cd.from_dlpack(capsule)
            except ValueError as error:
                refusals.add(str(error).rpartition(" ")[2])
            else:
                mine.append(number)

    together(*(partial(claim, mine) for mine in won))
    assert sorted(won[0] + won[1]) == list(range(races))
    assert refusals == {"[capsule-used]"}
    assert made.released == races
