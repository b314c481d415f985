"""Two processes on shared memory and events, for long: prints what went wrong, as JSON.

race ROUNDS WAITS   the other process reads what this one writes, with a wait between (1) or without (0)
kills SECONDS       processes are killed at any moment, in turn the one that records and the one that waits
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter

from cai_conformance import Sim

from conformance.tests.cusim.model.driver import INTERPROCESS, Driver, Refused
from conformance.tests.cusim.model.other import Other

NBYTES = 64
MAP_FAILED, INVALID_HANDLE = 205, 400
# A wait that takes longer hangs.
SECONDS = 5


def race(cu: Driver, sim: Sim, rounds: int, waits: bool) -> dict[str, object]:
    memory, event, stream, wrong = cu.alloc(NBYTES), cu.event(INTERPROCESS), cu.stream(), 0
    with Other() as other:
        there, awaited = other.cu.ipc_open(cu.ipc_memory(memory)), other.cu.ipc_open_event(cu.ipc_event(event))
        reader, out = other.cu.stream(), other.cu.alloc_host(NBYTES)
        for number in range(rounds):
            pattern = bytes([1 + number % 250]) * NBYTES
            sim.delay(stream, 0.001)
            sim.store(stream, memory, pattern)
            cu.record(event, stream)
            if waits:
                other.cu.stream_wait(reader, awaited)
            other.cu.read_async(out, there, NBYTES, reader)
            other.cu.wait_for(reader)
            wrong += other.sim.peek(out, NBYTES) != pattern
            cu.wait_for(stream)
    return {"reads": rounds, "wrong": wrong}


RECORDS = """
memory, event, stream = cu.alloc(64), cu.event(INTERPROCESS), cu.stream()
cu.record(event, stream)
print(cu.ipc_memory(memory).hex(), cu.ipc_event(event).hex(), flush=True)
while True:
    for _ in range(20):
        sim.store(stream, memory, b"x" * 64)
        cu.record(event, stream)
        sim.delay(stream, 0.0005)
    time.sleep(0.002)
"""
WAITS = """
memory, event, back = (bytes.fromhex(text) for text in sys.argv[1:])
print("ready", flush=True)
while True:
    there, awaited, own = cu.ipc_open(memory), cu.ipc_open_event(event), cu.ipc_open_event(back)
    stream, out = cu.stream(), cu.alloc(64)
    for _ in range(5):
        cu.stream_wait(stream, awaited)
        cu.copy_async(out, there, 64, stream)
        cu.record(own, stream)
    cu.event_wait(awaited)
    cu.wait_for(stream)
    cu.destroy_event(awaited)
    cu.destroy_event(own)
    cu.ipc_close(there)
    cu.free(out)
    cu.destroy_stream(stream)
"""
START = """
import sys, time
from cai_conformance import Sim
from conformance.tests.cusim.model.driver import Driver, INTERPROCESS
cu, sim = Driver(), Sim()
cu.set_current(cu.retain(0))
"""


class Victim:
    """A process that goes on until it is killed, by a third one: while this one waits, or before."""

    def __init__(self, text: str, *handles: bytes) -> None:
        command = [sys.executable, "-c", START + text, *(handle.hex() for handle in handles)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout
        self.said = self.process.stdout.readline().split()
        seconds = random.uniform(0, 0.2)
        self.killer = subprocess.Popen(["sh", "-c", f"sleep {seconds:.3f}; kill -9 {self.process.pid}"])

    def is_killed(self) -> bool:
        return self.killer.poll() is not None

    def end(self) -> None:
        self.killer.wait()
        self.process.communicate()


def outlive_a_recorder(cu: Driver, stream: int) -> Counter[str]:
    """Waits for a process until that is an error, and gives everything back."""
    victim = Victim(RECORDS)
    handle, text = (bytes.fromhex(said) for said in victim.said)
    seen: Counter[str] = Counter()
    try:
        memory, event = cu.ipc_open(handle), cu.ipc_open_event(text)
    except Refused as refused:
        victim.end()
        return Counter([str(refused)])
    try:
        while True:
            cu.event_wait(event)
            cu.stream_wait(stream, event)
            cu.wait_for(stream)
            cu.event_done(event)
    except Refused as refused:
        seen[str(refused)] += 1
    cu.wait_for(stream)
    cu.destroy_event(event)
    cu.ipc_close(memory)
    victim.end()
    return seen


def outlive_those_who_wait(cu: Driver, sim: Sim, stream: int) -> None:
    """Records for two processes and waits for what they record, until both are gone and after."""
    memory, events = cu.alloc(NBYTES), [cu.event(INTERPROCESS) for _ in range(2)]
    handles = [cu.ipc_memory(memory), *map(cu.ipc_event, events)]
    victims = [Victim(WAITS, *handles) for _ in range(2)]
    alive = True
    while alive:
        alive = not all(victim.is_killed() for victim in victims)
        sim.store(stream, memory, b"x" * NBYTES)
        cu.record(events[0], stream)
        cu.stream_wait(stream, events[1])
        if random.random() < 0.3:
            cu.wait_for(stream)
    cu.event_wait(events[1])
    cu.wait_for(stream)
    for victim in victims:
        victim.end()
    for event in events:
        cu.destroy_event(event)
    cu.free(memory)


def kills(cu: Driver, sim: Sim, seconds: float) -> dict[str, object]:
    stream, rounds, wrong, slowest = cu.stream(), 0, [], 0.0
    seen: Counter[str] = Counter()
    before = None
    end = time.monotonic() + seconds
    while time.monotonic() < end or rounds < 3:
        began = time.monotonic()
        seen += outlive_a_recorder(cu, stream)
        outlive_those_who_wait(cu, sim, stream)
        slowest = max(slowest, time.monotonic() - began)
        rounds += 1
        # The first round opens what stays: the doorbell.
        left = sim.live(), sim.pending(), len(os.listdir("/proc/self/fd")) < 20
        before = before or left
        if left != before:
            wrong.append(f"left behind after round {rounds}: {left}, was {before}")
    allowed = {f"cu{call}: {INVALID_HANDLE}" for call in ("EventSynchronize", "EventQuery", "StreamWaitEvent")}
    allowed |= {f"cuIpcOpen{what}: {MAP_FAILED}" for what in ("MemHandle_v2", "EventHandle")}
    wrong += [said for said in seen if said not in allowed]
    if slowest > SECONDS:
        wrong.append(f"a round took {slowest:.1f} s")
    return {"rounds": rounds, "wrong": wrong, "errors": seen}


def main() -> None:
    cu, sim = Driver(), Sim()
    cu.set_current(cu.retain(0))
    what, *numbers = sys.argv[1:]
    programs = {
        "race": lambda: race(cu, sim, int(numbers[0]), numbers[1] == "1"),
        "kills": lambda: kills(cu, sim, float(numbers[0])),
    }
    print(json.dumps(programs[what]()))


if __name__ == "__main__":
    main()
