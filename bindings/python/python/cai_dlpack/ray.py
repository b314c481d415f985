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
"""

from __future__ import annotations

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

from cai_dlpack import CaiView, pickling
from cai_dlpack._wire import Header, ToDevice, is_on_device, of_bytes, to_bytes

NAME = "CAI_DLPACK"


def register(to_device: ToDevice | None = None) -> None:
    """Registers the transport `cai_dlpack` with Ray, and `CaiView` with `pickle`. May be called again.

    Actors get the transport from the process that makes them. What travels by other ways of Ray is pickled: arguments,
    results of methods without the transport; an actor that returns such results calls `cai_dlpack.pickling.register`.

    Parameters
    ----------
    to_device : ToDevice | None, default None
        As for `cai_dlpack.pickling.register`; an actor that receives calls that function to choose.
    """
    from ray.experimental.rdt.util import transport_manager_info

    pickling.register(to_device)
    if NAME not in transport_manager_info:
        register_tensor_transport(NAME, ["cpu", "cuda"], Transport, CaiView)


@dataclass
class Metadata(TensorTransportMetadata):
    """What the views of one object are, and where their bytes lie.

    Device memory by IPC between the processes of one host belongs here, as a second way beside the store: a handle for
    each view, chosen by the receiver if it is on the same host and sees the same device.
    """

    headers: list[Header] = field(default_factory=list)
    #: The object in Ray's store, and who owns it. A reference of Ray's itself, pickled here, would never be released.
    stored: tuple[bytes, bytes, bytes] | None = None


class Transport(TensorTransportManager):
    """Carries views by Ray's object store; the receiver takes them, and the sender has nothing more to do."""

    def __init__(self) -> None:
        self._stored: dict[str, Any] = {}

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
        )

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
        if tensor_transport_metadata.stored is None:
            return []
        binary, owner, status = tensor_transport_metadata.stored
        reference = ray.ObjectRef(binary, owner)
        core = global_worker.core_worker
        core.deserialize_and_register_object_ref(binary, ray.ObjectRef.nil(), owner, status)
        found: list[np.ndarray[Any, Any]] = ray.get(reference, timeout=RDT_FETCH_FAIL_TIMEOUT_SECONDS)
        return [of_bytes(header, data) for header, data in zip(tensor_transport_metadata.headers, found, strict=True)]

    def send_multiple_tensors(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the receiver reads the store")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Metadata, tensors: list[CaiView]) -> None:
        self._stored.pop(obj_id, None)

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing is left to end: `recv_multiple_tensors` waits for a limited time."""
