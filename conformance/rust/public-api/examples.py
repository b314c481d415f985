"""Lists the public items that no example shows; `make public-api` runs it, and exits with 1 if there is one.

    python examples.py RUSTDOC_JSON PAGE ...

An item is shown if it has an example, or if one of its module or of the pages names it. The examples are doc-tests, so
that they compile and hold.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
KINDS = ("struct", "enum", "union", "trait", "function", "macro")


def names(text: str) -> set[str]:
    """The identifiers in the examples of a text."""
    return {name for block in BLOCK.findall(text or "") for name in re.findall(r"\w+", block)}


class Crate:
    def __init__(self, path: str) -> None:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
        self.index: dict[str, Any] = tree["index"]
        self.root: int = tree["root"]
        self.seen: set[int] = set()

    def items(self, number: int, module: int, owner: str = "") -> Iterator[tuple[str, Any, int, str]]:
        """Kind, item, its module and the type that it belongs to, of each that a user can name."""
        item = self.index.get(str(number))
        if item is None or number in self.seen or "hidden" in str(item["attrs"]):
            return
        self.seen.add(number)
        if item["visibility"] not in ("public", "default"):
            return
        ((kind, inner),) = item["inner"].items()
        yield kind, item, number if kind == "module" else module, owner
        if kind == "use" and not inner["is_glob"] and inner["id"] is not None:
            yield from self.items(inner["id"], module)
        for child in inner["items"] if kind == "module" else ():
            yield from self.items(child, number)
        for child in inner["items"] if kind == "trait" else ():
            yield from self.items(child, module, f"{item['name']}::")
        for number_of_impl in inner["impls"] if kind in ("struct", "enum", "union") else ():
            block = self.index.get(str(number_of_impl))
            if block is not None and block["inner"]["impl"]["trait"] is None:
                for child in block["inner"]["impl"]["items"]:
                    yield from self.items(child, module, f"{item['name']}::")


def main() -> int:
    crate = Crate(sys.argv[1])
    found = list(crate.items(crate.root, crate.root))
    everywhere = set().union(*(names(Path(page).read_text(encoding="utf-8")) for page in sys.argv[2:]))
    shown: dict[int, set[str]] = {}
    for _, item, module, _ in found:
        shown.setdefault(module, set(everywhere)).update(names(item["docs"]))
    users = [each for each in found if each[0] in KINDS]
    missing = [
        f"{kind} {owner}{item['name']}"
        for kind, item, module, owner in users
        if item["name"] not in shown[module] and not names(item["docs"])
    ]
    print(f"{len(users) - len(missing)} of {len(users)} public items are shown by an example")
    for line in missing:
        print(f"  no example: {line}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
