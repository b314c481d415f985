"""Finds how a consumer waits for the producer's stream, in the simulated driver's log of one hand-over.

python -m cai_conformance simulate -- python -m conformance.matrix.order CONSUMER...
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
from cai_conformance import Sim

from conformance.matrix import device
from conformance.matrix.calls import CALLS

WAITS = {
    "cuStreamWaitEvent": "its stream waits for an event",
    "cuStreamSynchronize": "the host waits for the stream",
    "cuEventSynchronize": "the host waits for an event",
}
NOBODY = "nobody waits: the order is the caller's, v.synchronize() or v.on(stream)"


def expected(consumer: str, bridge: str) -> str:
    """Who waits by the table of partners."""
    waits: str = CALLS[consumer, bridge]["waits"]
    if waits == "nobody waits":
        return NOBODY
    return WAITS["cuStreamSynchronize" if waits == "the host waits" else "cuStreamWaitEvent"]


def order(consume: Any, sim: Sim) -> str:
    """Returns which side waits in one hand-over of an array that a stream has written."""
    stream = numba.cuda.stream()
    view = cd.view(numba.cuda.to_device(np.arange(12, dtype=np.float32), stream=stream))
    sim.clear()
    consume(view)
    waits = [call for call in sim.calls() if call.name in WAITS]
    recorded = [call for call in sim.calls("cuEventRecord") if call.stream == int(stream)]
    if not waits:
        return NOBODY
    if waits[0].name == "cuStreamWaitEvent" and not recorded:
        return "its stream waits for another stream than the producer's"
    return WAITS[waits[0].name]


def main() -> None:
    warnings.simplefilter("ignore")
    device.prepare()
    sim = Sim()
    found = {}
    for (name, bridge), consume in device.CONSUMERS.items():
        if name in sys.argv[1:] and bridge != "capsule":
            try:
                how = order(consume, sim)
                other = "" if how == expected(name, bridge) else f"; explained as: {expected(name, bridge)}"
                found[f"{name} ({bridge})"] = how + other
            except Exception as error:
                found[f"{name} ({bridge})"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
