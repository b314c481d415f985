"""Lists the public items that no example shows; `make public-api` runs it, and exits with 1 if there is one.

    python examples.py RUSTDOC_JSON

An item is shown by an example of its own; what belongs to a type also by an example of the type, which calls it as
`.name(` or `Type::name`. A page of the guide does not count: a reader of the reference does not see it. The examples
are doc-tests, so that they compile and hold.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
TYPES = ("struct", "enum", "union", "trait")
KINDS = (*TYPES, "function", "macro")

#: Modules whose items are rows that are read by field: an example of each would say nothing. The named item has one.
TABLES = {"protocol::rule": "protocol::rule::Rule", "partners": "partners"}
#: Items whose page is another language's.
ELSEWHERE = {
    "python::PyCaiView": "its documentation is the docstring of the class in Python, with an example of Python"
}


class Item(NamedTuple):
    """An item that a user can name."""

    kind: str
    path: str
    name: str
    docs: str
    #: The path of the type that it is a method of; "" for others.
    owner: str

    @property
    def blocks(self) -> list[str]:
        return BLOCK.findall(self.docs)


class Crate:
    def __init__(self, path: str) -> None:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
        self.index: dict[str, Any] = tree["index"]
        self.root: int = tree["root"]
        self.seen: set[int] = set()

    def items(self, number: int, module: str = "", owner: str = "") -> Iterator[Item]:
        """An item and those in it, each once."""
        item = self.index.get(str(number))
        if item is None or number in self.seen or "hidden" in str(item["attrs"]):
            return
        self.seen.add(number)
        if item["visibility"] not in ("public", "default"):
            return
        ((kind, inner),) = item["inner"].items()
        path = "::".join(filter(None, (owner or module, item["name"]))) if number != self.root else ""
        if kind == "use":
            if not inner["is_glob"] and inner["id"] is not None:
                yield from self.items(inner["id"], module)
            return
        yield Item(kind, path, item["name"] or "", item["docs"] or "", owner)
        for child in inner["items"] if kind == "module" else ():
            yield from self.items(child, path)
        for child in inner["items"] if kind == "trait" else ():
            yield from self.items(child, module, path)
        for number_of_impl in inner["impls"] if kind in ("struct", "enum", "union") else ():
            block = self.index.get(str(number_of_impl))
            if block is not None and block["inner"]["impl"]["trait"] is None:
                for child in block["inner"]["impl"]["items"]:
                    yield from self.items(child, module, path)


def calls(block: str, item: Item) -> bool:
    """Whether a block calls a method, or a function of a type."""
    kind = item.owner.rpartition("::")[2]
    name = re.escape(item.name)
    return re.search(rf"\.{name}(::<[^(]*>)?\(|\b{kind}(::<[^(]*>)?::{name}\b", block) is not None


def main() -> int:
    crate = Crate(sys.argv[1])
    found = list(crate.items(crate.root))
    of_type: dict[str, list[str]] = {}
    for item in found:
        if not item.owner:
            of_type.setdefault(item.path, []).extend(item.blocks)
    users = [item for item in found if item.kind in KINDS]
    read = [item for item in users if item.path.startswith(tuple(f"{name}::" for name in TABLES))]
    for module, example in TABLES.items():
        if not of_type[example]:
            print(f"  no example of {example}, for the rows of {module}")
            return 1
    missing = [
        item
        for item in users
        if not (item in read or item.blocks or item.path in ELSEWHERE)
        and not any(calls(block, item) for block in of_type.get(item.owner, ()))
    ]
    shown = len(users) - len(read) - len(missing)
    print(f"{shown} of {shown + len(missing)} public items are shown by an example; {len(read)} are rows of a table")
    for item in missing:
        print(f"  no example: {item.kind} {item.path}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
