"""Conversions leave nothing behind: no block, no reference, no owner; on success and on every refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Dlpack, Legacy, StreamOnly, cai, interface
from conformance.tests.ownership import native
from conformance.tests.ownership.growth import check_nothing_is_left, repeat

# Of each path that succeeds, and of each refusal.
COUNT = native.figure(10_000, 1_000_000)
REFUSALS = native.figure(1_000, 1_000_000)


def exported(view: cd.CaiView, max_version: tuple[int, int] | None, *, consumed: bool) -> None:
    capsule = view.__dlpack__(stream=-1, max_version=max_version)
    if consumed:
        cd.from_dlpack(capsule)


def successes() -> dict[str, tuple[Callable[[], object], list[object]]]:
    producer, plain = cai(), interface()
    versioned, legacy = abi.make(), abi.make(versioned=False)
    view = cd.view(producer, device_id=0)
    everything: list[object] = [producer, producer.interface, plain, versioned, view, cd.CaiView]
    paths: dict[str, Callable[[], object]] = {
        "view of CAI": lambda: cd.view(producer, device_id=0),
        "view with producer_stream": lambda: cd.view(producer, device_id=0, producer_stream=7),
        "view with producer_stream=...": lambda: cd.view(producer, device_id=0, producer_stream=...),
        "from_dlpack with producer_stream": lambda: cd.from_dlpack(Dlpack(versioned), producer_stream=None),
        "from_cai": lambda: cd.from_cai(producer, device_id=0),
        "dict with owner": lambda: cd.from_cai(plain, owner=producer, device_id=0),
        "object with owner": lambda: cd.view(producer, owner=versioned, device_id=0),
        "from_dlpack": lambda: cd.from_dlpack(Dlpack(versioned)),
        "from_dlpack of a legacy producer": lambda: cd.from_dlpack(Legacy(legacy)),
        "from_dlpack of one that knows streams": lambda: cd.from_dlpack(StreamOnly(legacy)),
        "from_dlpack of a capsule": lambda: cd.from_dlpack(versioned.capsule()),
        "view of a capsule": lambda: cd.view(legacy.capsule()),
        "to_dlpack": lambda: cd.to_dlpack(Dlpack(versioned), max_version=(1, 3)),
        "to_dlpack consumed": lambda: cd.from_dlpack(cd.to_dlpack(Dlpack(versioned))),
        "view of DLPack": lambda: cd.view(Dlpack(versioned)),
        "view of a legacy producer": lambda: cd.view(Legacy(legacy)),
        "view of one that knows streams": lambda: cd.view(StreamOnly(legacy)),
        "to_dlpack of a legacy producer": lambda: cd.to_dlpack(Legacy(legacy)),
        "view of a view": lambda: cd.view(view),
        "dict": lambda: view.__cuda_array_interface__,
        "to_cai": view.to_cai,
        "attributes": lambda: (view.shape, view.byte_strides, view.owner, view.device, repr(view)),
    }
    for max_version in (None, (1, 3)):
        for consumed in (False, True):
            name = f"__dlpack__ {max_version} {'consumed' if consumed else 'dropped'}"
            paths[name] = lambda version=max_version, consumed=consumed: exported(  # type: ignore[misc]
                view, version, consumed=consumed
            )
    return {name: (path, everything) for name, path in paths.items()}


SUCCESSES = successes()


@pytest.mark.parametrize("name", SUCCESSES)
def test_a_success_leaves_nothing(name: str) -> None:
    convert, watched = SUCCESSES[name]
    check_nothing_is_left(partial(repeat, convert), watched, COUNT)
