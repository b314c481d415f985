"""The kit's verdict on this library: each deviation is one that is documented."""

from __future__ import annotations

from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import testing

from conformance.tests.kit import ourselves

#: Why a check may fail.
ACCEPTED = {
    "cai-consumer.stream-zero": "taken as 1, with a warning, as Numba's own default stream exports it; strict: refused",
    "cai-consumer.version-missing": "taken as version 0, as older producers leave it out; strict: refused",
}
MAKERS = {
    "cai": [ourselves.on_a_device],
    "dlpack": [ourselves.on_a_device, ourselves.on_the_host, ourselves.copied],
    "exchange": [ourselves.on_a_device, ourselves.on_the_host, ourselves.copied],
}


@pytest.mark.parametrize(("profile", "make"), [(profile, make) for profile, all_ in MAKERS.items() for make in all_])
def test_our_arrays(profile: str, make: Any) -> None:
    check = getattr(testing, f"check_{profile}_producer")
    assert check(make, strict=True).counts["passed"] > 15


def test_our_import_of_cai() -> None:
    assert testing.check_cai_consumer(cd.view, accept=ACCEPTED, strict=True).counts["passed"] > 80


@pytest.mark.parametrize("take", [cd.view, cd.from_dlpack])
def test_our_import_of_dlpack(take: Any) -> None:
    assert testing.check_dlpack_consumer(take, strict=True).counts["passed"] > 65


def test_our_import_by_the_exchange_table() -> None:
    assert testing.check_exchange_consumer(cd.view, strict=True).counts["passed"] > 15
