"""Memory of cuda.core's pools between two processes: by its own reducers, in the handle of `share`."""

from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_dlpack import _pools
from cuda.bindings import driver
from cuda.core import Buffer, Device, DeviceMemoryResource

from conformance.tests.expectations.refusal import refuse
from conformance.tests.reach import handles, other, pools
from conformance.tests.reach.arrays import lazy
from conformance.tests.reach.peer import Other, Raised
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]

NUMBERS = np.arange(8.0).tobytes()


@pytest.fixture(scope="module")
def there(simulated: Machine) -> Iterator[Other]:
    before = multiprocessing.get_start_method(allow_none=True)
    # cuda.core asks for the default method, and warns of one that CUDA does not support.
    multiprocessing.set_start_method("spawn", force=True)
    with Other() as process:
        yield process
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def resource(lazy: Machine) -> Iterator[DeviceMemoryResource]:
    made = pools.made()
    yield made
    made.close()


def pending(machine: Machine, buffer: Buffer, content: bytes = NUMBERS, **changes: Any) -> cd.CaiView:
    return pools.pending(machine, buffer, machine.stream(), content, **changes)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Raised as raised:
        return raised.args[0]


def eventually(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not is_so() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return is_so()


def test_a_view_with_the_buffer_as_its_owner_arrives_and_is_ready(
    lazy: Machine, resource: DeviceMemoryResource, there: Other
) -> None:
    buffer = pools.allocated(resource)
    view = pending(lazy, buffer, NUMBERS[:48], offset=16)
    with cd.share(view) as handle:
        found = there(other.opened, "view", handle)
        assert (found["shape"], found["dtype"], found["device"]) == ((6,), "float64", (2, 0))
        assert found["is on stream"]
        assert there(other.values, "view") == NUMBERS[:48]
        there(other.write, "view", bytes(48))
        there(other.values, "view")
        assert lazy.read(int(buffer.handle) + 16, 48) == bytes(48)
        there(other.closed, "view")


def test_without_the_event_it_is_read_too_early(lazy: Machine, resource: DeviceMemoryResource, there: Other) -> None:
    """The control: what the test above would find."""
    for policy, is_ready in {"none": False, "event": True, "host": True}.items():
        view = pending(lazy, pools.allocated(resource))
        with cd.policy(sync=policy), cd.share(view) as handle:  # type: ignore[arg-type]
            there(other.opened, "view", handle)
            assert (there(other.values, "view") == NUMBERS) == is_ready
            there(other.closed, "view")


@pytest.mark.filterwarnings("ignore::cai_dlpack.StreamWarning")
def test_the_buffer_itself_is_shared(lazy: Machine, resource: DeviceMemoryResource, there: Other) -> None:
    buffer = pools.allocated(resource)
    Device(0).default_stream.sync()
    lazy.write(int(buffer.handle), NUMBERS)
    with cd.share(buffer) as handle:
        found = there(other.opened, "view", handle)
        assert (found["shape"], found["dtype"]) == ((64,), "int8")
        assert there(other.values, "view") == NUMBERS
        there(other.closed, "view")


def test_a_handle_is_opened_twice_and_by_more_than_one_process(
    lazy: Machine, resource: DeviceMemoryResource, there: Other
) -> None:
    with cd.share(pending(lazy, pools.allocated(resource))) as handle, Other() as another:
        one, two = there(other.opened, "one", handle), there(other.opened, "two", handle)
        assert one["ptr"] == two["ptr"]
        another(other.opened, "view", handle)
        there(other.closed, "one")
        there(other.live)
        assert there(other.values, "two") == another(other.values, "view") == NUMBERS
        there(other.closed, "two")
        another(other.closed, "view")


def opened_by_threads(given: list[bytes], rounds: int) -> list[bytes]:
    """Opens, reads and drops buffers, each on a thread, at once; what they have read."""
    machine = other.machine()
    starts, found = threading.Barrier(len(given)), []

    def opens(handle: bytes) -> None:
        machine.set_current(0)
        stream = machine.stream()
        for _ in range(rounds):
            starts.wait()
            found.append(np.from_dlpack(cd.open(handle, stream=stream), device="cpu").tobytes())

    running = [threading.Thread(target=opens, args=(handle,), daemon=True) for handle in given]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return found


@pytest.mark.parametrize("buffers", [1, 4])
def test_threads_open_buffers_at_once(lazy: Machine, resource: DeviceMemoryResource, buffers: int) -> None:
    """cuda.core 1.2.2 by itself hangs, or unmaps what another thread has just mapped (cuda-python #2840 and #2848)."""
    with ExitStack() as blocks, Other() as process:
        given = [blocks.enter_context(cd.share(pending(lazy, pools.allocated(resource)))) for _ in range(buffers)]
        assert process(opened_by_threads, given * (4 // buffers), 50) == [NUMBERS] * 200


def test_an_import_and_its_end_break_no_capture_of_another_thread(
    lazy: Machine, resource: DeviceMemoryResource, there: Other
) -> None:
    """No page lists the calls that a capture forbids other threads: these are made in the mode that it leaves alone."""
    with cd.share(pending(lazy, pools.allocated(resource))) as handle:
        called = there(other.calls_of_an_import_and_its_end, handle)
    concerned = {"cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer", "cuMemFreeAsync", "cuStreamCreate"}
    assert concerned <= {*called}
    for at, name in enumerate(called):
        is_relaxed = called[:at].count("cuThreadExchangeStreamCaptureMode") % 2 == 1
        assert name not in {*concerned, "cuStreamDestroy"} or is_relaxed, called
    assert called.count("cuThreadExchangeStreamCaptureMode") % 2 == 0


def test_a_key_of_their_own_opens_it(lazy: Machine, resource: DeviceMemoryResource, there: Other) -> None:
    with cd.share(pending(lazy, pools.allocated(resource)), key=b"ours") as handle:
        assert outcome(lambda: there(other.opened, "view", handle)) == "share-handle"
        there(other.opened, "view", handle, b"ours")
        assert there(other.values, "view") == NUMBERS
        there(other.closed, "view")


def test_in_the_same_process_it_is_the_same_array(lazy: Machine, resource: DeviceMemoryResource) -> None:
    view = pending(lazy, pools.allocated(resource))
    with cd.share(view) as handle:
        opened = cd.open(handle, stream=lazy.stream())
        assert opened.ptr == view.ptr
        assert np.from_dlpack(opened, device="cpu").tobytes() == NUMBERS


def test_the_buffer_stays_until_the_importer_has_let_go(
    lazy: Machine, resource: DeviceMemoryResource, there: Other
) -> None:
    before = there(other.owners, 0)
    base = other.settled_owners() + 1
    view = pending(lazy, pools.allocated(resource))
    with cd.share(view) as handle:
        there(other.opened, "view", handle)
    assert outcome(lambda: there(other.opened, "late", handle)) == "share-ended"
    del view
    gc.collect()
    time.sleep(0.2)
    assert cd.stats()["live"] == base, "the array has been released while the other process has it"
    assert there(other.values, "view") == NUMBERS
    there(other.closed, "view")
    assert there(other.owners, before) == before
    assert eventually(lambda: cd.stats()["live"] == base - 1)


@pytest.mark.parametrize("when", ["before", "while it opens", "opened", "while it reads", "while it closes"])
def test_an_importer_that_is_killed_lets_go(lazy: Machine, resource: DeviceMemoryResource, when: str) -> None:
    base = cd.stats()["live"]
    with Other() as there, cd.share(pending(lazy, pools.allocated(resource))) as handle:
        there(other.stream)
        if when in ("opened", "while it reads", "while it closes"):
            there(other.opened, "view", handle)
        if when == "while it opens":
            there.send(other.opened, "view", handle)
        if when == "while it reads":
            there.send(other.values, "view")
        if when == "while it closes":
            there.send(other.closed, "view")
        there.kill()
    assert eventually(lambda: cd.stats()["live"] == base)


@pytest.mark.parametrize("when", ["before", "opened", "read", "left"])
def test_an_exporter_that_is_killed_is_an_error(lazy: Machine, there: Other, when: str) -> None:
    with Other() as exporter:
        handle = exporter(pools.shared, "array", NUMBERS)
        if when != "before":
            there(other.opened, "view", handle)
        if when == "read":
            assert there(other.values, "view") == NUMBERS
        if when == "left":
            exporter(other.left, "array")
        exporter.kill()
        assert outcome(lambda: there(other.opened, "late", handle)) == "share-ended"
        if when != "before":
            there(other.closed, "view")
    # On a GPU what is mapped of a process that has died is undefined.
    assert there(other.owners, 0) == 0


def test_a_forked_child_that_leaves_the_block_ends_nothing(
    lazy: Machine, resource: DeviceMemoryResource, there: Other
) -> None:
    block = cd.share(pending(lazy, pools.allocated(resource)))
    handle = block.__enter__()
    child = os.fork()
    if not child:
        block.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    there(other.opened, "view", handle)
    assert there(other.values, "view") == NUMBERS
    there(other.closed, "view")
    block.__exit__(None, None, None)


def test_a_block_that_is_never_left_gives_up_what_it_has(lazy: Machine, resource: DeviceMemoryResource) -> None:
    """Its thread, its socket and its descriptor of the pool."""

    def counted() -> tuple[int, int]:
        gc.collect()
        lazy.finish()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with cd.share(pools.allocated(resource)):
        pass
    before = [*map(max, zip(counted(), counted(), strict=True))]
    for _ in range(8):
        cd.share(pools.allocated(resource)).__enter__()
    assert eventually(lambda: all(now <= then for now, then in zip(counted(), before, strict=True)))


def current_after_an_opening(handle: bytes) -> list[tuple[int, int, list[str]]]:
    """The contexts before and after an opening, on threads with and without one, and the calls that named them."""
    machine, found = other.machine(), list[tuple[int, int, list[str]]]()
    other.stream()

    def opens(context: int) -> None:
        machine.enter(context)
        machine.clear()
        cd.open(handle, stream=1)
        named = [call.name for call in machine.control.calls() if context in call.arguments.values()]
        found.append((context, machine.current(), named))

    for context in (0, machine.context(0), machine.context(1), machine.create_context(0)):
        thread = threading.Thread(target=opens, args=(context,))
        thread.start()
        thread.join()
    assert other.owners(0) == 0
    return found


def test_what_is_current_stays_as_a_buffer_is_opened(lazy: Machine, resource: DeviceMemoryResource) -> None:
    with Other() as there, cd.share(pending(lazy, pools.allocated(resource))) as handle:
        found = there(current_after_an_opening, bytes(handle))
    assert len(found) == 4
    assert all(before == after for before, after, _ in found)
    # Its identity is asked for, to wait for its work at the end. It is not made current again: it stays below what is.
    assert set(found[-1][-1]) == {"cuCtxGetId"}


def calls_after_the_end_of_its_context(handle: bytes) -> tuple[int, list[int]]:
    """Opens a handle in a context that ends, and drops the view beside streams that may have the handles of dead ones.

    Returns how many streams of another context have been destroyed or are unknown after that.
    """
    machine = other.machine()
    machine.control.set("reuse", 1)
    other.stream()
    gone = machine.create_context(0)
    machine.enter(gone)
    view = cd.open(handle, stream=1)
    machine.destroy_context(gone)
    machine.enter(machine.create_context(0))
    streams = [ctypes.c_void_p() for _ in range(8)]
    for stream in streams:
        machine._call("cuStreamCreate", ctypes.byref(stream), 1)
    del view
    other.owners(0)
    return len(streams), [machine.driver.cuStreamQuery(stream) for stream in streams]


def test_a_buffer_whose_context_has_ended_uses_no_stream_of_another(
    lazy: Machine, resource: DeviceMemoryResource
) -> None:
    with Other() as there, cd.share(pending(lazy, pools.allocated(resource))) as handle:
        count, found = there(calls_after_the_end_of_its_context, bytes(handle))
        assert found == [0] * count


def opened_until_nothing_is_given(handle: bytes) -> tuple[str | None, bool]:
    """Opens a handle, asking for the descriptor until there is an error: its rule, and whether it has a cause."""
    detach = _pools._Descriptor.detach

    def until_an_error(self: Any) -> int:
        while True:
            os.close(detach(self))

    _pools._Descriptor.detach = until_an_error  # type: ignore[method-assign]
    try:
        cd.open(handle, stream=other.stream())
    except (cd.Refusal, OSError, ValueError) as refused:
        return getattr(refused, "rule", None), refused.__cause__ is not None
    finally:
        _pools._Descriptor.detach = detach  # type: ignore[method-assign]
    return "opened", False


@pytest.mark.parametrize("is_killed", [False, True], ids=["leaves the block", "is killed"])
def test_an_exporter_that_ends_the_share_while_it_is_opened_is_refused_by_rule(
    lazy: Machine, there: Other, is_killed: bool
) -> None:
    with Other() as exporter:
        there.send(opened_until_nothing_is_given, exporter(pools.shared, "array", NUMBERS))
        time.sleep(0.2)
        exporter.kill() if is_killed else exporter(other.left, "array")
        assert there.receive() == ("share-ended", True)
    assert there(other.owners, 0) == 0


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_descriptor_that_cannot_be_given_is_closed_once(has_begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread can be started, or an interrupt comes once it has been."""
    descriptor, giver = os.open(os.devnull, os.O_RDONLY), _pools.Giver(b"key")
    closed, close, begin = list[int](), os.close, threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if has_begun:
            begin(thread)
            time.sleep(0.05)
        raise TimeoutError if has_begun else RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)

    def note(number: int) -> None:
        closed.append(number)
        close(number)

    monkeypatch.setattr(os, "close", note)
    with pytest.raises((RuntimeError, TimeoutError)):
        giver.give(descriptor)
    giver.close()
    late = time.monotonic() + 5
    while descriptor not in closed and time.monotonic() < late:
        time.sleep(0.01)
    assert closed.count(descriptor) == 1


def test_a_giver_goes_on_after_it_had_no_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, refused = socket.socket.accept, list[int]()

    def lacking(listening: socket.socket) -> tuple[socket.socket, Any]:
        if len(refused) < 2:
            refused.append(errno.EMFILE)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", lacking)
    first, second = os.pipe()
    os.close(second)
    giver = _pools.Giver(b"key")
    given = _pools._Descriptor(*giver.give(first), b"key").detach()
    try:
        assert os.path.samestat(os.fstat(given), os.fstat(first)) and len(refused) == 2
    finally:
        os.close(given)
        giver.close()


def test_who_is_slow_to_prove_itself_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = os.pipe()
    os.close(second)
    giver, prove, asked = _pools.Giver(b"key"), _pools._proof, list[bytes]()
    named = giver.give(first)

    def slow(key: bytes, token: bytes) -> bytes:
        asked.append(token)
        if len(asked) == 1:
            time.sleep(1.5)  # The giver waits for a second.
        return prove(key, token)

    monkeypatch.setattr(_pools, "_proof", slow)
    given = _pools._Descriptor(*named, b"key").detach()
    os.close(given)
    giver.close()
    assert len(asked) == 2


def test_who_gets_no_descriptor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    giver = _pools.Giver(b"key")
    named = giver.give(os.open(os.devnull, os.O_RDONLY))
    try:
        with pytest.raises(PermissionError, match="does not give its pool's descriptor"):
            _pools._Descriptor(*named, b"another").detach()
    finally:
        giver.close()
    monkeypatch.setattr(_pools, "_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(b"\0" + os.urandom(8))
        silent.listen()
        with pytest.raises(TimeoutError, match="has not given its pool's descriptor"):
            _pools._Descriptor(silent.getsockname(), b"token", b"key").detach()


# --- trust ---


def test_another_user_who_connects_and_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abstract sockets have no permissions: here the connections are this user's, and the giver is another's."""
    giver = _pools.Giver(b"key")
    address, _ = giver.give(os.open(os.devnull, os.O_RDONLY))
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            silent.settimeout(0.5)
            silent.connect(address)
            assert silent.recv(1) == b""
    finally:
        giver.close()


def test_nothing_is_unpickled_before_the_tag_is_checked(
    lazy: Machine, resource: DeviceMemoryResource, there: Other
) -> None:
    with cd.share(pending(lazy, pools.allocated(resource))) as handle:
        at = bytes(handle).index(b"cuda.core.")
        changed = bytearray(handle)
        changed[at : at + 10] = b"os.system."
        assert outcome(lambda: there(other.opened, "view", bytes(changed))) == "share-handle"
        # Who has the key may name cuda.core's objects, and no others.
        tagged = handles.tagged(bytes(changed)[: -handles.TAG])
        assert outcome(lambda: there(other.opened, "view", tagged)) == "UnpicklingError"


@pytest.mark.parametrize("named", ["os\nsystem", "cuda.core._memory._buffer\nBuffer.__init__", "builtins\neval"])
def test_what_is_loaded_names_objects_of_cuda_core_alone(named: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="a handle of memory of a pool names"):
        _pools.load(f"c{named}\n.".encode(), b"key", None)


@pytest.mark.parametrize(("of", "name"), [(os, "system"), (Buffer, "__init__"), (str, "format"), (Buffer.close, "run")])
def test_what_is_loaded_takes_methods_of_cuda_cores_classes_alone(of: Any, name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="a handle of memory of a pool names"):
        _pools._method(of, name)


def test_the_descriptor_is_given_to_who_has_the_key() -> None:
    read, write = os.pipe()
    giver = _pools.Giver(b"ours")
    address, token = giver.give(read)
    try:
        for wrong in (b"theirs", b""):
            with pytest.raises((ValueError, OSError)):
                _pools._Descriptor(address, token, wrong).detach()
        received = _pools._Descriptor(address, token, b"ours").detach()
        os.write(write, b"x")
        assert os.read(received, 1) == b"x"
        os.close(received)
    finally:
        giver.close()
        os.close(write)
    with pytest.raises(ConnectionRefusedError):
        _pools._Descriptor(address, token, b"ours").detach()
    assert eventually(lambda: not is_open(read)), "the descriptor is left"


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_pool_that_is_not_for_ipc_is_refused(lazy: Machine) -> None:
    device = Device(0)
    device.set_current()
    buffer = device.allocate(64, stream=device.default_stream)
    view = pending(lazy, buffer)
    assert refuse(lambda: handles.entered(view), BufferError).rule == "share-memory"


@pytest.mark.filterwarnings("ignore::cai_dlpack.StreamWarning")
def test_a_view_that_does_not_know_its_buffer_names_the_way(lazy: Machine, resource: DeviceMemoryResource) -> None:
    view = cd.view(pools.allocated(resource))
    assert view.owner is None
    refused = refuse(lambda: handles.entered(view), BufferError)
    assert refused.rule == "share-memory" and "share cuda.core's Buffer itself" in str(refused)


def test_memory_beyond_the_buffer_is_refused(lazy: Machine, resource: DeviceMemoryResource) -> None:
    one, two = pools.allocated(resource), pools.allocated(resource)
    view = pending(lazy, one)
    beyond = cd.view(
        {"shape": (8,), "typestr": "<f8", "version": 3, "stream": view.stream, "data": (int(two.handle), False)},
        owner=one,
    )
    assert refuse(lambda: handles.entered(beyond), BufferError).rule == "out-of-bounds"


def test_threads_and_files_are_given_back(lazy: Machine, resource: DeviceMemoryResource, there: Other) -> None:
    view = pending(lazy, pools.allocated(resource))
    handles.entered(view)
    threads, before = threading.active_count(), other.counted()["files"]
    for _ in range(10):
        with cd.share(view) as handle:
            there(other.opened, "view", handle)
            there(other.closed, "view")
    assert eventually(lambda: threading.active_count() <= threads and other.counted()["files"] <= before)


class Memory:
    """A buffer of no pool, which may not let itself be closed."""

    handle, size = 4096, 8

    def __init__(self, is_stubborn: bool) -> None:
        self.is_stubborn = is_stubborn

    def close(self, _: Any) -> None:
        if self.is_stubborn:
            raise MemoryError


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("is_stubborn", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_end_of_a_buffer_leaves_the_current_context(lazy: Machine, is_gone: bool, is_stubborn: bool) -> None:
    """Whether its own context is there or not, and though it cannot be freed."""
    Device(0).set_current()
    mapped = _pools.Mapped(Memory(is_stubborn), None)
    if is_gone:
        mapped._context = driver.CUcontext(0)
    Device(1).set_current()
    _, before = driver.cuCtxGetCurrent()
    del mapped
    gc.collect()
    _, after = driver.cuCtxGetCurrent()
    assert int(after) == int(before)
    Device(0).set_current()
