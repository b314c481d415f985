"""One rank of two, started by `reach_pointers`: the other's message, and what a stream has still to write."""

from __future__ import annotations

import sys

from mpi4py import MPI

from conformance.gpu import pending as arrays
from conformance.gpu.pending import BEFORE, LATER, Lost, now, same

COMM = MPI.COMM_WORLD
SLOW = 1.0


def main() -> None:
    memory, direction = sys.argv[1:]
    arrays.here()
    said = f"right: {memory} memory, {MPI.Get_library_version().splitlines()[0].strip()}"
    if COMM.Get_rank() == 0:
        COMM.Barrier()
        slow = SLOW if direction == "sent" else 0.0
        COMM.Send(arrays.pending(seconds=slow, memory=memory).view.synchronize(), dest=1)
    else:
        target = arrays.pending(LATER, SLOW, memory) if direction == "into" else None
        into = target.view if target else arrays.ready(BEFORE, memory)
        COMM.Barrier()
        COMM.Recv(into.synchronize(), source=0)
        if target:
            arrays.here().wait(target.stream)
        try:
            same(now(into))
        except Lost as lost:
            said = f"lost: {lost}"
    said = COMM.bcast(said, root=1)
    if COMM.Get_rank() == 0:
        print(said, flush=True)


if __name__ == "__main__":
    main()
