"""The table of partners (`src/partners/table.rs`) tells what the kit found: each of its facts that the kit judges.

The kit judges a library itself, the table what it does with a view. They are compared where this is the same.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance.checks import CHECKS
from cai_conformance.judge.samples import read_only
from cai_conformance.reference.producers import CaiArray, DlpackArray
from cai_dlpack import _core

from conformance.judged.run import KEPT, ROOT
from conformance.judged.targets import TARGETS

REPORTS: list[dict[str, Any]] = json.loads(KEPT.read_text())
#: The checks of each target.
PROFILES = {
    target.target: {check.id for profile in target.profiles for check in CHECKS.of(f"{profile}-{target.kind}")}
    for target in TARGETS
}
JUDGED = {report["library"].split()[0] for report in REPORTS}
_GPU = "needs a GPU"
_OWN = "takes views and has no arrays that could be judged; tests of its own call it"
#: Partners that the kit does not judge, and why: then nothing here is compared.
NOT_JUDGED = {
    "cupy": f"{_GPU}: its runtime asks the driver for private tables",
    "cudf": _GPU,
    "rmm": _GPU,
    "pylibraft": _GPU,
    "xgboost": _GPU,
    "nvidia.dali": _GPU,
    "cvcuda": _GPU,
    "cuda.tile": _GPU,
    "cuda.compute": _OWN,
    "cutlass.cute": _OWN,
    "kvikio": _OWN,
    "ucxx": _OWN,
    "nixl": _OWN,
    "cupynumeric": _GPU,
}
ROWS: list[dict[str, Any]] = [row for row in _core._partners() if row["name"] not in NOT_JUDGED]

pytestmark = pytest.mark.usefixtures("sim")


class Fact(NamedTuple):
    """A fact as the table tells it, and as the kit found it."""

    what: str
    told: Any
    found: Any


# --- what the kit found ---


def reports(row: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [r for r in REPORTS if r["library"].split()[0] == row["distribution"] and r["kind"] == kind]


def outcome(report: dict[str, Any], rule: str) -> str | None:
    """`passed`, the evidence of the failure, or None if the check was not run."""
    failed = {found["id"]: found["evidence"] for found in report["failed"]}
    if rule in failed:
        return str(failed[rule])
    return "passed" if rule in PROFILES[report["target"]] and rule not in report["not run"] else None


def outcomes(row: dict[str, Any], kind: str, *rules: str) -> set[str]:
    """The outcomes of those of the checks that were run."""
    found = {outcome(report, rule) for report in reports(row, kind) for rule in rules}
    return {each for each in found if each is not None}


#: The arrays of checks that take them as they are, or refuse them.
TRIED: dict[str, np.ndarray[Any, Any]] = {
    "strides-fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "strides-elements": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    "strides-negative": np.arange(6, dtype=np.float32)[::-1],
    "strides-zero": np.lib.stride_tricks.as_strided(np.arange(3, dtype=np.float32), (2, 3), (0, 4)),
    "ndim-zero": np.array(7, dtype=np.float32),
    "ndim-eight": np.arange(8, dtype=np.float32).reshape(1, 2, 1, 2, 1, 2, 1, 1),
    "size-zero": np.zeros((0, 3), dtype=np.float32),
    "reads-float16": np.zeros(3, np.float16),
    "reads-complex": np.zeros(3, np.complex64),
    "reads-bool": np.zeros(3, np.bool_),
}

READ_ONLY = read_only(np.zeros(3))


def refuses(evidence: str) -> bool | None:
    """Whether the consumer refused an array; None if it took it for another."""
    if evidence == "passed":
        return False
    return True if ": raised " in evidence and "cannot be read" not in evidence else None


# --- what the table tells ---


def ignored() -> dict[tuple[str, str], str]:
    """The column `Ignores` of docs/partners.md, which is that of the table, by library and call."""
    page = (ROOT / "docs" / "partners.md").read_text()
    (section,) = re.findall(r"<!-- partners: refusals -->\n(.*?)<!-- end -->", page, re.DOTALL)
    lines = [line.strip("|").split(" | ") for line in section.splitlines()[2:]]
    return {(cells[0].strip(), cells[1].split("`")[1]): cells[-1] for cells in lines}


IGNORED = ignored()


def refused(array: np.ndarray[Any, Any], row: dict[str, Any]) -> bool:
    """Whether `explain` tells that the preferred call refuses a view of the array."""
    made = CaiArray(array) if row["calls"][0]["reads"] == "interface" else DlpackArray(array)
    return cd.explain(cd.view(made), to=row["name"]).refused is not None


def facts(
    row: dict[str, Any],
    refused: Callable[[np.ndarray[Any, Any], dict[str, Any]], bool] = refused,
    ignored: dict[tuple[str, str], str] = IGNORED,
) -> Iterator[Fact]:
    """Each fact of a row that the kit judges."""
    call = row["calls"][0]
    profile = "cai-consumer" if call["reads"] == "interface" else "dlpack-consumer"
    for report in [*reports(row, "producer"), *reports(row, "consumer")]:
        yield Fact("version", row["version"], report["library"].split()[1])
    yield Fact("has arrays", row["produces"], any(r["counts"]["passed"] for r in reports(row, "producer")))
    streams = outcomes(row, "producer", *(f"dlpack-producer.stream-{rule}" for rule in ("cpu", "zero", "range")))
    if streams:
        yield Fact("accepts any stream", "ignores `stream`" in row["quirks"], streams != {"passed"})
    if outcomes(row, "producer", "dlpack-producer.max-version-1") - {"passed"}:
        yield Fact("its tensors have no flags", row["untold"] is not None, True)
    if not reports(row, "consumer"):
        return
    yield Fact(f"reads by {profile}", True, outcomes(row, "consumer", f"{profile}.takes") == {"passed"})
    for rule, array in TRIED.items():
        found = {refuses(evidence) for evidence in outcomes(row, "consumer", f"{profile}.{rule}")} - {None}
        if found:
            yield Fact(f"refuses {rule}", {refused(array, row)}, found)
    versions = outcomes(row, "consumer", "dlpack-consumer.asks-version")
    if versions and "passed" not in outcomes(row, "consumer", "exchange-consumer.takes"):
        # An older tensor, which is all that it asks for, cannot say that it must not be written.
        yield Fact("refuses read-only data", refused(READ_ONLY, row), versions != {"passed"})
    writable = outcomes(row, "consumer", f"{profile}.read-only", "exchange-consumer.read-only")
    if writable:
        told = "the read-only flag" in call["drops"] and not refused(READ_ONLY, row)
        yield Fact("drops the read-only flag", told, writable != {"passed"})
    waits = outcomes(row, "consumer", "cai-consumer.stream-wait")
    if waits:
        yield Fact("nobody waits", call["waits"] == "nobody waits", waits != {"passed"})
    offset = {refuses(evidence) for evidence in outcomes(row, "consumer", f"{profile}.byte-offset-added")}
    if offset:
        told = "`byte_offset`" in ignored.get((row["title"], call["code"]), "")
        yield Fact("ignores byte_offset", told, offset == {None})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
def test_the_table_tells_what_the_kit_found(row: dict[str, Any]) -> None:
    assert row["distribution"] in JUDGED
    wrong = [fact for fact in facts(row) if fact.told != fact.found]
    assert not wrong, row["name"]


def changed(row: dict[str, Any], key: str, value: Any, *, call: bool = False) -> dict[str, Any]:
    """A row with one fact changed."""
    other = copy.deepcopy(row)
    (other["calls"][0] if call else other)[key] = value
    return other


#: For each fact a change of it, and the row in which it is changed.
CHANGES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "version": ("numpy", lambda row: changed(row, "version", "1.0")),
    "has arrays": ("mpi4py", lambda row: changed(row, "produces", True)),
    "accepts any stream": ("tvm_ffi", lambda row: changed(row, "quirks", [])),
    "its tensors have no flags": ("jax", lambda row: changed(row, "untold", None)),
    "reads by cai-consumer": ("numpy", lambda row: changed(row, "reads", "interface", call=True)),
    "drops the read-only flag": ("numba", lambda row: changed(row, "drops", [], call=True)),
    "nobody waits": ("numba", lambda row: changed(row, "waits", "nobody waits", call=True)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_fact_that_is_changed_is_found(what: str) -> None:
    name, change = CHANGES[what]
    (row,) = [row for row in ROWS if row["name"] == name]
    assert what in {fact.what for fact in facts(change(row)) if fact.told != fact.found}


@pytest.mark.parametrize("rule", [*TRIED, "read-only data"])
def test_a_refusal_that_is_changed_is_found(rule: str) -> None:
    (row,) = [row for row in ROWS if row["name"] == "numpy"]
    wrong = facts(row, refused=lambda array, row: not refused(array, row))
    assert f"refuses {rule}" in {fact.what for fact in wrong if fact.told != fact.found}


def test_a_field_that_is_read_no_more_is_found() -> None:
    (row,) = [row for row in ROWS if row["name"] == "warp"]
    wrong = [fact.what for fact in facts(row, ignored={}) if fact.told != fact.found]
    assert wrong == ["ignores byte_offset"]


def test_a_partner_is_judged_or_has_a_reason() -> None:
    rows = {row["name"]: row for row in _core._partners()}
    assert set(NOT_JUDGED) == {name for name, row in rows.items() if row["distribution"] not in JUDGED}
    for name, reason in NOT_JUDGED.items():
        assert rows[name]["checked"] == ("source" if reason.startswith(_GPU) else "test"), name


def test_each_check_that_is_compared_exists() -> None:
    known = {check.rule for check in CHECKS}
    assert set(TRIED) <= known and Path(ROOT / "docs" / "partners.md").exists() and len(IGNORED) > 20
