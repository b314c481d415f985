"""Random copies that fill a device end in random ways: as many new ones get memory as have ended.

A program fills the device, ends some of its copies (at once, behind a closed gate, in an object of Python's, or behind
a capture of this thread's, which goes on) and then asks for new ones. In some programs the threads that end copies are
refused what they ask once: then a new copy may be refused, too, and all else holds.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.partners.copying import copy_for, is_at_most, memory, settled, view, wait
from conformance.tests.partners.test_copy_room import MEBIBYTE, Holder, full
from conformance.tests.simulated.capture import ACTIVE, GLOBAL, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine

PROGRAMS = 40
KINDS = ("device", "managed", "other device", "cpu")
ENDS = ("none", "at once", "gate", "object", "object", "capture")
NO_SYNC, LEGACY, PER_THREAD = DEFAULTS = (-1, 1, 2)
#: What the threads that end copies ask the driver.
ASKED = ("cuEventQuery", "cuEventRecord", "cuStreamGetId", "cuCtxGetId", "cuCtxPushCurrent", "cuMemAlloc")
CODES = (1, 400, 801, 999)

pytestmark = pytest.mark.usefixtures("schedule")


class Program:
    """Copies, what each ends behind, and how many come back."""

    def __init__(self, machine: Machine, sources: dict[str, cd.CaiView], seed: int) -> None:
        self.machine, self.sources, self.random = machine, sources, random.Random(seed)
        self.streams: list[int] = []
        self.kept: list[abi.Read] = []
        self.captures = Captures(machine)
        self.due = 0

    def stream(self) -> int:
        self.streams.append(self.machine.stream(0))
        return self.streams[-1]

    def copy(self, stream: int) -> abi.Read:
        kind = self.random.choice(KINDS)
        if kind in ("other device", "cpu"):
            source = self.sources[kind].__dlpack__(stream=stream, dl_device=(2, 0), max_version=(1, 3))
            return abi.consume(source)
        return copy_for(self.sources[kind], stream)

    def run(self) -> None:
        made = []
        for _ in range(self.random.randrange(1, 5)):
            stream = self.random.choice([self.stream(), *DEFAULTS]) if self.random.random() < 0.4 else self.stream()
            made.append((self.copy(stream), stream))
        self.machine._call("cuCtxSynchronize")
        with full(self.machine):
            for tensor, stream in made:
                self.end(tensor, stream)
            faults = [(self.random.choice(ASKED), self.random.choice(CODES)) for _ in range(self.random.randrange(3))]
            for name, code in faults:
                self.machine.control.fault(name, code, self.random.randrange(1, 3), by="other")
            opens = threading.Timer(self.random.choice([0, 0.01, 0.03]), self.machine.control.open_gates)
            opens.start()
            wanted, begun = self.random.randrange(1, 4), time.monotonic()
            found = [self.asked() for _ in range(wanted)]
            assert time.monotonic() - begun < PATIENCE
            opens.join()
            self.machine.control.clear_faults()
            least = 0 if faults else min(wanted, self.due)
            assert least <= sum(found) <= min(wanted, self.due), f"{found} of {self.due}, {faults}"

    def end(self, tensor: abi.Read, stream: int) -> None:
        way = self.random.choice(ENDS)
        if way == "capture" and stream in DEFAULTS:
            way = "none"
        self.due += way != "none"
        if way == "none":
            self.kept.append(tensor)
            return
        if way == "capture":
            self.captures.begin(stream, self.random.choice([GLOBAL, THREAD_LOCAL, RELAXED]))
        elif way != "at once":
            reader = self.stream() if way == "object" or stream in DEFAULTS else stream
            self.machine.control.gate(reader)
            if way == "object":
                holder = cd.view(Holder(tensor, LEGACY if stream == NO_SYNC else stream), producer_stream=None)
                with holder.consume(reader):
                    return
        abi.release(tensor)

    def asked(self) -> bool:
        stream = self.stream()
        try:
            self.kept.append(self.copy(stream))
        except cd.DriverError as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            return False
        assert wait(self.machine, stream) == 0
        assert set(self.machine.read(self.kept[-1].data, MEBIBYTE)) == {1}
        return True

    def close(self) -> None:
        for stream in list(self.captures.open):
            assert self.captures.state(stream) == ACTIVE
            assert self.captures.nodes(self.captures.end(stream)) == 0
        for tensor in self.kept:
            abi.release(tensor)
        for stream in self.streams:
            assert wait(self.machine, stream) == 0
            self.machine.destroy_stream(stream)


def test_as_many_copies_get_memory_as_have_ended(machine: Machine) -> None:
    machine.context(1)
    there = machine.device_memory(MEBIBYTE, 1)
    machine.write(there, bytes([1]) * MEBIBYTE)
    pointers = {"device": memory(machine, "device", MEBIBYTE), "managed": memory(machine, "managed", MEBIBYTE)}
    sources = {kind: view(pointer, MEBIBYTE) for kind, pointer in {**pointers, "other device": there}.items()}
    sources["cpu"] = cd.view(np.ones(MEBIBYTE, np.uint8))
    before = settled(machine)
    for seed in range(PROGRAMS):
        program = Program(machine, sources, seed)
        try:
            program.run()
        except AssertionError as error:
            raise AssertionError(f"program {seed}") from error
        program.close()
        assert until(partial(is_at_most, machine, before)), f"program {seed}"
    for pointer in (*pointers.values(), there):
        machine.free(pointer)
