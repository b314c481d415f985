"""docs/pairs.md, against every pair of the libraries that are installed: what it says is taken is, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from cai_dlpack import _core, doctor

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT

pytestmark = needs.numba_cuda
TITLES = {row["title"]: row["name"] for row in _core._partners()}
#: Libraries whose call needs something beside the array, such as PyCUDA's kernel.
NEEDING = {row["name"] for row in _core._partners() if row["calls"] and row["calls"][0]["needs"]}
ROW = re.compile(r"^\| (?P<title>[^|]+) \| `(?P<call>[^`]+)` \| (?P<told>[^|]+) \|", re.MULTILINE)
REFUSED = re.compile(r"takes no|refuses|refused")
#: The rows that `test_numba_kernels` runs.
OF_KERNELS = "a kernel of it"
BY_BUILD = "not every build takes it"
MEMORY = {"host": "host memory: ", "device": "device memory: "}


def sections() -> dict[str, dict[str, tuple[str, str]]]:
    """By producer and consumer: the call, and what is told of it."""
    text = (ROOT / "docs" / "pairs.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## I have an array of ")[1:]:
        title, _, rows = section.partition("\n")
        calls = [row for row in ROW.finditer(rows) if not row["title"].endswith(OF_KERNELS)]
        found[TITLES[title]] = {TITLES[row["title"]]: (row["call"], row["told"]) for row in calls}
    return found


def told_of(memory: str, told: str) -> str:
    """The part that is about this memory."""
    parts = re.split("(?:^|; )(?=host memory: |device memory: )", told)
    return next((part for part in parts if part.startswith(MEMORY[memory])), told)


def test_a_call_for_which_nobody_waits_is_shown_with_its_order() -> None:
    """Of device memory, and of a copy to it: somebody waits in each line of the page."""
    rows, seen = {row["name"]: row for row in _core._partners()}, set()
    for producer, calls in sections().items():
        for consumer, (call, told) in calls.items():
            assert "nobody waits" not in told and "asked for no" not in told, (producer, consumer, told)
            # Of memory of the host, and of data that is ready, nothing is to be ordered; of a copy it is.
            is_pending = 'device="cuda"' in call or "waits for" in told
            if rows[consumer]["calls"][0]["waits"] != "nobody waits" or not is_pending:
                continue
            assert re.search(r"\)\.(on\(.+?\)|synchronize\(\))", call), (producer, consumer, call)
            seen.add(consumer)
    assert {"cuda.tile", "cutlass.cute", "kvikio", "ucxx", "cuda.compute", "mpi4py", "cudf"} <= seen


def test_each_call_names_the_stream_of_a_producer_that_names_none() -> None:
    """Without it a copy or a consumer could be told "nothing to do", and read what the producer still writes."""
    text = (ROOT / "docs" / "pairs.md").read_text(encoding="utf-8")
    unnamed = [part for part in text.split("\n## ") if "\nIt names no stream: " in part]
    assert len(unnamed) == 9
    for section in unnamed:
        for row in ROW.finditer(section):
            assert "producer_stream=p" in row["call"], row["call"]
            assert "nothing to do" not in row["told"], row["told"]


def test_each_pair_that_is_installed_does_what_the_page_says() -> None:
    page, tried, seen = sections(), doctor.tried(), 0
    for memory, producers in tried.items():
        for producer, came in producers.items():
            for consumer, result in came.items():
                call, told = page[producer].get(consumer, ("", "refused"))
                if call and not call.startswith("cd.to"):
                    continue  # it has no arrays of its own
                is_refused = REFUSED.search(told_of(memory, told)) is not None
                is_by_build = BY_BUILD in told_of(memory, told)
                assert (result == "works") != is_refused or is_by_build, (memory, producer, consumer, told, result)
                seen += 1
    assert seen > 7, tried


#: Evaluates calls of the page, as they stand there, of an array that `doctor` makes: by consumer, what came of it.
EVALUATED = """
import importlib, json, sys
import cai_dlpack as cd
from cai_dlpack import _core, doctor
from cuda.core import Device
memory, producer, calls = json.loads(sys.argv[1])
device = Device(0)
device.set_current()
# The producer's: where cuda.core allocates and frees a buffer if no stream is named.
named = {"cd": cd, "p": device.default_stream}
for name in {"numpy", producer}:
    importlib.import_module(doctor.IMPORTED.get(name, name))
    named[name.partition(".")[0]] = sys.modules[name.partition(".")[0]]
imports = {row["name"]: [call["import"] for call in row["calls"]] for row in _core._partners()}
came = {}
for consumer, call in calls.items():
    for line in imports[consumer]:
        exec(line, named)
    named["array"] = eval(doctor.MEMORY[memory][producer], named)
    try:
        eval(call, named)
    except Exception as error:
        came[consumer] = repr(error)
print(json.dumps(came))
"""


def test_each_copy_on_the_page_is_taken() -> None:
    """Evaluates the lines of arrays that are refused as they are, and that the page copies first."""
    page, here, seen = sections(), {library["name"] for library in doctor.libraries()}, 0
    for memory, producers in doctor.MEMORY.items():
        for producer in producers.keys() & here:
            taken = {to: call for to, (call, _) in page[producer].items() if to in here - NEEDING}
            copies = {to: call for to, call in taken.items() if "from_dlpack(cd" in call}
            given = json.dumps([memory, producer, copies])
            command = [sys.executable, "-W", "ignore", "-c", EVALUATED, given]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            assert json.loads(done.stdout.splitlines()[-1]) == {}, (memory, producer)
            seen += len(copies)
    assert seen
