"""Instructions of a whole hand-over: from a library's array to another library's array of the same memory.

    make bench-pairs                  the libraries of `make test`; two to four minutes
    make bench-pairs ALL=1            those of `make conformance`, and torch's, each in its environment: half an hour
    python benches/pairs.py --save    keeps the table under benches/results

Counted by callgrind on the simulated driver, whose own instructions are included on every side, for each pair of
libraries that is installed and takes the other's memory: by `cd.to`; by a view and the call of the table of partners,
as a user writes it; by the same call on the producer's own array, which is the consumer's own import; and what the
producer's attributes alone cost, which no consumer avoids. Each is a Python function of the array, whose empty call is
subtracted. The arrays are 2-d (3, 5), or of one axis where a library has no others; ready, and of float32.
Exit code 1 if `cd.to` costs more than the line with a view, `NOISE` and what is known.

A warning of undeclared order is issued as usual: shown once, looked up at each import.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib
import importlib.metadata
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import instructions
from instructions import build, commit, count

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CALLS = instructions.CALLS = 500
#: So many times the line, as libraries that call the driver differ from call to call.
NOISE = 1.01
#: What `cd.to` costs above that, by consumer: to Numba, of data that is not ready, it reads Numba's setting, and asks
#: whether the wait of the host, which Numba makes, would break a capture.
KNOWN_TO = {"Numba": 11_500}
#: For a consumer that works on no stream of its own.
NO_STREAM = -1

Way = Callable[[Any], object]


class Producer(NamedTuple):
    """An array, and how its attributes are read."""

    array: Any
    attributes: Way


class Consumer(NamedTuple):
    """The three ways to a library: by `cd.to`, by a view, and its own import."""

    to: Way
    view: Way
    own: Way


def by_protocol(array: Any) -> object:
    """Reads what an import by DLPack reads."""
    try:
        return array.__dlpack_device__(), array.__dlpack__(max_version=(1, 3))
    except TypeError:
        return array.__dlpack__()


def by_interface(array: Any) -> object:
    return array.__cuda_array_interface__


def on_device() -> Iterator[tuple[str, Producer]]:
    """Arrays in device memory."""
    import numpy as np
    import tvm_ffi
    from cai_conformance import Sim
    from cuda.core.utils import StridedMemoryView
    from numba import cuda

    from conformance.tests.simulated.machine import Machine

    machine = Machine(Sim())
    machine.set_current(0)
    plain = instructions.Array((3, 5))
    plain.__cuda_array_interface__["data"] = (machine.device_memory(60), False)
    strided = StridedMemoryView.from_any_interface(plain, stream_ptr=NO_STREAM)
    yield "CAI object", Producer(plain, by_interface)
    yield "Numba", Producer(cuda.to_device(np.zeros((3, 5), "f4")), by_interface)
    yield "cuda.core, device", Producer(strided, by_protocol)
    yield "tvm-ffi, device", Producer(tvm_ffi.from_dlpack(strided), by_protocol)


def on_host() -> Iterator[tuple[str, Producer]]:
    """Arrays in host memory, of each library that is installed."""
    import numpy as np

    from conformance.matrix import host
    from conformance.matrix.calls import PARTNERS
    from conformance.matrix.cells import NotMade

    for name, produce in host.PRODUCERS.items():
        if not is_installed(name):
            continue
        try:
            array, _ = produce(np.zeros((3, 5), "f4"))
        except NotMade:
            array, _ = produce(np.zeros(15, "f4"))
        attributes: Way = by_protocol
        if name == "tensorflow-cpu":
            attributes = importlib.import_module("tensorflow").experimental.dlpack.to_dlpack
        yield PARTNERS[name]["title"], Producer(array, attributes)


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def consumers() -> dict[str, Consumer]:
    """Each library that is installed and whose call needs nothing beside the array."""
    import cai_dlpack as cd

    from conformance.matrix.calls import PARTNERS

    found = {}
    for name, row in PARTNERS.items():
        call = row["calls"][0]
        if call["needs"] is not None or not is_installed(name):
            continue
        names = {"cd": cd, "s": NO_STREAM}
        exec(call["import"], names)
        own = call["code"].replace('cd.to_dlpack(v, stream="host")', "v.__dlpack__()")
        names["library"] = sys.modules.get(row["name"], row["name"])
        if row["name"] == "cuda.core":
            names["library"] = names["StridedMemoryView"]
            own = "StridedMemoryView.from_any_interface(v, stream_ptr=s)"
        codes = ("cd.to(a, library)", with_array(call["code"], "cd.view(a)"), with_array(own, "a"))
        found[row["title"]] = Consumer(*(line(code, names) for code in codes))
    return found


def with_array(code: str, array: str) -> str:
    """Returns a line of the table with another expression for the view."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.parse(array, mode="eval").body if node.id == "v" else node

    return ast.unparse(Put().visit(ast.parse(code, mode="eval")))


def line(code: str, names: dict[str, Any]) -> Way:
    """A function of the array, as a user writes it."""
    function: Way = eval(f"lambda a: {code}", names)
    return function


def workloads() -> dict[str, tuple[Way, Any]]:
    """Label -> the function and its argument; what one of the libraries refuses is left out."""
    from conformance.matrix import host

    host.prepare()
    calls: dict[str, tuple[Way, Any]] = {"empty": (lambda a: a, None)}
    has_driver = is_installed("numba-cuda") and is_installed("cuda-core")
    made = dict(on_host()) | (dict(on_device()) if has_driver else {})
    for producer, (array, attributes) in made.items():
        calls[f"{producer}|attributes"] = (attributes, array)
        for consumer, ways in consumers().items():
            for way, call in ways._asdict().items():
                try:
                    call(array)
                except Exception as refused:  # of any library, in its own words
                    print(f"{producer} to {consumer}, {way}: {type(refused).__name__}", file=sys.stderr)
                else:
                    calls[f"{producer}|{consumer}|{way}"] = (call, array)
    return calls


def measure() -> None:
    import floor  # type: ignore[import-not-found]

    for label, (call, array) in workloads().items():
        floor.loop(call, (array,), None, 20, "warm-up", False)
        floor.loop(call, (array,), None, CALLS, label, False)


def table(counts: dict[str, float]) -> tuple[list[str], bool]:
    """The lines of the table, and whether `cd.to` costs no more than it may."""
    empty, good = counts["empty"], True
    lines = ["| from | to | `cd.to` | by a view | its own import | the attributes |", "|---|---|---|---|---|---|"]
    for pair in dict.fromkeys(label.rsplit("|", 1)[0] for label in counts if label.count("|") == 2):
        producer, consumer = pair.split("|")
        found = {way: counts.get(f"{pair}|{way}", empty) - empty for way in Consumer._fields}
        if not found["to"] and not found["view"]:
            continue
        cells = [f"{cost:.0f}" if cost > 0 else "refused" for cost in found.values()]
        attributes = counts[f"{producer}|attributes"] - empty
        lines.append(f"| {producer} | {consumer} | {' | '.join(cells)} | {attributes:.0f} |")
        if found["to"] > 0 and found["view"] > 0:
            good &= found["to"] <= found["view"] * NOISE + KNOWN_TO.get(consumer, 0)
    return lines, good


def heading() -> list[str]:
    """What was counted, and of what."""
    from conformance.matrix.calls import PARTNERS

    found = [f"{name} {importlib.metadata.version(name)}" for name in PARTNERS if is_installed(name)]
    said = (
        "Instructions of a hand-over, by callgrind, without the empty Python function; the simulated driver's included."
    )
    return [
        f"# {datetime.date.today()}, commit {commit()}",
        "",
        said,
        f"CPython {platform.python_version()}, {', '.join(found)}.",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--save", default="", metavar="NAME", help="keep the table under this name")
    asked = parser.parse_args()
    if asked.measure:
        measure()
        return 0
    if asked.save and commit().endswith("-dirty"):
        print("not saved: the figures would be of no commit; commit what has changed first")
        return 1
    with tempfile.TemporaryDirectory() as name:
        build(Path(name), "WITH_CALLGRIND")
        counts = count(Path(name), Path(__file__))
    lines, good = table(counts)
    text = "\n".join([*heading(), *lines]) + "\n"
    print(text)
    if asked.save:
        path = (
            ROOT / "benches" / "results" / f"{datetime.date.today()}-{asked.save}-python{platform.python_version()}.md"
        )
        path.write_text(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
