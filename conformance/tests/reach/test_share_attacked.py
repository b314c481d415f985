"""What was tried against `share` and `open`, and found something."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.reach import other as reach
from conformance.tests.reach.arrays import on_device
from conformance.tests.reach.other import Other
from conformance.tests.simulated.machine import Machine


@pytest.fixture
def there() -> Iterator[Other]:
    with Other() as other:
        yield other


def array(machine: Machine) -> cd.CaiView:
    return on_device(machine, np.arange(8.0), machine.stream(), False)


@pytest.mark.parametrize("key", ["a secret", bytearray(b"a secret"), memoryview(b"a secret"), ("a secret",)])
def test_a_refused_key_is_not_shown(machine: Machine, key: Any) -> None:
    block = cd.share(array(machine), key=b"another")
    with block as handle:
        for call in (lambda: cd.share(array(machine), key=key), lambda: cd.open(handle, key=key)):
            with pytest.raises(cd.TypeRefusal) as raised:
                call()
            assert "secret" not in str(raised.value) + repr(raised.value) + repr(vars(raised.value))
            assert type(key).__name__ in str(raised.value)


def opened_under_signals(handle: bytes, count: int) -> int:
    own = reach.stream()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    failed = 0
    for _ in range(count):
        try:
            cd.open(handle, stream=own)
        except cd.DriverError:
            failed += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    return failed


def test_signals_interrupt_no_opening(machine: Machine, there: Other) -> None:
    with cd.share(array(machine)) as handle:
        assert there(opened_under_signals, handle, 3000) == 0
