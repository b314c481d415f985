"""Handles of `share` whose fields are changed by somebody who has the key."""

from __future__ import annotations

import hmac
import multiprocessing
from typing import Any

import cai_dlpack as cd

#: Where a field begins (`src/share/handle.rs`).
BOOT, NAMESPACE, USER, PROCESS, STARTED, FILE, NONCE, DEVICE = 8, 24, 32, 36, 40, 48, 52, 68
TAG = 32


def changed(handle: bytes, *fields: int, key: bytes | None = None) -> bytes:
    """The handle with one bit of each field changed, and the tag of that."""
    body = bytearray(handle[:-TAG])
    for field in fields:
        body[field] ^= 1
    return tagged(bytes(body), key)


def tagged(body: bytes, key: bytes | None = None) -> bytes:
    key = bytes(multiprocessing.current_process().authkey) if key is None else key
    return body + hmac.digest(key, body, "sha256")


def entered(array: Any) -> cd.Handle:
    """A handle whose block has been left."""
    with cd.share(array) as handle:
        return handle
