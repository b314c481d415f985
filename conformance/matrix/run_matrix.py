"""Every installed pair (producer, bridge, consumer) x dtype x layout; prints and saves a table.

Run by `make conformance`, on the simulated driver.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import importlib
import platform
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim
from partners import LIBRARIES, NOT_HERE, Array, Library, NotOffered, Seen, load

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]

LAYOUTS: dict[str, Any] = {
    "C": lambda: np.arange(24).reshape(4, 6),
    "1-d": lambda: np.arange(12),
    "0-d": lambda: np.arange(1).reshape(()),
    "empty": lambda: np.zeros((0, 3)),
    "F": lambda: np.arange(24).reshape(6, 4).T,
    "strided": lambda: np.arange(48).reshape(4, 12)[:, ::2],
    "backwards": lambda: np.arange(24).reshape(4, 6)[::-1],
}


# Faults of the libraries themselves, each with its smallest reproduction in docs/partners.md:
# (producer, the array's dtype, what it sends).
KNOWN_FAULTS = {("onnxruntime", "bool", "uint8"): "sends bool as uint8"}


def values_of(dtype: str, layout: str) -> Array:
    """The layout's values; of a view, the base has the same type, and the view the same strides in elements.

    Aligned to 64 bytes: JAX copies what is not.
    """
    plain = LAYOUTS[layout]()
    base = plain if plain.base is None else plain.base
    room = np.zeros(base.nbytes * 2 + 64, np.uint8)
    start = -room.ctypes.data % 64
    typed = room[start : start + base.size * np.dtype(dtype).itemsize].view(dtype).reshape(base.shape)
    typed[...] = base
    elements = [step // plain.itemsize for step in plain.strides]
    offset = (plain.ctypes.data - base.ctypes.data) // plain.itemsize * typed.itemsize
    return np.ndarray(plain.shape, dtype, typed, offset, [step * typed.itemsize for step in elements])


def brief(error: BaseException) -> str:
    """An exception in a few words; a rule of the bridge by its id."""
    rule = getattr(error, "rule", None)
    text = f"[{rule}]" if rule else re.sub("0x[0-9a-f]+", "0x...", " ".join(str(error).split())[:110])
    return f"{type(error).__name__}: {text}"


def attempt(producer: Library, consumer: Library, values: Array) -> str:
    """One cell: zero-copy, copy, refused (with the reason), not offered, or WRONG."""
    assert producer.make is not None
    assert consumer.take is not None
    try:
        made = producer.make(values)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, NotOffered) else brief(error)
        return f"not offered by {producer.name}: {why}"
    try:
        view = cd.view(made.array)
    except Exception as error:
        return f"refused on import: {brief(error)}"
    try:
        seen: Seen = consumer.take(view)
    except ModuleNotFoundError:
        raise
    except NotOffered as error:
        return f"not offered by {consumer.name}: {error}"
    except Exception as error:
        return f"refused by {consumer.name}: {brief(error)}"
    want = values
    if (producer.name, want.dtype.name, view.dtype) in KNOWN_FAULTS:
        return f"fault of {producer.name}: {KNOWN_FAULTS[producer.name, want.dtype.name, view.dtype]}"
    if view.dtype != want.dtype.name or view.shape != want.shape:
        return f"WRONG view of {producer.name}: {view!r} of {want.dtype} {want.shape}"
    if seen.values.shape != want.shape or not np.array_equal(seen.values.astype(want.dtype), want):
        found = f"{seen.values.tolist()!r:.50} instead of {want.tolist()!r:.50}"
        return f"WRONG from {producer.name} to {consumer.name}, {want.dtype}: {found}"
    if want.size == 0:
        return "zero-copy"
    source = view.ptr if made.pointer is None else made.pointer
    if view.ptr != source:
        return f"copy by {producer.name}"
    return "zero-copy" if seen.pointer == view.ptr else f"copy by {consumer.name}"


def order_kept(consumer: Library) -> str:
    """How a consumer of device memory comes to wait for the producer's stream."""
    assert consumer.take is not None
    sim, stream = Sim(), load("numba.cuda").stream()
    view = cd.view(load("numba.cuda").to_device(np.arange(12, dtype=np.float32), stream=stream))
    sim.clear()
    try:
        consumer.take(view)
    except Exception as error:
        return f"refused: {brief(error)}"
    names = {call.name for call in sim.calls() if call.arguments.get("stream", 0) == int(stream)}
    if "cuEventRecord" in names:
        return "an event"
    if "cuStreamSynchronize" in names:
        return "the host waits"
    return "not at all: pass v.on(stream) or v.synchronize()"


def usable(library: Library) -> str | None:
    """Why a library is not run; None where it is."""
    try:
        library.version  # noqa: B018 - the look-up is the question
    except Exception:
        return "not installed"
    try:
        if library.make is not None:
            library.make(np.arange(4, dtype=np.float32))
        elif library.take is not None and library.side == "host":
            library.take(cd.view(np.arange(4, dtype=np.float32)))
    except Exception as error:
        return f"cannot run here: {brief(error)}"
    return None


def report() -> tuple[list[str], bool]:
    """The report's lines, and whether everything in it is as it must be."""
    lines, failed = [], False
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    lines += [
        "# Producer, bridge, consumer",
        "",
        f"{today}, **on the simulated driver** (no GPU, no kernels), cai-dlpack {cd.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}.",
        "",
        f"Each cell is {len(DTYPES)} dtypes x {len(LAYOUTS)} layouts ({', '.join(LAYOUTS)}). "
        "z: zero-copy, proven by the pointer, data equal. c: data equal, copied by a library. "
        "r: refused, for the reasons below. -: the producer has no such array. f: a library's own fault. W: wrong.",
        "",
    ]
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    why_not = {(library.name, library.side): usable(library) for library in LIBRARIES}
    for side in ("host", "device"):
        here = [library for library in LIBRARIES if library.side == side]
        running = [library for library in here if why_not[library.name, side] is None]
        producers = [library for library in running if library.make]
        consumers = [library for library in running if library.take]
        title = "Memory of the CPU" if side == "host" else "Device memory (simulated)"
        lines += [f"## {title}", "", "| from \\ to | " + " | ".join(c.name for c in consumers) + " |"]
        lines += ["|---" * (len(consumers) + 1) + "|"]
        for producer in producers:
            row = [f"**{producer.name}**"]
            for consumer in consumers:
                counts: collections.Counter[str] = collections.Counter()
                for dtype in DTYPES:
                    for layout in LAYOUTS:
                        answer = attempt(producer, consumer, values_of(dtype, layout))
                        kind = {"zero-copy": "z", "copy": "c", "not": "-", "refused": "r", "fault": "f", "WRONG": "W"}[
                            answer.split(" ")[0]
                        ]
                        counts[kind] += 1
                        if kind in "rWf-c":
                            reasons[answer][f"{layout}"] += 1
                        failed |= kind == "W"
                row.append(" ".join(f"{counts[kind]}{kind}" for kind in "zcrf-W" if counts[kind]))
            lines.append("| " + " | ".join(row) + " |")
        if side == "device":
            lines += ["", "How the consumer's work comes to wait for the producer's stream:", ""]
            lines += [f"- {consumer.name}: {order_kept(consumer)}" for consumer in consumers]
        lines.append("")
    lines += ["## Reasons", ""]
    for reason, layouts in sorted(reasons.items()):
        spread = ", ".join(f"{layout} {count}" for layout, count in layouts.items())
        lines.append(f"- {reason} ({spread})")
    lines += ["", "## Not run", ""]
    for (name, side), why in why_not.items():
        if why is not None:
            lines.append(f"- {name} ({side}): {why}")
    lines += [f"- {name}: {why}" for name, why in NOT_HERE.items()]
    lines += ["", "## Versions", ""]
    seen = {library.package: library.version for library in LIBRARIES if why_not[library.name, library.side] is None}
    lines += [f"- {package} {version}" for package, version in sorted(seen.items())]
    return lines, not failed


def load_in_order() -> None:
    """Paddle before TensorFlow: `import tensorflow, paddle` ends in a segmentation fault (protobuf)."""
    for name in ("paddle", "tensorflow"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> int:
    warnings.simplefilter("ignore")
    load_in_order()
    lines, is_right = report()
    text = "\n".join(lines) + "\n"
    print(text)
    folder = Path(__file__).parents[1] / "results"
    folder.mkdir(exist_ok=True)
    (folder / "matrix-simulated.md").write_text(text)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
