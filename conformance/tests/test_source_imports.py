"""Tests that no file of `src` imports, by any way round, a file that imports it."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT

SOURCE = ROOT / "src"
#: A path of modules, such as ("view", "order").
Module = tuple[str, ...]


def module_of(path: Path) -> Module:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] in {"mod", "lib"} else parts


def without_tests(text: str) -> str:
    """The code without comments, texts and what is compiled for tests only."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.DOTALL)
    return re.sub(
        r"#\[cfg\((?:all\()?test\b.*?\]\s*(?:pub\S* )?(?:use|mod) [^;{]*(?:;|\{.*?^\})",
        "",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


def spread(tree: str) -> Iterator[tuple[str, str]]:
    """The paths that a tree of `use` names, each with the name that it gets: `a::{b, c as d}` is `a::b` and `a::c`."""
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.strip().partition(" as ")
        if path:
            yield path, alias.strip() or path.rpartition("::")[2]
        return
    depth, start = 0, brace + 1
    for at, letter in enumerate(tree[brace:], brace):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if (letter == "," and depth == 1) or depth == 0:
            for path, name in spread(tree[start:at].strip()):
                path = (tree[:brace].strip() + path).removesuffix("::self")
                yield path, path.rpartition("::")[2] if name == "self" else name
            start = at + 1
        if depth == 0:
            return


class House:
    """The modules, what each exports under a name of another one, and what each imports."""

    def __init__(self, folder: Path = SOURCE) -> None:
        files = [path for path in sorted(folder.rglob("*.rs")) if "tests" not in path.stem]
        assert files
        self.code = {module_of(path): without_tests(path.read_text()) for path in files}
        self.reexports = {
            (module, name): self.absolute(module, path)
            for module, code in self.code.items()
            for tree in re.findall(r"\bpub(?:\([^)]*\))? use ([^;]+);", code)
            for path, name in spread(tree)
        }

    def absolute(self, module: Module, path: str) -> Module:
        """A path as it is from the crate's root; empty for another crate's."""
        first, *rest = path.split("::")
        if first == "crate":
            return tuple(rest)
        if first in {"self", "super"}:
            while first == "super":
                module = module[:-1]
                first, *rest = rest if rest and rest[0] == "super" else ["self", *rest]
            return (*module, *rest)
        is_child = (*module, first) in self.code
        return (*module, first, *rest) if is_child else ()

    def defines(self, path: Module) -> Module:
        """The module that defines what a path names, through all re-exports."""
        for length in range(len(path), 0, -1):
            module, rest = path[:length], path[length:]
            if module not in self.code:
                continue
            if rest and (module, rest[0]) in self.reexports:
                target = self.reexports[module, rest[0]]
                return self.defines((*target, *rest[1:])) if target else module
            return module
        return ()

    def imports(self, module: Module) -> set[Module]:
        code = self.code[module]
        named = [path for tree in re.findall(r"^\s*use ([^;]+);", code, re.MULTILINE) for path, _ in spread(tree)]
        named += re.findall(r"\b(?:crate|super)(?:::\w+)+", re.sub(r"\buse [^;]+;", "", code))
        found = {self.defines(self.absolute(module, path)) for path in named}
        return found - {module, ()}


def circle(imports: dict[Module, set[Module]]) -> str:
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return " <- ".join("::".join(module) for module in error.args[1])
    return ""


def test_imports_go_down() -> None:
    house = House()
    imports = {module: house.imports(module) for module in house.code}
    assert sum(map(len, imports.values())) > 2 * len(imports), "the imports are not read"
    assert not (found := circle(imports)), f"a circle of files: {found}"


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        ("crate::a::b", ["crate::a::b"]),
        ("crate::a::{self, b as c, d::{e, f}}", ["crate::a", "crate::a::b", "crate::a::d::e", "crate::a::d::f"]),
        ("super::{\n    x,\n}", ["super::x"]),
    ],
)
def test_trees_are_spread(tree: str, paths: list[str]) -> None:
    assert [path for path, _ in spread(tree)] == paths


def test_a_circle_is_found() -> None:
    """A line that makes one, in the code as it is."""
    house = House()
    house.code["protocol", "stream"] += "\nuse crate::view::CaiView;\n"
    found = circle({module: house.imports(module) for module in house.code})
    assert "protocol::stream" in found
