"""Keeps the machine from what a check could cost it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def little_memory(more: int = 4 << 30) -> Iterator[None]:
    """Lets this process have so many more bytes of addresses: a copy of what is larger raises MemoryError, and takes no
    memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + more
    if before[0] == resource.RLIM_INFINITY or limit < before[0]:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
