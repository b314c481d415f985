"""Two processes on one device."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from ctypes import Structure, byref, c_ubyte, c_uint, c_uint64, c_void_p
from pathlib import Path

from cai_conformance.slow import Slow

from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.addresses import told
from conformance.tests.cusim.questions.ask import LONG, has_waited, question

ROOT = Path(__file__).resolve().parents[4]


class Handle(Structure):
    """CUipcMemHandle and CUipcEventHandle: 64 bytes, passed by value."""

    _fields_ = (("bytes", c_ubyte * 64),)


def start(role: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts the other process, with a role below."""
    command = [sys.executable, "-m", "conformance.tests.cusim.questions.processes", role, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@question
def memory_of_another_process(cu: Driver) -> object:
    """attributes of device memory that another process has exported (IPC)"""
    handle = Handle()
    cu("cuIpcGetMemHandle", byref(handle), c_uint64(cu.alloc(1 << 21)))
    with start("open-memory", bytes(handle.bytes).hex()) as other:
        return other.communicate(timeout=30)[0].strip()


@question
def event_of_another_process(cu: Driver) -> object:
    """an event of another process (IPC), recorded there behind long work: does a stream here wait for it?"""
    handle, event, stream = Handle(), cu.event(6), cu.stream()  # INTERPROCESS | DISABLE_TIMING
    cu("cuIpcGetEventHandle", byref(handle), c_void_p(event))
    slow = Slow()
    slow.busy(stream, 0)
    cu.wait_for(stream)
    with start("wait-for-event", bytes(handle.bytes).hex()) as other:
        assert other.stdin and other.stdout
        other.stdout.readline()
        slow.busy(stream, 4 * LONG)
        cu.record(event, stream)
        return other.communicate("go\n", timeout=30)[0].strip()


@question
def free_beside_another_process(cu: Driver) -> object:
    """does cuMemFree wait for the work of another process on the device?"""
    memory = cu.alloc(64)
    with start("be-busy") as other:
        assert other.stdin and other.stdout
        other.stdout.readline()
        began = time.monotonic()
        code = cu.code("cuMemFree_v2", c_uint64(memory))
        took = time.monotonic() - began
        other.communicate("end\n", timeout=30)
    return code, "waits" if took > LONG else "does not wait"


@question
def a_free_beside_own_work(cu: Driver) -> object:
    """the same for the work of this process: the way to tell the two apart"""
    memory = cu.alloc(64)
    return has_waited(cu, lambda: cu.code("cuMemFree_v2", c_uint64(memory)))


def main() -> None:
    role, *arguments = sys.argv[1:]
    cu = Driver(ctypes.CDLL("libcuda.so.1"))
    cu.set_current(cu.retain(0))
    if role == "open-memory":
        address = c_uint64()
        handle = Handle((c_ubyte * 64)(*bytes.fromhex(arguments[0])))
        cu("cuIpcOpenMemHandle_v2", byref(address), handle, c_uint(1))
        print(told(cu, address.value))
    elif role == "wait-for-event":
        event, stream = c_void_p(), cu.stream()
        handle = Handle((c_ubyte * 64)(*bytes.fromhex(arguments[0])))
        cu("cuIpcOpenEventHandle", byref(event), handle)
        print("ready", flush=True)
        sys.stdin.readline()
        cu("cuStreamWaitEvent", c_void_p(stream), event, c_uint(0))
        print("does not wait" if cu.is_done(stream) else "waits")
    elif role == "be-busy":
        stream = cu.stream()
        slow = Slow()
        slow.busy(stream, 0)
        cu.wait_for(stream)
        slow.busy(stream, 4 * LONG)
        print("busy", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
