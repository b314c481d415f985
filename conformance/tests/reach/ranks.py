"""One rank of two, started by `test_mpi`: views of memory that a stream has still to write, as messages.

The simulated driver does what is pending when somebody waits for it, and not before. Two controls go without the
bridge, as mpi4py asks no array for its stream: `bare` sends the producer's array itself, so that the other rank
receives what was there before; `into` receives into an array of which a stream has still to write, over what has
arrived.

Device memory of the simulated driver can be read by the host, and so by this MPI, which knows nothing of devices: it
stands for one that is built with CUDA, of which it shows the calls of ours and their order, and nothing else.
"""

from __future__ import annotations

import sys
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim
from mpi4py import MPI

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.reach.page import stated
from conformance.tests.simulated.machine import Machine

COMM = MPI.COMM_WORLD
RANK = COMM.Get_rank()
SIZE = 4096


def pending(machine: Machine, memory: str, values: np.ndarray[Any, Any]) -> Cai:
    """An array of these values, which a stream of its own has still to write; before it the memory holds -1."""
    data = getattr(machine, f"{memory}_memory")(values.nbytes)
    machine.write(data, np.full_like(values, -1).tobytes())
    stream = machine.stream()
    machine.control.store(stream, data, values.tobytes())
    return Cai(interface(shape=values.shape, typestr=values.dtype.str, data=(data, False), stream=stream))


def ready(machine: Machine, memory: str, values: np.ndarray[Any, Any]) -> cd.CaiView:
    return cd.view(pending(machine, memory, values)).synchronize()


def as_array(view: cd.CaiView) -> np.ndarray[Any, Any]:
    return np.array(np.from_dlpack(view, device="cpu"))


def point_to_point(machine: Machine, memory: str, mode: str) -> bool:
    """Rank 0 sends, rank 1 receives; whether what arrives is what the stream writes, and stays."""
    values = np.arange(1.0, SIZE + 1)
    if RANK == 0:
        sent = pending(machine, memory, values)
        COMM.Send(sent if mode == "bare" else cd.view(sent).synchronize(), dest=1)
        return True
    into = pending(machine, memory, np.zeros(SIZE))
    # What is pending would be done after the message has arrived, and write over it.
    target = into if mode == "into" else cd.view(into).synchronize()
    COMM.Recv(target, source=0)
    return bool(np.array_equal(as_array(cd.view(into)), values))


def collectives(machine: Machine, memory: str) -> None:
    own = ready(machine, memory, np.full(SIZE, RANK + 1.0))
    summed = ready(machine, memory, np.zeros(SIZE))
    COMM.Allreduce(own, summed, op=MPI.SUM)
    assert (as_array(summed) == 3.0).all()

    shared = ready(machine, memory, np.full(SIZE, 5.0 if RANK == 0 else 0.0))
    COMM.Bcast(shared, root=0)
    assert (as_array(shared) == 5.0).all()

    gathered = ready(machine, memory, np.zeros(2 * SIZE))
    COMM.Allgather(own, gathered)
    assert (as_array(gathered) == np.repeat([1.0, 2.0], SIZE)).all()

    # A kernel that is launched after the message reads what arrived: memory of the host is there at once.
    total, stream = machine.managed_memory(8), machine.stream()
    machine.control.sum(stream, total, gathered.ptr, 2 * SIZE, "f8")
    described = interface(shape=(1,), typestr="<f8", data=(total, False), stream=stream)
    assert as_array(cd.view(Cai(described)))[0] == 3 * SIZE


def addresses(machine: Machine, memory: str) -> None:
    """MPI is given the view's own memory: nothing is copied at either end."""
    assert stated("mpi4py", memory) == (0, 0)
    view = ready(machine, memory, np.zeros(SIZE))
    assert MPI.Get_address(view) == view.ptr
    on_host = np.zeros(SIZE)
    assert MPI.Get_address(cd.view(on_host).synchronize()) == on_host.ctypes.data


def main() -> None:
    machine = Machine(Sim())
    machine.set_current(0)
    machine.control.schedule = "lazy"
    mode = sys.argv[1]
    for memory in ("managed", "pinned", "device"):
        came = point_to_point(machine, memory, mode)
        if mode == "view":
            assert came
            addresses(machine, memory)
            collectives(machine, memory)
        else:
            assert came == (RANK == 0), "the control has the data, although nobody waited"
    COMM.Barrier()
    # One rank: of two, whose output is not buffered, the lines come mixed.
    if RANK == 0:
        print(f"{COMM.Get_size()} ranks: right", flush=True)


if __name__ == "__main__":
    main()
