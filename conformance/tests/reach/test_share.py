"""Views of another process's memory, in two real ones: what arrives is ready, and is kept as long as anybody has it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.reach import handles, other
from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.reach.peer import SECONDS, Other, Raised
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]


@pytest.fixture(scope="module")
def there(simulated: Machine) -> Iterator[Other]:
    """A process that has opened something before: the pool of events, and the simulator's own files, are there."""
    with Other() as process:
        with cd.share(array(simulated, simulated.stream())) as handle:
            process(other.storm, [handle], 8, 2)
        time.sleep(0.5)
        yield process


def eventually(is_so: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.005)
    return True


class Array(Cai):
    """An array that can be waited for to end."""


def array(machine: Machine, stream: int | None, count: int = 8, start: float = 0) -> Array:
    """Float64 numbers from `start` on, which `stream` has still to write; ready without one."""
    data, content = machine.device_memory(8 * count), (np.arange(float(count)) + start).tobytes()
    machine.write(data, b"\xee" * 8 * count if stream else content)
    if stream:
        machine.control.store(stream, data, content)
    return Array(interface(shape=(count,), typestr="<f8", data=(data, False), stream=stream))


NUMBERS = np.arange(8.0).tobytes()


def test_what_arrives_is_what_was_shared_and_is_ready(lazy: Machine, there: Other) -> None:
    chosen, stream = random.Random(22), lazy.stream()
    for _ in range(80):
        content, read_only = drawn(chosen), chosen.random() < 0.3
        view = on_device(lazy, content, stream, read_only)
        with cd.share(view) as handle:
            found = there(other.opened, "view", handle if chosen.random() < 0.5 else bytes(handle))
            assert found.pop("ptr") == 0 or content.size
            expected = other.facts(view)
            del expected["ptr"]
            assert found == expected | {"is on stream": bool(content.size)}
            assert there(other.values, "view") == np.ascontiguousarray(content).tobytes()
            there(other.closed, "view")


def test_without_the_event_it_is_read_too_early(lazy: Machine, there: Other) -> None:
    """The control: what the test above would find."""
    for policy, is_ready in {"none": False, "event": True, "host": True}.items():
        with cd.policy(sync=policy), cd.share(cd.view(array(lazy, lazy.stream()))) as handle:  # type: ignore[arg-type]
            there(other.opened, "view", handle)
            assert (there(other.values, "view") == NUMBERS) == is_ready
            there(other.closed, "view")


def test_the_importer_does_not_wait_for_what_is_ready(lazy: Machine, there: Other) -> None:
    with cd.share(cd.view(array(lazy, None))) as handle:
        assert not there(other.opened, "view", handle)["is on stream"]
        assert there(other.values, "view") == NUMBERS
        there(other.closed, "view")


def test_what_the_importer_writes_is_the_exporters(lazy: Machine, there: Other) -> None:
    source = array(lazy, lazy.stream())
    with cd.share(source) as handle:
        there(other.opened, "view", handle)
        there(other.write, "view", bytes(64))
        there(other.values, "view")
        assert not np.from_dlpack(cd.view(source), device="cpu").any()
        there(other.closed, "view")


def test_parts_of_one_allocation_are_opened_at_their_offsets(lazy: Machine, there: Other) -> None:
    stream, data = lazy.stream(), lazy.device_memory(8 * 100)
    lazy.control.store(stream, data, np.arange(100.0).tobytes())
    chosen, opened = random.Random(1), {}
    before, mapped = there(other.settled), there(other.called, "cuIpcOpenMemHandle_v2")
    for at in range(12):
        start, stop = sorted(chosen.sample(range(101), 2))
        described = interface(shape=(stop - start,), typestr="<f8", data=(data + 8 * start, False), stream=stream)
        block = cd.share(cd.view(Cai(described)))
        found = there(other.opened, str(at), block.__enter__())
        opened[at] = (block, start, stop, found["ptr"] - 8 * start)
    assert len({base for *_, base in opened.values()}) == 1
    assert there(other.called, "cuIpcOpenMemHandle_v2") == mapped + 1
    for at, (block, start, stop, _) in opened.items():
        assert there(other.values, str(at)) == np.arange(float(start), float(stop)).tobytes()
        there(other.closed, str(at))
        block.__exit__(None, None, None)
    assert there(other.live, before) == before


def test_the_same_process_has_a_view_of_the_same_memory(lazy: Machine) -> None:
    source, stream = cd.view(array(lazy, lazy.stream())), lazy.stream()
    with cd.share(source) as handle:
        opened = cd.open(handle, stream=stream)
        assert (opened.ptr, opened.stream) == (source.ptr, stream)
        assert np.from_dlpack(opened, device="cpu").tobytes() == NUMBERS
    assert refuse(lambda: cd.open(handle, stream=stream), BufferError).rule == "share-ended"


def test_the_array_stays_until_the_importer_has_let_go(lazy: Machine, there: Other) -> None:
    source = array(lazy, lazy.stream())
    ended = weakref.ref(source)
    with cd.share(source) as handle:
        del source
        there(other.opened, "one", handle)
        there(other.opened, "two", handle)
    assert refuse_there(there, handle) == "share-ended"
    there(other.closed, "one")
    time.sleep(0.2)
    gc.collect()
    assert ended() is not None
    assert there(other.values, "two") == NUMBERS
    there(other.closed, "two")
    assert eventually(lambda: ended() is None)


def outcome(call: Callable[[], Any]) -> Any:
    """What the other process returns, or the rule or class of what it raises."""
    try:
        return call()
    except Raised as raised:
        return raised.args[0]


def refuse_there(there: Other, handle: bytes, key: bytes | None = None) -> str:
    return str(outcome(lambda: there(other.opened, "refused", handle, key)))


def test_no_thread_waits_for_the_device_before_the_share_is_ready(lazy: Machine, there: Other) -> None:
    """On a GPU such a wait holds up what other threads enqueue: for ever, if the exporter dies with work to do."""

    def called() -> dict[str, int]:
        return {name: there(other.called, name) for name in ("cuMemFree_v2", "cuIpcCloseMemHandle")}

    there(other.settled)
    stream = lazy.stream()
    gate = lazy.control.gate(stream)
    with cd.share(array(lazy, stream)) as handle:
        there(other.opened, "view", handle)
        before = called()
        there(other.closed, "view")
        time.sleep(0.2)
        assert called() == before
        gate.open()
        assert eventually(lambda: called() == {name: count + 1 for name, count in before.items()})


def test_an_array_that_nobody_has_opened_ends_with_the_block(lazy: Machine) -> None:
    source = array(lazy, lazy.stream())
    ended = weakref.ref(source)
    block = cd.share(source)
    with block as first, block as second:
        assert first != second
    del source, block
    gc.collect()
    assert ended() is None


def test_threads_open_and_close_at_once(lazy: Machine, there: Other) -> None:
    blocks = [cd.share(array(lazy, lazy.stream(), 8, at)) for at in range(4)]
    given = [bytes(block.__enter__()) for block in blocks]
    before = there(other.settled)
    assert there(other.storm, given, 8, 25) == 0
    after = there(other.live, before)
    for block in blocks:
        block.__exit__(None, None, None)
    assert after == before


def test_threads_share_while_others_open(lazy: Machine, there: Other) -> None:
    """Blocks come and go, and a handle may be too late: then it is refused, and no memory is left."""
    before, live, stream = counts(), there(other.settled), lazy.stream()
    given: list[bytes] = []
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(25):
                with cd.share(cd.view(array(lazy, stream))) as handle:
                    given.append(handle)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    outcomes = set()
    while any(thread.is_alive() for thread in threads) or given:
        if given:
            try:
                there(other.opened, "view", given.pop())
                outcomes.add(there(other.values, "view"))
                there(other.closed, "view")
            except Raised as raised:
                outcomes.add(raised.args[0])
    assert not wrong and outcomes <= {NUMBERS, "share-ended"}, outcomes
    assert there(other.live, live) == live
    assert eventually(lambda: counts() == before), (counts(), before)


def counts() -> dict[str, int]:
    """What this process has of shares: files, events, owners."""
    gc.collect()
    links = [f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd")]
    files = [os.readlink(link) for link in links if os.path.islink(link)]
    return {"files": sum("cai-dlpack-share" in file for file in files), "owners": cd.stats()["live"]}


# --- the death of either ---


def importer_killed_before(there: Other, handle: bytes) -> None:
    there.kill()


def importer_killed_while_it_opens(there: Other, handle: bytes) -> None:
    there.send(other.opened, "view", handle)
    time.sleep(random.random() * 0.05)
    there.kill()


def importer_killed_after(there: Other, handle: bytes) -> None:
    there(other.opened, "view", handle)
    there.kill()


def importer_killed_while_it_reads(there: Other, handle: bytes) -> None:
    there(other.opened, "view", handle)
    there.send(other.values, "view")
    there.kill()


def importer_killed_while_it_closes(there: Other, handle: bytes) -> None:
    there(other.opened, "view", handle)
    there.send(other.closed, "view")
    there.kill()


def importer_killed_with_a_child(there: Other, handle: bytes) -> None:
    """A forked child does not keep what its parent had."""
    there(other.opened, "view", handle)
    there(other.forked)
    there.kill()


@pytest.mark.parametrize(
    "kill",
    [
        importer_killed_before,
        importer_killed_while_it_opens,
        importer_killed_after,
        importer_killed_while_it_reads,
        importer_killed_while_it_closes,
        importer_killed_with_a_child,
    ],
)
def test_an_importer_that_is_killed_lets_go(lazy: Machine, kill: Callable[[Other, bytes], None]) -> None:
    source = array(lazy, lazy.stream())
    ended, before = weakref.ref(source), counts()
    with Other() as there, cd.share(source) as handle:
        del source
        there(other.stream)
        kill(there, handle)
    assert eventually(lambda: ended() is None)
    assert eventually(lambda: counts()["files"] == before["files"])


def test_an_importers_child_does_not_keep_the_array(lazy: Machine) -> None:
    source = array(lazy, lazy.stream())
    ended = weakref.ref(source)
    with Other() as there, cd.share(source) as handle:
        del source
        there(other.opened, "view", handle)
        child = there(other.forked)
        there(other.closed, "view")
        there(other.live)
    try:
        assert eventually(lambda: ended() is None)
        os.kill(child, 0)
    finally:
        os.kill(child, 9)


def test_an_exporters_child_does_not_keep_the_share_open(lazy: Machine, there: Other) -> None:
    source = array(lazy, lazy.stream())
    ended = weakref.ref(source)
    with cd.share(source) as handle:
        child = os.fork()
        if not child:
            time.sleep(SECONDS)
            os._exit(0)
        there(other.opened, "view", handle)
        there(other.closed, "view")
    del source
    try:
        assert refuse_there(there, handle) == "share-ended"
        assert eventually(lambda: ended() is None)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize("step", ["before", "opened", "read", "left", "twice", "while it opens", "while it shares"])
def test_an_exporter_that_is_killed_leaves_an_error_or_what_is_mapped(step: str) -> None:
    """What is left of memory whose process has died is the driver's affair: here nothing hangs and nothing stays."""
    with Other() as exporter, Other() as importer:
        if step == "while it shares":
            handle = exporter(other.shared, "another", 8)
            importer(other.stream)
            before = importer(other.live)
            exporter.send(other.shared, "array", 8)
            time.sleep(random.random() * 0.01)
            exporter.kill()
            try:
                arrived = exporter.receive()
            except (EOFError, OSError):  # It died before it has answered, or as it did.
                arrived = None
            for each in [handle, arrived] if arrived else [handle]:
                assert refuse_there(importer, each) == "share-ended"
            assert importer(other.live, before) == before
            return
        handle, before = exporter(other.shared, "array", 8), importer(other.live)
        names = {"before": [], "twice": ["one", "two"]}.get(step, ["one"])
        if step == "while it opens":
            importer.send(other.opened, "one", handle)
            time.sleep(random.random() * 0.01)
        for name in names if step != "while it opens" else []:
            importer(other.opened, name, handle)
        if step in ("read", "left"):
            assert importer(other.values, "one") == NUMBERS
        if step == "left":
            exporter(other.left, "array")
        exporter.kill()
        if step == "while it opens" and outcome(importer.receive) in ("share-ended", "DriverError"):
            names = []
        assert refuse_there(importer, handle) == "share-ended"
        for name in names:
            assert outcome(lambda name=name: importer(other.values, name)) in (NUMBERS, "DriverError")  # type: ignore[misc]
            importer(other.closed, name)
        assert importer(other.owners, before["owners"]) == before["owners"]


# --- trust ---


def test_a_handle_of_another_key_is_refused(lazy: Machine, there: Other) -> None:
    with cd.share(array(lazy, None), key=b"ours") as handle:
        assert refuse_there(there, handle) == "share-handle"
        assert refuse_there(there, handle, b"theirs") == "share-handle"
        there(other.opened, "view", handle, b"ours")
        there(other.closed, "view")


def test_no_byte_of_a_handle_can_be_changed(lazy: Machine) -> None:
    with cd.share(array(lazy, lazy.stream())) as handle:
        other.settled_owners()  # What earlier tests have left ends on another thread, by calls of the driver.
        lazy.clear()
        for at in range(len(handle)):
            for changed in (handle[:at] + bytes([handle[at] ^ 0x10]) + handle[at + 1 :], handle[:at]):
                assert refuse(lambda changed=changed: cd.open(changed), ValueError).rule == "share-handle"  # type: ignore[misc]
        assert lazy.control.count() == 0


def test_a_handle_of_elsewhere_is_refused(lazy: Machine, there: Other) -> None:
    """What a handle says of its place is compared, also if who made it has the key."""
    of_elsewhere = {
        handles.BOOT: "share-host",
        handles.NAMESPACE: "share-host",
        handles.USER: "share-user",
        handles.PROCESS: "share-ended",
        handles.STARTED: "share-ended",
        handles.FILE: "share-ended",
        handles.NONCE: "share-ended",
        handles.DEVICE: "share-device",
    }
    with cd.share(array(lazy, None)) as handle:
        for field, rule in of_elsewhere.items():
            assert refuse_there(there, handles.changed(handle, field)) == rule


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(lazy: Machine) -> None:
    with Other() as there, cd.share(array(lazy, None)) as handle:
        there(other.opened, "view", handle)
        assert there(other.as_user, 65534, handle) == "share-user"


def test_a_handle_pickles_and_does_not_show_its_bytes(lazy: Machine) -> None:
    with cd.share(array(lazy, None)) as handle:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            loaded = pickle.loads(pickle.dumps(handle, protocol))
            assert type(loaded) is cd.Handle and loaded == handle
        assert repr(handle) == str(handle) == f"<cai_dlpack.Handle of {len(handle)} bytes>"


def test_a_program_that_inherits_nothing_opens_by_a_key(lazy: Machine) -> None:
    program = "import sys, numpy, cai_dlpack as cd\nview = cd.open(bytes.fromhex(sys.argv[1]), stream=1, key=b'ours')\n"
    program += "print(numpy.from_dlpack(view, device='cpu').tolist())"
    with cd.share(array(lazy, lazy.stream()), key=b"ours") as handle:
        command = [sys.executable, "-c", program, handle.hex()]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ran.stdout.strip() == str([float(number) for number in range(8)])


# --- devices, streams and memory ---


@pytest.mark.parametrize(
    ("visible", "found"), [("1,0", [(2, 1), (2, 0)]), ("0", [(2, 0), None]), ("1", [None, (2, 0)])]
)
def test_a_device_is_known_by_what_it_is(machine: Machine, visible: str, found: list[tuple[int, int] | None]) -> None:
    with Other(CUDA_VISIBLE_DEVICES=visible) as there:
        for ordinal, expected in enumerate(found):
            data = machine.device_memory(64, ordinal)
            described = interface(shape=(8,), typestr="<f8", data=(data, False), stream=None)
            machine.write(data, NUMBERS)
            with cd.share(cd.view(Cai(described))) as handle:
                if expected is None:
                    assert refuse_there(there, handle) == "share-device"
                    continue
                assert there(other.opened, "view", handle)["device"] == expected
                assert there(other.values, "view") == NUMBERS
                there(other.closed, "view")


def test_without_a_stream_it_is_ready_on_the_work_stream(lazy: Machine) -> None:
    stream = lazy.stream()
    with Other() as there:
        handle = there(other.shared, "array", 8)
        assert cd.open(handle).stream == 1
        with cd.use_stream(stream):
            opened = cd.open(handle)
        assert opened.stream == stream
        assert np.from_dlpack(opened, device="cpu").tobytes() == NUMBERS
        for wrong in (0, -1):
            refused = refuse(lambda wrong=wrong: cd.open(handle, stream=wrong), ValueError)  # type: ignore[misc]
            assert str(refused.rule).startswith("stream-")


def test_a_capture_is_neither_shared_nor_waited_in(lazy: Machine) -> None:
    captures, stream, data = Captures(lazy), lazy.stream(), lazy.device_memory(64)
    described = interface(shape=(8,), typestr="<f8", data=(data, False), stream=stream)
    with Other() as there:
        handle = there(other.shared, "array", 8)
        captures.begin(stream)
        try:
            assert refuse(lambda: cd.open(handle, stream=stream), BufferError).rule == "capture-consumer"
            assert refuse(lambda: handles.entered(cd.view(Cai(described))), BufferError).rule == "capture-producer"
        finally:
            captures.close()
        assert np.from_dlpack(cd.open(handle, stream=stream), device="cpu").tobytes() == NUMBERS


def test_an_array_that_is_ready_on_another_threads_stream_is_moved_to_one_with_a_handle(lazy: Machine) -> None:
    """No event of this thread's marks 2, the per-thread default stream, of that one."""
    found: dict[str, cd.CaiView] = {}

    def make() -> None:
        view = cd.view(array(lazy, 2), device_id=0)
        found.update(there=view, moved=view.on(lazy.stream()))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    refused = refuse(lambda: handles.entered(found["there"]), BufferError)
    assert refused.rule == "stream-thread" and "v.on(stream)" in refused.message
    assert handles.entered(found["moved"])


@contextmanager
def registered_memory(machine: Machine) -> Iterator[int]:
    """A page of the host's own memory, page-locked later on."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    pointer = ctypes.addressof(ctypes.c_char.from_buffer(page))
    machine._call("cuMemHostRegister_v2", ctypes.c_void_p(pointer), ctypes.c_size_t(mmap.PAGESIZE), 2)
    yield pointer
    machine._call("cuMemHostUnregister", ctypes.c_void_p(pointer))


def test_memory_is_refused_by_its_name(machine: Machine) -> None:
    def said(pointer: int) -> str:
        described = interface(shape=(8,), typestr="<f8", data=(pointer, False), stream=None)
        refused = refuse(lambda: handles.entered(cd.view(Cai(described), device_id=0)), BufferError)
        assert refused.rule == "share-memory"
        return refused.message

    assert "managed memory" in said(machine.managed_memory(64))
    assert "page-locked memory" in said(machine.pinned_memory(64))
    with registered_memory(machine) as pointer:
        assert "page-locked memory of the host (pinned or registered)" in said(pointer)
    refused = refuse(lambda: handles.entered(np.zeros(3)), BufferError)
    assert refused.rule == "share-memory" and "shared_memory" in refused.message
    copy: Any = cd.from_dlpack(np.zeros(3), device="cuda")
    refused = refuse(lambda: handles.entered(copy), BufferError)
    assert refused.rule == "share-memory" and "a pool that cannot be exported" in refused.message


def test_pickle_names_it() -> None:
    view = cd.view(Cai(interface(shape=(0,), typestr="<f8", data=(0, False))), device_id=0)
    refused = refuse(lambda: pickle.dumps(view), TypeError)
    assert refused.rule == "pickle" and "cai_dlpack.share(view)" in refused.message


def test_children_of_multiprocessing_open_by_default(lazy: Machine) -> None:
    context = multiprocessing.get_context("spawn")
    with cd.share(array(lazy, None)) as handle, context.Pool(1) as pool:
        assert pool.apply(total, (handle,)) == 28.0


def total(handle: bytes) -> float:
    return float(np.from_dlpack(cd.open(handle, stream=1), device="cpu").sum())
