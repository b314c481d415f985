"""Runs the races of `conformance/tests/streams` on a GPU, with a kernel that waits before it writes.

    PYTHONPATH=conformance/kit/src python -m conformance.soak.gpu_races --trials 10000

Each pair of streams runs twice: as the library orders it, where no copy may be wrong, and with nobody
ordering (`cd.policy(sync="none")`), where copies must be wrong: else the race is too slow to be lost, and
proves nothing. A line for each goes to `conformance/results/gpu-stream-races.tsv`, with the hardware, the
driver, date and commit. Exits with 1 where either is not so.

On the simulator (`python -m cai_conformance simulate -- ... --simulated`) it runs the same way, to see that
it runs, and keeps nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import platform
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
from cai_conformance.library import NotSimulated, require_simulator

from conformance.provenance import commit, today
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import NBYTES, Calls, Pair, Track, by_dlpack, forward, there_and_back
from conformance.tests.streams.trials import COMBINATIONS

CONFORMANCE = Path(__file__).resolve().parents[1]
RESULTS = CONFORMANCE / "results" / "gpu-stream-races.tsv"


HEAD = (
    "date\tcommit\thardware\tdriver\tpython\tcai_dlpack\t"
    "ready\trequest\tpolicy\tface\ttrials\twrong\tunordered_trials\tunordered_wrong\tseconds\n"
)
# Of the slow kernel: some 50 microseconds, longer than it takes to enqueue the copy.
CYCLES = 100_000
DELAY_SECONDS = 50e-6

SLOW_FILL = b"""
.version 5.0
.target sm_50
.address_size 64
.visible .entry slow_fill(.param .u64 address, .param .u32 value, .param .u64 cycles)
{
    .reg .pred %early;
    .reg .b32 %at, %byte;
    .reg .b64 %now, %end, %to, %offset;
    mov.u64 %now, %clock64;
    ld.param.u64 %end, [cycles];
    add.u64 %end, %end, %now;
wait:
    mov.u64 %now, %clock64;
    setp.lt.u64 %early, %now, %end;
    @%early bra wait;
    mov.u32 %at, %tid.x;
    cvt.u64.u32 %offset, %at;
    ld.param.u64 %to, [address];
    cvta.to.global.u64 %to, %to;
    add.u64 %to, %to, %offset;
    ld.param.u32 %byte, [value];
    st.global.u8 [%to], %byte;
    ret;
}
"""


class Gpu(Machine):
    """Drives a real GPU, which has no log: `order` is empty."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(library=ctypes.CDLL("libcuda.so.1")))  # type: ignore[arg-type]
        self.set_current(0)
        module, self.slow_fill = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(SLOW_FILL))
        self._call("cuModuleGetFunction", ctypes.byref(self.slow_fill), module, ctypes.c_char_p(b"slow_fill"))

    def clear(self) -> None:
        pass

    def calls(self) -> Calls:
        return []

    def write(self, pointer: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, pointer: int, nbytes: int) -> bytes:
        target = ctypes.create_string_buffer(nbytes)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        return target.raw

    def launch(self, stream: int, address: int, value: int) -> None:
        arguments = ctypes.c_uint64(address), ctypes.c_uint32(value), ctypes.c_uint64(CYCLES)
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(argument) for argument in arguments))
        grid_and_block = (1, 1, 1, NBYTES, 1, 1)
        self._call("cuLaunchKernel", self.slow_fill, *grid_and_block, 0, ctypes.c_void_p(stream), pointers, None)

    def facts(self) -> list[str]:
        name, version = ctypes.create_string_buffer(100), ctypes.c_int()
        self._call("cuDeviceGetName", name, 100, 0)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return [name.value.decode(), f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"]


class GpuTrack(Track):
    """Writes by the slow kernel, looks by a copy to the host."""

    machine: Gpu

    def write(self, stream: int, value: int) -> None:
        self.machine.launch(stream, self.data, value)

    def seen(self) -> int:
        found = self.machine.read(self.copy, NBYTES)
        return found[0] if found == found[:1] * NBYTES else -1


class SimulatedTrack(Track):
    """Races on the simulator, with a delay in place of the slow kernel."""

    def write(self, stream: int, value: int) -> None:
        self.control.delay(stream, DELAY_SECONDS)
        super().write(stream, value)


def wrong(track: Track, pair: Pair, loan: bool, trials: int) -> int:
    """Returns how many of `trials` copies are not of the write that they were ordered after."""
    bad = 0
    for trial in range(trials):
        value = 1 + 2 * (trial % 80)  # the loan's second write has the even number after it; never 0xA5
        if loan:
            there_and_back(track, pair, value)
        else:
            forward(track, pair, by_dlpack, value)
        bad += track.seen() != value
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--unordered", type=int, default=100, help="trials in which nobody orders")
    parser.add_argument("--simulated", action="store_true", help="on the simulator; keeps no result")
    asked = parser.parse_args()
    machine: Any
    kind: type[Track]
    if asked.simulated:
        from cai_conformance import Sim

        control = Sim()
        control.set("log", 0)
        machine, kind, facts = Machine(control), SimulatedTrack, ["simulator"]
        machine.set_current(0)
    else:
        try:
            require_simulator()
        except NotSimulated:
            pass
        else:
            parser.error("this is the simulator: say --simulated")
        machine, kind = Gpu(), GpuTrack
        facts = machine.facts()
        if not RESULTS.exists():
            RESULTS.write_text(HEAD, encoding="utf-8")
    lost = False
    for pair, loan in COMBINATIONS:
        track, start = kind(machine), time.monotonic()
        nobody = dataclasses.replace(pair, policy="none")
        unordered = 0 if pair.is_ordered_by_the_driver else asked.unordered
        bad, missed = wrong(track, pair, loan, asked.trials), wrong(track, nobody, loan, unordered)
        seconds = time.monotonic() - start
        track.close()
        face = "consume" if loan else "__dlpack__"
        row = [today(), commit(), *facts, platform.python_version(), cd.__version__]
        counts = [asked.trials, bad, unordered, missed]
        row += [pair.ready, pair.request, pair.policy, face, *map(str, counts), f"{seconds:.1f}"]
        line = "\t".join(row)
        print(line, flush=True)
        if not asked.simulated:
            with RESULTS.open("a", encoding="utf-8") as results:
                results.write(line + "\n")
        lost |= bad > 0 or (unordered > 0 and missed == 0)
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
