"""Every hand-over from one producer to all consumers, in a process of its own.

    python -m conformance.matrix.pair host|device PRODUCER CONSUMER,CONSUMER,... SKIP DEADLY

One JSON line for each cell. A line with `"begun"` goes before each consumer's call, so that a crash
names its cell. Started again after one, the process passes over the first SKIP cells, and over those
like the DEADLY ones: a json list of [consumer, bridge, layout], tried with one dtype and with no other.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import sys
import traceback
import warnings
from typing import Any

import cai_dlpack as cd

from conformance.matrix import access
from conformance.matrix.calls import CALLS, COPIED_TO_HOST, TO, Consume, Unreadable, explained
from conformance.matrix.cells import (
    COPIED,
    DTYPES,
    FAILED,
    LAYOUTS,
    NO_SUCH,
    OK,
    REFUSED,
    Cell,
    NotMade,
    in_memory_order,
    raw,
    sample,
)
from conformance.matrix.host import Produce

#: Types that some builds of a library refuse, and cannot be asked about: builds of Open MPI have no float16.
BY_BUILD = {("mpi4py", "float16")}


def one(produce: Produce, consume: Consume, bridge: str, dtype: str, layout: str, consumer: str = "") -> Cell:
    """Makes an array, hands it over, compares: the data, and what `explain` has told of the consumer."""
    array = sample(dtype, layout)
    try:
        made, address = produce(array)
    except NotMade as reason:
        return Cell(NO_SUCH, str(reason))
    except Exception as error:
        return Cell(NO_SUCH, f"{type(error).__name__}: {words(error)}")
    try:
        view = cd.view(made)
    except Exception as error:
        return Cell(REFUSED, f"on import, {whose(error)}: {words(error)}")
    if view.dtype != dtype:
        return Cell(FAILED, f"the producer sends {view.dtype} for its {dtype}")
    if array.size and view.ptr != address:
        return Cell(FAILED, "the view has another address than the producer's array")
    told = explained(consumer, bridge, view)
    try:
        taken, (found, data, name) = consume(made if bridge == TO else view)
    except Unreadable as error:
        cause = error.__cause__
        assert isinstance(cause, Exception)
        return Cell(REFUSED, f"{whose(cause)}: {words(cause)}")
    except Exception as error:
        if told and told[0] and (consumer, dtype) not in BY_BUILD:
            return Cell(FAILED, f"{told[1]}, and refused: {words(error)}")
        return Cell(REFUSED, f"{whose(error)}: {words(error)}")
    if told and not told[0]:
        return Cell(FAILED, told[1])
    if name not in (None, dtype):
        return Cell(FAILED, f"the consumer sees {name}")
    call = CALLS.get((consumer, bridge), {"reads": bridge})
    if data != (in_memory_order(array, view.byte_strides) if "buffer" in call["reads"] else raw(array)):
        return Cell(FAILED, "the data differ")
    if array.size and found != address and bridge != COPIED_TO_HOST:
        return Cell(COPIED, "the consumer has made a copy without being asked")
    # A copy is the consumer's own, and without elements there is nothing to write.
    is_shared = array.size > 0 and bridge != COPIED_TO_HOST
    if is_shared and (less := access.lost(access.stated(made), access.shown(taken))):
        return Cell(FAILED, less)
    if is_shared and (wrong := access.untold(consumer, bridge, view, taken)):
        return Cell(FAILED, wrong)
    return Cell(OK)


def whose(error: Exception) -> str:
    """Returns the rule of our exception, or the class of another library's."""
    rule = getattr(error, "rule", None)
    return f"rule {rule}" if rule else type(error).__name__


def words(error: Exception) -> str:
    """The error's own words, without addresses and in one line, so that equal reasons are equal."""
    if getattr(error, "rule", None):
        return str(error).rpartition(": ")[2].split(" [")[0][:160]
    first = " ".join(str(error).split("Exception raised from")[0].split("Invoked with")[0].split())
    return " ".join("0x…" if "0x" in word else word for word in first.split())[:160]


def main() -> None:
    room, producer, consumers = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
    skip, deadly = int(sys.argv[4]), json.loads(sys.argv[5])
    warnings.simplefilter("ignore")
    libraries = importlib.import_module(f"conformance.matrix.{room}")
    if {"tensorflow-cpu", "paddlepaddle"} <= {producer, *consumers} or room == "device":
        libraries.prepare()
    produce: Produce = libraries.PRODUCERS[producer]
    if room == "device":
        produce = libraries.settled(produce)
    todo = [(key, use) for key, use in libraries.CONSUMERS.items() if key[0] in consumers]
    for number, ((key, use), dtype, layout) in enumerate(itertools.product(todo, DTYPES, LAYOUTS)):
        if number < skip:
            continue
        cell: dict[str, Any] = {
            "number": number,
            "consumer": key[0],
            "bridge": key[1],
            "dtype": dtype,
            "layout": layout,
        }
        print(json.dumps({"begun": cell}), flush=True)
        try:
            if [*key, layout] in deadly:
                raise SystemError("not tried: the process ended with another dtype of this layout")
            result = one(produce, use, key[1], dtype, layout, key[0])
        except BaseException:
            result = Cell(FAILED, traceback.format_exc().splitlines()[-1])
        print(json.dumps({**cell, "outcome": result.outcome, "reason": result.reason}), flush=True)
    gc.collect()


if __name__ == "__main__":
    main()
