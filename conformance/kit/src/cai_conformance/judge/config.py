"""`cai-conformance.toml`: the deviations that a library wants accepted, each with a reason.

[accept]
"cai-producer.shape-type" = "lists, for callers of version 1; to go in 2.0"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cai_conformance.checks import CHECKS
from cai_conformance.judge.target import Usage

NAME = "cai-conformance.toml"


def accepted(path: Path | None, folder: Path = Path()) -> dict[str, str]:
    """The reasons by check; none if no file is named and there is none in the folder: by default the current one.

    Raises:
        Usage: the file cannot be read, or names a check that does not exist, or gives no reason.
    """
    if path is None:
        path = folder / NAME
        if not path.exists():
            return {}
    whole = _read(path)
    if other := sorted(set(whole) - {"accept"}):
        raise Usage(f"{path}: [accept] is all that there can be, and not {', '.join(map(repr, other))}")
    found = whole.get("accept", {})
    if not isinstance(found, Mapping):
        raise Usage(f"{path}: [accept] must be a table of checks and reasons")
    known = {check.id for check in CHECKS}
    for key, reason in found.items():
        if key not in known:
            raise Usage(f"{path}: no check {key!r}; `cai-conformance checks` lists them")
        if not isinstance(reason, str) or not reason.strip():
            raise Usage(f"{path}: {key}: a reason, as a string")
    return dict(found)


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # of text that is no UTF-8, or no TOML
        raise Usage(f"{path}: {error}") from None
