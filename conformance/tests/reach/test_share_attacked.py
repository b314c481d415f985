"""What was tried against `share` and `open`, and found something."""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.reach import other as reach
from conformance.tests.reach.arrays import on_device
from conformance.tests.reach.other import HELD
from conformance.tests.reach.peer import Other
from conformance.tests.simulated.machine import Machine


@pytest.fixture
def there() -> Iterator[Other]:
    with Other() as other:
        yield other


def array(machine: Machine) -> cd.CaiView:
    return on_device(machine, np.arange(8.0), machine.stream(), False)


def refused(handle: bytes) -> bool:
    try:
        cd.open(handle)
    except cd.BufferRefusal as error:
        return error.rule == "share-ended"
    return False


def test_a_thread_leaves_its_own_block(machine: Machine) -> None:
    """Two threads in the blocks of one object, the first of which leaves first."""
    block = cd.share(array(machine))
    entered, handles = threading.Barrier(2), {}

    def first() -> None:
        with block as handles["first"]:
            entered.wait()
            entered.wait()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with block as handles["second"]:
        entered.wait()
        thread.join()
        assert [refused(handles[which]) for which in ("first", "second")] == [True, False]
    assert refused(handles["second"])


def test_another_thread_leaves_the_last_block(machine: Machine) -> None:
    block = cd.share(array(machine))
    handles = [block.__enter__(), block.__enter__()]
    for left in (1, 2):
        thread = threading.Thread(target=block.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        assert [refused(handle) for handle in handles] == [left == 2, True]


@pytest.mark.parametrize("key", ["a secret", bytearray(b"a secret"), memoryview(b"a secret"), ("a secret",)])
def test_a_refused_key_is_not_shown(machine: Machine, key: Any) -> None:
    block = cd.share(array(machine), key=b"another")
    with block as handle:
        for call in (lambda: cd.share(array(machine), key=key), lambda: cd.open(handle, key=key)):
            with pytest.raises(cd.TypeRefusal) as raised:
                call()
            assert "secret" not in str(raised.value) + repr(raised.value) + repr(vars(raised.value))
            assert type(key).__name__ in str(raised.value)


def few_files(handle: bytes) -> set[str]:
    """What `open` raises while no file can be opened any more, or only few."""
    own, before = reach.stream(), resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = set()
    for limit in range(3, 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            cd.open(handle, stream=own)
        except OSError as error:
            raised.add(f"{error.args[0]}")
        except cd.Refusal as error:
            raised.add(error.rule)
        except cd.DriverError:
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return raised


def test_too_many_files_are_named(machine: Machine, there: Other) -> None:
    with cd.share(array(machine)) as handle:
        assert there(few_files, handle) == {"Too many open files (os error 24)"}


def named(name: bytes) -> None:
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)


def shared_as(name: bytes) -> bytes:
    named(name)
    return reach.shared("a", 8)


@pytest.mark.parametrize("name", [b"gr\xc3", b") S 1 2 (", b"a b\n"])
def test_a_process_may_have_any_name(machine: Machine, there: Other, name: bytes) -> None:
    """The kernel cuts names at 15 bytes, be it in the middle of a character."""
    handle = there(shared_as, name)
    assert np.from_dlpack(cd.open(handle), device="cpu").tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    gc.collect()


def after_a_reset(handle: bytes) -> tuple[bytes, bytes]:
    """An array of this process's in the place of the first mapping; what is read of a second one."""
    machine = reach.machine()
    own = reach.stream()
    machine.control._do("sim_set", b"reuse", 1)
    first = cd.open(handle, stream=own)
    machine.driver.cuDevicePrimaryCtxReset_v2(0)
    machine._contexts.clear()
    machine.set_current(0)
    mine = machine.device_memory(first.nbytes)
    assert mine == first.ptr
    machine.write(mine, b"m" * first.nbytes)
    HELD["second"] = second = cd.open(handle, stream=machine.stream())
    del first
    gc.collect()
    reach.owners(1)
    return machine.read(second.ptr, second.nbytes), machine.read(mine, second.nbytes)


def test_what_was_mapped_before_a_reset_is_not_found_after_it(machine: Machine, there: Other) -> None:
    view = array(machine)
    np.from_dlpack(view, device="cpu")
    with cd.share(view) as handle:
        theirs, mine = there(after_a_reset, handle)
        assert (theirs, mine) == (np.arange(8.0).tobytes(), b"m" * 64)
    there(reach.closed, "second")


def left_without_threads(first: str, second: str) -> int:
    """Leaves a block while no thread can be started, and another one while it can; the owners after that."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    blocks = [HELD.pop(name)[1] for name in (first, second)]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), before[1]))
    try:
        blocks[0].__exit__(None, None, None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert not any("cai-dlpack-shar" in comm.read_text() for comm in Path("/proc/self/task").glob("*/comm"))
    blocks[1].__exit__(None, None, None)
    blocks.clear()
    gc.collect()
    return cd.stats()["live"]


def test_what_is_left_without_a_thread_is_released_by_the_next(machine: Machine, there: Other) -> None:
    own = machine.stream()
    views = [cd.open(there(reach.shared, name, 8), stream=own) for name in "ab"]
    assert there(left_without_threads, "a", "b") > 0
    views.clear()
    gc.collect()
    assert there(reach.owners, 0) == 0


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


def forks_while_it_opens(handle: bytes, count: int) -> None:
    """Views by many threads, which are kept, and children that go on until they are killed."""
    own, is_over = reach.stream(), threading.Event()

    def opens() -> None:
        kept = HELD[f"{threading.get_ident()}"] = collections.deque(maxlen=1000)
        while not is_over.is_set():
            kept.append(cd.open(handle, stream=own))

    threads = [threading.Thread(target=opens) for _ in range(4)]
    for thread in threads:
        thread.start()
    HELD["children"] = [reach.forked() for _ in range(count)]
    is_over.set()
    for thread in threads:
        thread.join()


def forked_children() -> list[int]:
    children: list[int] = HELD["children"]
    return children


def test_a_child_of_an_importer_that_opens_meanwhile_keeps_nothing(machine: Machine) -> None:
    view = array(machine)
    before = reach.settled_owners()
    block = cd.share(view)
    with Other() as there, block as handle:
        there(forks_while_it_opens, handle, 60)
        children = there(forked_children)
        there.kill()
    try:
        del view, block
        assert reach.owners(before - 1) == before - 1
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
