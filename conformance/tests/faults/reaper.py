"""Has the reaper begin while there is no memory, after one more allocation in each of many children; prints each child
that ended badly.

A program, for a process of its own on the simulated driver, as `allocations` is.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import ctypes
import os
import sys
import threading
import time
import weakref

import cai_dlpack as cd
import numpy as np
from cai_conformance import abi

from conformance.tests.faults.allocations import wait_until
from conformance.tests.faults.capsules import Elements

#: More than the call of a deleter makes by ctypes.
ALLOCATIONS = 12
NOT_CALLED = 2


def begin(nth: int) -> tuple[bool, str]:
    """Has a deleter called without the GIL, and no memory from the nth allocation on; returns whether it was called,
    and what went wrong.

    Not on the main thread, which runs the pending call, and would be faster than the reaper.
    """
    array = np.zeros((2, 3), "f4").view(Elements)
    tensor = abi.consume(cd.to_dlpack(array, max_version=(1, 3)))
    delete, address = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(tensor.deleter), ctypes.c_void_p(tensor.address)
    lives, wait, is_called = weakref.ref(array), time.sleep, False
    del array
    wait(0.05)  # until the main thread waits for this one
    _testcapi.set_nomemory(nth, 0)
    try:
        delete(address)
        is_called = True
        wait(0.02)
    except (MemoryError, ctypes.ArgumentError):
        pass  # before the call
    finally:
        _testcapi.remove_mem_hooks()
    if not is_called:
        return False, "" if lives() is not None else "ended without a call"
    is_ended = wait_until(lambda: lives() is None and cd.stats()["live"] == 0)
    return True, "" if is_ended else f"it never ended: {cd.stats()}"


def elsewhere(nth: int) -> int:
    """Returns the exit code of a child: 0 if the reaper has begun, `NOT_CALLED` if the memory lacked before, else 1."""
    found: list[tuple[bool, str]] = []
    thread = threading.Thread(target=lambda: found.append(begin(nth)))
    thread.start()
    thread.join()
    is_called, wrong = found[0] if found else (False, "raised")
    if wrong:
        print(f"after {nth} allocations: {wrong}", flush=True)
        return 1
    return 0 if is_called else NOT_CALLED


def main() -> int:
    begun, wrong = 0, list[str]()
    for nth in range(ALLOCATIONS):
        child = os.fork()
        if not child:
            os._exit(elsewhere(nth))
        status = os.waitpid(child, 0)[1]
        begun += status == 0
        if os.waitstatus_to_exitcode(status) not in (0, NOT_CALLED):
            wrong.append(f"after {nth} allocations: status {status}")
    print("\n".join(wrong))
    print(f"{begun} failed allocations, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
