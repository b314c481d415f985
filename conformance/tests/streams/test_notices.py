"""What an import warns of is shown as Python's own `warnings.warn` shows the same text from the same line.

Whatever has been shown before, and whatever is done to the filters, the registry and the names of the classes.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import interface

ACTIONS: list[Any] = ["default", "error", "ignore", "always", "module", "once"]
LINES = 3
SOURCE = "".join(f"def call{line}(function, *arguments):\n    return function(*arguments)\n" for line in range(LINES))

#: What is warned of: the module of the class, and the items of its dict.
NOTICES: dict[str, tuple[str, dict[str, Any]]] = {
    "stream 0": ("producers", interface(stream=0)),
    "version 4": ("producers", interface(version=4)),
    "version 5": ("producers", interface(version=5)),
    "no stream": ("cuda.core._memory", interface(version=3, stream=None)),
}


def make(notice: str) -> Any:
    module, items = NOTICES[notice]
    return type("Placeholder", (), {"__module__": module, "__cuda_array_interface__": items})


def text_of(kind: Any, template: str) -> str:
    name = kind.__qualname__ if kind.__module__ == "__main__" else f"{kind.__module__}.{kind.__qualname__}"
    return template.replace("Placeholder", name)


class Side:
    """A module whose lines warn: its registry, and the one of `once`."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "caller"}
        self.once: dict[Any, Any] = {}
        exec(compile(SOURCE, "caller.py", "exec"), self.names)

    def shown(self, seen: list[Any], line: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a call shows or raises."""
        del seen[:]
        before, warnings.onceregistry = warnings.onceregistry, self.once  # type: ignore[attr-defined]
        try:
            self.names[f"call{line}"](function, *arguments)
            raised = None
        except Warning as warning:
            raised = (type(warning), str(warning))
        finally:
            warnings.onceregistry = before  # type: ignore[attr-defined]
        return raised, [(each.category, str(each.message), each.filename, each.lineno) for each in seen]


@pytest.mark.parametrize("seed", range(40))
def test_a_warning_is_shown_as_pythons_own(seed: int) -> None:
    choose = random.Random(seed)
    ours, pythons = Side(), Side()
    shown = 0
    with ExitStack() as outermost, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kinds = []
        for notice in NOTICES:
            kind = make(notice)
            cd.view(kind(), device_id=0)
            category, text = seen[-1].category, str(seen[-1].message)
            kinds += [(make(notice), category, text.replace(f"{kind.__module__}.Placeholder", "Placeholder"))]
            kinds += [(make(notice), *kinds[-1][1:])]
        warnings.resetwarnings()
        blocks: list[Any] = []
        for _ in range(200):
            step = choose.randrange(20)
            if step == 0:
                category = choose.choice([Warning, UserWarning, cd.StreamWarning, cd.VersionWarning])
                message, line = choose.choice(["", ".*stream", ".*newer"]), choose.choice([0, 0, 2, 4])
                warnings.filterwarnings(choose.choice(ACTIONS), message, category, choose.choice(["", "call"]), line)
            elif step == 1:
                warnings.simplefilter(choose.choice(ACTIONS))
            elif step == 2 and len(blocks) < 3:
                blocks.append(outermost.enter_context(ExitStack()))
                blocks[-1].enter_context(warnings.catch_warnings())
            elif step == 3 and blocks:
                blocks.pop().close()
            elif step == 4:
                for side in (ours, pythons):
                    side.names.get("__warningregistry__", {}).clear()
            elif step == 5:
                kind = choose.choice(kinds)[0]
                kind.__qualname__ = choose.choice(["Array", "Outer.Array", "Feld\u00e4"])
            elif step == 6 and not (kind := choose.choice(kinds)[0]).__module__.startswith("cuda"):
                kind.__module__ = choose.choice(["producers", "__main__", "other"])
            else:
                kind, category, template = choose.choice(kinds)
                line = choose.randrange(LINES)
                found = ours.shown(seen, line, partial(cd.view, device_id=0), kind())
                assert found == pythons.shown(seen, line, warnings.warn, text_of(kind, template), category)
                shown += bool(found[0] or found[1])
        while blocks:
            blocks.pop().close()
    assert shown > 3


@pytest.mark.parametrize("later", ["producers", 3, None, RuntimeError("mine")], ids=repr)
def test_a_class_whose_name_changes_is_warned_of_all_the_same(later: Any) -> None:
    class Meta(type):
        is_known = False

        def __getattribute__(cls, name: str) -> Any:
            if name != "__module__" or not Meta.is_known:
                return super().__getattribute__(name)
            if isinstance(later, Exception):
                raise later
            return later

    kind = Meta("Changing", (), {"__cuda_array_interface__": interface(version=4)})
    for Meta.is_known in (False, True):
        with pytest.warns(cd.InterchangeWarning, match="exports version 4"):
            cd.from_cai(kind(), device_id=0)
