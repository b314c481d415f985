"""Instructions of what is done with a view, and of hand-overs between streams, by callgrind on the simulated driver.

    make bench-operations

The driver's instructions are the simulator's, its log of calls off; docs/streams.md has the calls. Each is called
through vectorcall in a C loop, and the empty call is subtracted.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import instructions
from instructions import Array, Workload, build, commit, count

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
JOINED = 300


def workloads() -> dict[str, Workload]:
    """Label -> the call."""
    import cai_dlpack as cd
    import floor  # type: ignore[import-not-found]
    from cai_conformance import Sim

    from conformance.tests.simulated.machine import Machine

    sim = Sim()
    sim.set("log", 0)
    machine = Machine(sim)
    machine.set_current(0)
    address = machine.device_memory(60)
    a, b, c = (machine.stream() for _ in range(3))

    def array(stream: int | None) -> Any:
        made = Array((3, 5))
        made.__cuda_array_interface__ |= {"data": (address, False), "stream": stream}
        return made

    ready, pending = cd.view(array(None)), cd.view(array(a))
    many = [cd.view(array(stream)) for stream in (a, b, c) for _ in range(JOINED // 3)]
    attribute = {
        name: Workload(type(ready).__dict__[name].__get__, (ready,))
        for name in ("shape", "elem_strides", "byte_strides", "dtype", "ptr", "device", "memory", "read_only", "stream")
    }

    def consumed(view: Any) -> None:
        with view.consume(b):
            pass

    return {
        "nothing": Workload(floor.nothing, (None,)),
        **{f"`v.{name}`": call for name, call in attribute.items()},
        "`v.__dlpack_device__()`": Workload(ready.__dlpack_device__, ()),
        "`cd.view(v)`": Workload(cd.view, (ready,)),
        "`cd.view(array)`, with one pointer query": Workload(cd.view, (array(None),)),
        "`v.on(b)`, ready": Workload(ready.on, (b,)),
        "`v.on(a)`, ready on a": Workload(pending.on, (a,)),
        "`v.on(b)`, ready on a": Workload(pending.on, (b,)),
        "`v.__dlpack__(stream=b)`, ready on a": Workload(
            pending.__dlpack__, (b, (1, 3)), ("stream", "max_version"), True
        ),
        "`with v.consume(b)`, ready on a": Workload(consumed, (pending,)),
        f"`cd.join` of {JOINED} views of three streams": Workload(cd.join, (many, c), ("on",)),
    }


def measure() -> None:
    """Runs every workload; callgrind writes one part of its output for each."""
    instructions.run(workloads())


def main() -> int:
    if "--measure" in sys.argv:
        measure()
        return 0
    with tempfile.TemporaryDirectory() as name:
        build(Path(name), "WITH_CALLGRIND")
        counts = count(Path(name), Path(__file__))
    print(f"commit {commit()}, CPython {sys.version.split()[0]}\n\n| | instructions |\n|---|---|")
    for label, spent in counts.items():
        if label != "nothing":
            print(f"| {label} | {spent - counts['nothing']:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
