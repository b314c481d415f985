"""What the kit found of a consumer is what the kept matrix has of it: layouts that it refuses or takes for others.

The matrix hands views of this library's over, the kit its own tensors. No layout of the matrix has a `byte_offset`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.judged.run import KEPT, ROOT
from conformance.tests.kit.test_partners import outcome, refuses

REPORTS = json.loads(KEPT.read_text())
MATRICES = [json.loads(path.read_text()) for path in sorted((ROOT / "conformance" / "results").glob("matrix-*.json"))]

#: The layouts of the matrix, with the check that offers the like.
LAYOUTS = {
    "columns": "strides-fortran",
    "strided": "strides-elements",
    "backwards": "strides-negative",
    "broadcast": "strides-zero",
    "scalar": "ndim-zero",
    "empty": "size-zero",
}
#: Whence, and by which bridge, the consumer's own import is called with a view.
ROUTES = {
    ("host: numpy -> ", " (view, DLPack)"): "dlpack-consumer",
    ("device: numba-cuda -> ", " (view, interface)"): "cai-consumer",
}
#: Where they differ, and why.
DIFFERENT = {
    ("paddlepaddle", "backwards"): "the matrix reads what Paddle exports again, the kit what its own `numpy()` makes: "
    "that fails on negative strides",
}


def cell(matrix: dict[str, Any], pair: dict[str, Any], layout: str) -> str | None:
    """What came of float32 in this layout: `OK` or the outcome; None if nothing was handed over."""
    text = pair["rows"]["float32"]
    place = matrix["layouts"].index(layout)
    number = text[2 * place : 2 * place + 2].strip()
    if not number.isdigit():
        return None
    return "OK" if number == "0" else str(pair["reasons"][int(number) - 1][0])


def compared() -> Iterator[tuple[str, str, str, str]]:
    """Each library and layout that both have, with the matrix's outcome and the kit's."""
    for matrix in MATRICES:
        for key, pair in matrix["pairs"].items():
            for (start, end), profile in ROUTES.items():
                if not key.startswith(start) or not key.endswith(end):
                    continue
                library = key.removeprefix(start).removesuffix(end)
                for report in REPORTS:
                    if report["library"].split()[0] != library or report["kind"] != "consumer":
                        continue
                    for layout, rule in LAYOUTS.items():
                        found, there = outcome(report, f"{profile}.{rule}"), cell(matrix, pair, layout)
                        if found is not None and there not in (None, "not made"):
                            told = {False: "OK", True: "refused", None: "failed"}[refuses(found)]
                            yield library, layout, str(there).replace("copied", "OK"), told


def test_the_matrix_and_the_kit_tell_the_same() -> None:
    rows = list(compared())
    assert len({library for library, *_ in rows}) >= 8 and len({layout for _, layout, *_ in rows}) == len(LAYOUTS)
    other = {
        (library, layout): f"matrix: {there}, kit: {told}" for library, layout, there, told in rows if there != told
    }
    assert set(other) == set(DIFFERENT), other


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.get("target", "simulated"))
def test_a_consumer_that_asks_for_no_version_is_given_no_read_only_view(matrix: dict[str, Any]) -> None:
    """The older tensor, which is all that it gets, cannot say that it must not be written."""
    for report in REPORTS:
        pair = matrix["pairs"].get(f"host: numpy -> {report['library'].split()[0]} (view, DLPack)")
        asks = outcome(report, "dlpack-consumer.asks-version")
        if pair is None or asks is None or outcome(report, "exchange-consumer.takes") == "passed":
            continue
        there = cell(matrix, pair, "read-only")
        assert there is None or (there == "refused") == (asks != "passed"), report["library"]
