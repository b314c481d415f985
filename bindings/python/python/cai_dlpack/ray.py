"""Ray: views travel between actors by its direct transport, whose interface is alpha. Read against ray 2.60.0.

    cai_dlpack.ray.register()        in the process that makes the actors, before their class is defined

    @ray.remote(enable_tensor_transport=True)
    class Maker:
        @ray.method(tensor_transport="cai_dlpack")
        def make(self): return cd.view(array)

What a method returns, alone or beside other objects, is made ready and copied to Ray's object store when the method
returns; memory of a device goes to the host first. An actor that is given it, and `ray.get`, read the store: on one
host that is shared memory. What was on a device goes to the receiver's; where that has none, or no room, it stays on
the host, and the logger `cai_dlpack` says so. What arrives is an array of its own, in C order, with the shape, the type
and the read-only flag of the view: a read-only one of the host is the store's memory itself, any other a copy.

With `register(ipc=True)` device memory that CUDA IPC shares is shared, too: a receiver on the same host, of the same
user, that sees the same device, has the sender's memory itself, without a copy and with the view's strides; any other
has the store's copy. The store's copy is a snapshot; what is shared changes if the sender writes it later.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray._private.ray_constants import RDT_FETCH_FAIL_TIMEOUT_SECONDS
from ray._private.worker import global_worker
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

import cai_dlpack as cd
from cai_dlpack import CaiView, pickling
from cai_dlpack._wire import Header, ToDevice, is_on_device, of_bytes, to_bytes

NAME = "CAI_DLPACK"

_LOG = logging.getLogger("cai_dlpack")


def register(to_device: ToDevice | None = None, *, ipc: bool = False) -> None:
    """Registers the transport `cai_dlpack` with Ray, and `CaiView` with `pickle`. May be called again.

    Actors get the transport from the process that makes them. What travels by other ways of Ray is pickled: arguments,
    results of methods without the transport; an actor that returns such results calls `cai_dlpack.pickling.register`.

    Parameters
    ----------
    to_device : ToDevice | None, default None
        As for `cai_dlpack.pickling.register`; an actor that receives calls that function to choose.
    ipc : bool, default False
        Whether actors that send share device memory, too. Who receives need not ask for it. The key of the handles does
        not travel with them: it is in a file that this user alone can read.

    Raises
    ------
    ValueError
        If the transport is registered in this process already, otherwise.
    """
    from ray.experimental.rdt.util import transport_manager_info

    pickling.register(to_device)
    chosen = SharingTransport if ipc else Transport
    if NAME not in transport_manager_info:
        register_tensor_transport(NAME, ["cpu", "cuda"], chosen, CaiView)
    elif transport_manager_info[NAME].transport_manager_class is not chosen:
        raise ValueError(f"the transport is registered already, with ipc={not ipc}")


@dataclass
class Metadata(TensorTransportMetadata):
    """What the views of one object are, and where their bytes lie."""

    headers: list[Header] = field(default_factory=list)
    #: The object in Ray's store, and who owns it. A reference of Ray's itself, pickled here, would never be released.
    stored: tuple[bytes, bytes, bytes] | None = None
    #: For each view a handle of `share`, if it is shared, too.
    handles: list[bytes | None] = field(default_factory=list)


class Transport(TensorTransportManager):
    """Carries views by Ray's object store; the receiver takes them, and the sender has nothing more to do."""

    def __init__(self) -> None:
        self._stored: dict[str, Any] = {}
        #: Open blocks of `share`, by the object that they are for.
        self._shared: dict[str, list[Any]] = {}

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        # Each wait ends by itself. If not, Ray would kill both actors.
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[CaiView]) -> Metadata:
        """Copies views to the store, when they are ready.

        Raises:
            BufferError: of memory of a device that is not CUDA's, rule `copy-refused`.
        """
        sent = [to_bytes(view) for view in rdt_object]
        stored = None
        if sent:
            reference = ray.put([data for _, data in sent])
            _, owner, status = global_worker.core_worker.serialize_object_ref(reference)
            stored = (reference.binary(), owner, status)
            self._stored[obj_id] = reference
        return Metadata(
            tensor_meta=[(view.shape, str(view.dtype)) for view in rdt_object],
            tensor_device="cuda" if any(map(is_on_device, rdt_object)) else "cpu",
            headers=[header for header, _ in sent],
            stored=stored,
            handles=self._share(obj_id, rdt_object),
        )

    def _share(self, obj_id: str, views: list[CaiView]) -> list[bytes | None]:
        """Returns a handle for each view that is shared until the object's end, None for the others."""
        return [None] * len(views)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[CaiView]:
        """Returns the views of an object.

        Raises:
            ValueError: of target buffers, which are not taken.
            ray.exceptions.RayError: the sender has ended, or its object is lost.
        """
        if target_buffers:
            raise ValueError("target buffers are not taken: copy what arrives")
        metadata = tensor_transport_metadata
        opened = [_opened(handle) for handle in metadata.handles or [None] * len(metadata.headers)]
        if metadata.stored is None or None not in opened:
            return [view for view in opened if view is not None]
        binary, owner, status = metadata.stored
        reference = ray.ObjectRef(binary, owner)
        core = global_worker.core_worker
        core.deserialize_and_register_object_ref(binary, ray.ObjectRef.nil(), owner, status)
        found: list[np.ndarray[Any, Any]] = ray.get(reference, timeout=RDT_FETCH_FAIL_TIMEOUT_SECONDS)
        parts = zip(opened, metadata.headers, found, strict=True)
        return [of_bytes(header, data) if view is None else view for view, header, data in parts]

    def send_multiple_tensors(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the receiver reads the store")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Metadata, tensors: list[CaiView]) -> None:
        self._stored.pop(obj_id, None)
        for block in self._shared.pop(obj_id, []):
            block.__exit__(None, None, None)

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing is left to end: `recv_multiple_tensors` waits for a limited time."""


class SharingTransport(Transport):
    """Shares device memory, too, with receivers of the same host."""

    def _share(self, obj_id: str, views: list[CaiView]) -> list[bytes | None]:
        blocks: list[Any] = []
        handles: list[bytes | None] = []
        for view in views:
            handle = None
            if is_on_device(view) and view.nbytes:
                try:
                    block = cd.share(view, key=_users_key())
                    handle = bytes(block.__enter__())
                    blocks.append(block)
                except (cd.Refusal, cd.DriverError, OSError) as error:
                    _LOG.info("%d bytes of a device are stored, and not shared: %s", view.nbytes, error)
            handles.append(handle)
        self._shared[obj_id] = blocks
        return handles


def _opened(handle: bytes | None) -> CaiView | None:
    """The view of a handle; None if it is not opened here: another host, user or device, or it has ended."""
    if handle is None:
        return None
    try:
        return cd.open(handle, key=_users_key())
    except (cd.Refusal, cd.DriverError, OSError) as error:
        _LOG.info("what the sender shares is read from the store: %s", error)
        return None


def _users_key() -> bytes:
    """The key of this user's processes on this machine, made by the first of them: the actors of Ray inherit none.

    Raises:
        OSError: there is no such file, and none can be made; or it is not this user's alone.
    """
    name = f"/dev/shm/cai-dlpack-{os.geteuid()}.key"
    if not os.path.lexists(name):
        # Whole when it gets its name, and never replaced.
        made, temporary = tempfile.mkstemp(prefix="cai-dlpack-", dir="/dev/shm")  # Its mode is 0600.
        with os.fdopen(made, "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(temporary, name)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{name} is not this user's alone")
        return os.read(descriptor, 32)
    finally:
        os.close(descriptor)
