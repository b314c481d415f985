"""Tests that the installed package names the licences of all that its binary links, and holds their texts."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

PACKAGE = importlib.metadata.distribution("cai-dlpack")

#: Crates that run at build time, in macros and build scripts: no code of theirs is in the binary.
BUILD_TIME = {"unicode-ident", "target-lexicon"}


def files(part: str) -> list[Path]:
    """Returns the package's files that lie in a folder of its metadata."""
    found = [Path(str(PACKAGE.locate_file(name))) for name in PACKAGE.files or () if part in name.parts]
    assert found, f"the package has no {part}"
    return found


def linked() -> dict[str, str]:
    """Returns the licence of each crate in the wheel's list of what it is made of, by name."""
    (listed,) = files("sboms")
    components: list[dict[str, Any]] = json.loads(listed.read_text())["components"]
    licences = {crate["name"]: crate["licenses"][0]["expression"] for crate in components}
    return {name: said for name, said in licences.items() if name not in BUILD_TIME}


def test_the_expression_has_the_terms_of_each_crate() -> None:
    terms = set(PACKAGE.metadata["License-Expression"].split(" AND "))
    for name, said in linked().items():
        assert terms & set(said.split(" OR ")), f"{name} is {said}"
    alone = {said for said in linked().values() if " OR " not in said}
    assert terms == alone, "a term that no crate asks for, or one that is missing"


@pytest.mark.parametrize("name", [name for name, said in linked().items() if " OR " not in said])
def test_a_crate_without_a_choice_has_its_text_in_the_wheel(name: str) -> None:
    texts = {file.name: file.read_text() for file in files("licenses")}
    assert "Copyright" in texts[f"LICENSE-{name}"]


def test_our_own_texts_are_in_the_wheel() -> None:
    assert {"LICENSE-APACHE", "LICENSE-MIT"} <= {file.name for file in files("licenses")}
