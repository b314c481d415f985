"""Memory of pools between processes: cuda.core pickles its own `Buffer`, and the handle of `share` carries that.

The pool's POSIX descriptor goes over a socket of this machine, to each process that proves it has the handle and the
key, as long as the block of `share` is open. What is loaded names objects of cuda.core alone; it is loaded only after
the handle's tag has been checked.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import io
import os
import pickle
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any

#: What takes longer hangs.
_SECONDS = 30
_PROOF = 32
#: How often a descriptor is asked for.
_TRIES = 3
#: Before connections are taken again.
_PAUSE = 0.01

#: Held while cuda.core imports or frees. cuda.core 1.2.2 waits for the GIL with a lock that others wait for with the
#: GIL: two threads that import at once hang (cuda-python #2840), and what one thread frees is unmapped for another that
#: has just imported it (#2848). Reentrant: an import may collect garbage, which frees.
_alone = threading.RLock()

#: Buffers whose context is gone, which cuda.core would free on a stream of theirs.
_abandoned: list[Any] = []


def _in_child() -> None:
    """Replaces the lock in a forked child, whose copy another thread of the parent may have held."""
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_in_child)


def dump(shared: Any, owner: Any, key: bytes) -> tuple[bytes, tuple[int, int], Giver] | None:
    """Pickles the buffer of cuda.core that an object is, or that its view has as its owner; None if there is none.

    Returns also where the buffer lies, and what has to be closed with the block.
    """
    for buffer in (shared, owner):
        if _is_of_cuda_core(buffer) and getattr(buffer.memory_resource, "is_ipc_enabled", False):
            break
    else:
        return None
    giver = Giver(key)
    try:
        content = io.BytesIO()
        _Pickler(content, giver).dump(buffer)
    except BaseException:
        giver.close()
        raise
    return content.getvalue(), (int(buffer.handle), buffer.size), giver


def load(content: bytes, key: bytes, held: object) -> Mapped:
    """Maps the buffer that another process has dumped. cuda.core leaves the device's context current."""
    with _Relaxed():
        return Mapped(_Unpickler(io.BytesIO(content), key).load(), held)


def _is_of_cuda_core(found: Any) -> bool:
    of = type(found)
    return of.__name__ == "Buffer" and of.__module__.startswith("cuda.core.")


class Mapped:
    """A buffer of another process's pool. That process keeps it until the buffer here has been closed."""

    def __init__(self, buffer: Any, held: object) -> None:
        from cuda.bindings import driver

        self.buffer, self._held = buffer, held
        self.range = (int(buffer.handle), buffer.size)
        self._driver = driver
        # cuda.core has imported it in the current context, whose handle may be another one's later.
        _, self._context = driver.cuCtxGetCurrent()
        self._identity = driver.cuCtxGetId(self._context)
        failed, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        # Without room for one, the default stream, behind everything.
        self._stream = 0 if failed else stream

    def __del__(self) -> None:
        """Frees the buffer on a stream of its own, behind nothing: the devices have done what used it. And waits.

        A driver counts no imports: another one before the free would be of the same mapping, which the free ends
        (NVIDIA's bug 5570902). If the context is gone, so is the stream, and the mapping stays.
        """
        from cuda.core import Stream

        driver = self._driver
        with _alone, _Relaxed():
            is_there = driver.cuCtxGetId(self._context) == self._identity
            if not is_there or driver.cuCtxPushCurrent(self._context)[0]:
                _abandoned.append(self.buffer)
                return
            try:
                self.buffer.close(Stream.from_handle(int(self._stream)))
                driver.cuStreamSynchronize(self._stream)
                if self._stream:
                    driver.cuStreamDestroy(self._stream)
            finally:
                driver.cuCtxPopCurrent()


class _Relaxed:
    """Lets this thread import, free and wait beside a capture of another one, which may forbid such calls and break."""

    def __enter__(self) -> None:
        from cuda.bindings import driver

        self._exchange = driver.cuThreadExchangeStreamCaptureMode
        self._refused, self._before = self._exchange(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)

    def __exit__(self, *failed: object) -> None:
        if not self._refused:
            self._exchange(self._before)


class _Pickler(ForkingPickler):
    """cuda.core's reducers, with descriptors given by `Giver`: `multiprocessing`'s own way gives each one once."""

    def __init__(self, file: io.BytesIO, giver: Giver) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._giver = giver

    def persistent_id(self, found: Any) -> tuple[bytes, bytes] | None:
        if isinstance(found, resource_sharer.DupFd):
            return self._giver.give(found.detach())
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, key: bytes) -> None:
        super().__init__(file)
        self._key = key

    def persistent_load(self, named: tuple[bytes, bytes]) -> _Descriptor:
        return _Descriptor(*named, self._key)

    def find_class(self, module: str, name: str) -> Any:
        # So a method of a class is pickled.
        if (module, name) == ("builtins", "getattr"):
            return _method
        is_of_cuda_core = module.startswith("cuda.core.") and "__" not in name
        if not (is_of_cuda_core or (module, name) == ("uuid", "UUID")):
            raise pickle.UnpicklingError(f"a handle of memory of a pool names {module}.{name}")
        found = super().find_class(module, name)
        return _by_one_thread(found) if "." in name else found


def _method(of: Any, name: str) -> Any:
    """Returns a method of a class of cuda.core's."""
    if not (isinstance(of, type) and of.__module__.startswith("cuda.core.")) or "__" in name:
        raise pickle.UnpicklingError(f"a handle of memory of a pool names {name} of {of!r}")
    return _by_one_thread(getattr(of, name))


def _by_one_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that imports a pool or a buffer, as one that one thread at a time calls."""

    def called(*arguments: object) -> Any:
        with _alone:
            return method(*arguments)

    return called


class _Descriptor:
    """What stands for `multiprocessing`'s DupFd."""

    def __init__(self, address: bytes, token: bytes, key: bytes) -> None:
        self._address, self._token, self._key = address, token, key

    def detach(self) -> int:
        """Returns a descriptor of this process's own. The caller closes it.

        Raises:
            OSError: the process that shares the memory has ended that, or gives no answer.
        """
        try:
            # The giver waits for a second: this process may have stood still for longer.
            for _ in range(_TRIES):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                    if descriptors := self._asked():
                        os.set_inheritable(descriptors[0], False)
                        return descriptors[0]
                time.sleep(_PAUSE)
        except TimeoutError:
            text = f"the process that shares the memory has not given its pool's descriptor for {_SECONDS} s"
            raise TimeoutError(text) from None
        raise PermissionError("the process that shares the memory does not give its pool's descriptor to this one")

    def _asked(self) -> list[int]:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_SECONDS)
            asking.connect(self._address)
            if _user(asking) != os.geteuid():
                return []
            asking.sendall(_proof(self._key, self._token))
            _, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
            return descriptors


class Giver:
    """Gives one descriptor to whoever has the handle and the key, until it is closed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._token = secrets.token_bytes(16)
        self._socket: socket.socket | None = None
        self._process = os.getpid()

    def give(self, descriptor: int) -> tuple[bytes, bytes]:
        """Takes over a descriptor; returns what a handle names it by."""
        # Who takes it out closes it: an interrupt may come before or after the thread has begun.
        owned = [descriptor]
        try:
            # Linux's abstract names: there is no file to remove, also for a process that is killed.
            address = b"\0cai-dlpack-" + secrets.token_hex(16).encode()
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(address)
            self._socket.listen()
            # The thread does not keep this, which ends it.
            arguments = (self._socket, owned, _proof(self._key, self._token))
            threading.Thread(target=_serve, args=arguments, daemon=True).start()
        except BaseException:
            with contextlib.suppress(IndexError):
                os.close(owned.pop())
            raise
        return address, self._token

    def close(self) -> None:
        """Gives nothing any more. In a forked child that is its parent's affair."""
        if self._socket:
            if self._process == os.getpid():
                # For a forked child's copy of the socket, too.
                with contextlib.suppress(OSError):  # The thread has ended by itself, for lack of memory.
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None

    def __del__(self) -> None:
        """Ends with a block that was never left."""
        self.close()


def _serve(listening: socket.socket, owned: list[int], proof: bytes) -> None:
    try:
        descriptor = owned.pop()
    except IndexError:
        return
    try:
        while True:
            try:
                asked, _ = listening.accept()
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EBADF):
                    break  # Closed.
                time.sleep(_PAUSE)  # There are no descriptors left, or no memory, for now.
                continue
            with asked:
                asked.settimeout(1)
                try:
                    # Every user may connect, and say nothing.
                    if _user(asked) != os.geteuid():
                        continue
                    if hmac.compare_digest(asked.recv(_PROOF, socket.MSG_WAITALL), proof):
                        socket.send_fds(asked, [b"\0"], [descriptor])
                except OSError:
                    pass  # It has gone, or says nothing.
    finally:
        os.close(descriptor)
        listening.close()


def _user(asked: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


def _proof(key: bytes, token: bytes) -> bytes:
    return hmac.digest(key, b"cai-dlpack descriptor" + token, "sha256")
