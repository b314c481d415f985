"""Messages of views between the ranks of MPI, beside NumPy's arrays: started by `reach.py`, rank 0 prints the rows.

    mpiexec -n 2 python benches/reach_mpi.py

One rank sends to all others: `Send` to one, `Bcast` to several. A view is made ready for each message.
"""

from __future__ import annotations

from typing import Any

import cai_dlpack as cd
import numpy as np
from mpi4py import MPI
from reach_rows import Message, loads, row

COMM = MPI.COMM_WORLD
RECEIVERS = COMM.Get_size() - 1


def send(messages: list[Any]) -> None:
    for message in messages:
        if RECEIVERS > 1:
            COMM.Bcast(message, root=0)
        elif COMM.Get_rank():
            COMM.Recv(message, source=0)
        else:
            COMM.Send(message, dest=1)
    COMM.Barrier()


def main() -> None:
    for number, nbytes in loads():
        arrays = [np.zeros(nbytes, np.uint8) for _ in range(number)]
        views = [cd.view(array) for array in arrays]
        message = Message("mpi4py, Bcast" if RECEIVERS > 1 else "mpi4py, Send", number, nbytes, RECEIVERS)
        repeats = max(1, min(100, (64 << 20) // nbytes) // number)
        line = row(message, lambda v=views: send([view.synchronize() for view in v]), lambda a=arrays: send(a), repeats)
        if not COMM.Get_rank():
            print(line, flush=True)


if __name__ == "__main__":
    main()
