"""Finds what is to be judged, and writes the programs of a report."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from operator import attrgetter
from types import FunctionType
from typing import Any

from cai_conformance.judge import steps
from cai_conformance.judge.check import Check
from cai_conformance.judge.samples import SAMPLES
from cai_conformance.judge.text import text_of


class Usage(Exception):
    """The command was used wrongly: exit code 2."""


@dataclass(frozen=True)
class Target:
    """A function by its module and name: `numba.cuda:to_device`."""

    text: str

    @property
    def module(self) -> str:
        return self.text.partition(":")[0]

    @property
    def name(self) -> str:
        return self.text.partition(":")[2]

    def load(self) -> Any:
        """The function.

        Raises:
            Usage: there is none of this name.
        """
        if not self.module or not self.name:
            raise Usage(f"{self.text!r}: write MODULE:FUNCTION, such as numpy:from_dlpack")
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            found = attrgetter(self.name)(importlib.import_module(self.module))
        except (Exception, SystemExit) as error:
            raise Usage(f"{self.text!r}: {text_of(error)}") from None
        if not callable(found):
            raise Usage(f"{self.text!r} is a {type(found).__name__}, and not a function")
        return found

    @cached_property
    def source(self) -> tuple[list[str], list[str]] | None:
        """The imports and the definition of a function that no installed distribution has; None for one that has."""
        function = self._now()
        top = self.module.partition(".")[0]
        if top == "cai_conformance" or top in packages_distributions() or not _has_source(function):
            return None
        if inspect.unwrap(function).__qualname__ != self.name:  # another name of it, or what a function has made
            return None
        try:
            return _definition(function, set())
        except (OSError, TypeError, SyntaxError):
            return None

    @classmethod
    def of(cls, function: Any) -> Target:
        """The function by a name of its module, if it has one there."""
        module = getattr(function, "__module__", None) or type(function).__module__
        name = getattr(function, "__qualname__", None)
        if name is None:
            values = vars(sys.modules.get(module, object)).items()
            name = next((key for key, value in values if value is function), f"<{type(function).__qualname__}>")
        elif cls(f"{module}:{name}")._now() not in (function, None):
            name = f"<another {name}>"
        return cls(f"{module}:{name}")

    def _now(self) -> Any:
        """What the name stands for in this process; None if for nothing."""
        found: Any = sys.modules.get(self.module)
        for part in self.name.split("."):
            found = getattr(found, part, None)
        return found

    @property
    def is_importable(self) -> bool:
        """Whether a program in another process can have the function."""
        if not self.has_name:
            return False
        if self.source:
            return True
        try:
            return self._now() is not None and find_spec(self.module) is not None
        except (ImportError, ValueError):
            return False

    @property
    def has_name(self) -> bool:
        """Whether a program can name it: not a lambda, nor what a function defines."""
        return all(part.isidentifier() for part in self.text.replace(":", ".").split("."))

    @property
    def call(self) -> str:
        """The function as a program names it."""
        if not self.has_name:
            return "function"
        return self.name if self.source else f"{self.module}.{self.name}"

    def head(self, *imports: str) -> list[str]:
        """The first lines of a program: what it imports, and the function if nobody can import it."""
        lines = ["import numpy as np"]
        if not self.has_name:
            return [*lines, *imports, "", f"# function: {self.text}"]
        if not self.source:
            return [*lines, f"import {self.module}", *imports, ""]
        own, definition = self.source
        return [*lines, *dict.fromkeys((*own, *imports)), "", *definition, ""]

    def producer_program(self, check: Check, done: list[steps.Step]) -> str:
        """A program that shows what a producer makes of the last sample, and what was asked of it."""
        code = SAMPLES[steps.last("sample", done) or check.samples[0]].code
        started = max((place for place, step in enumerate(done) if step[0] == "sample"), default=0)
        called = [text for kind, text in done[started:] if kind == "call"]
        array = f"{self.call}({code})"
        shown = (
            check.shows.format(array=array, call=self.call)
            or "\n".join(dict.fromkeys(map(_shown, called[-4:])))
            or _SHOW[check.profile]
        )
        return "\n".join([*self.head(*_imports(shown + code)), f"array = {array}", shown])

    def consumer_program(self, check: Check, done: list[steps.Step]) -> str:
        """A program that hands the last offer to a consumer."""
        is_cai = check.profile.startswith("cai")
        code = steps.last("offer", done) or _OFFERS[check.profile]
        shown = check.shows.format(take=self.call) or (_SHOW_CAI if is_cai else "print(taken)")
        lines = self.head(*_imports(shown + code), "from cai_conformance.offers import *")
        taking = [] if "{take}" in check.shows else [f"taken = {self.call}(offer)"]
        return "\n".join([*lines, f"offer = {code}", *taking, shown])


def _has_source(function: Any) -> bool:
    """Whether it is a function or a class of Python's, if a cached one."""
    return isinstance(inspect.unwrap(function), FunctionType) or isinstance(function, type)


def _definition(function: Any, known: set[str]) -> tuple[list[str], list[str]]:
    """The imports of a function and of those that it calls in its module, and their definitions.

    Raises:
        TypeError: it refers to something else of its module.
    """
    function = inspect.unwrap(function)
    known.add(function.__name__)
    lines = _bare(inspect.getsource(function))
    scope = vars(sys.modules[function.__module__])
    imports: list[str] = []
    before: list[str] = []
    names = {node.id for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.Name)}
    for name in sorted(names & set(scope) - known):
        known.add(name)
        found = scope[name]
        module = getattr(found, "__module__", None)
        if inspect.ismodule(found):
            imports.append(f"import {found.__name__} as {name}" if found.__name__ != name else f"import {name}")
        elif module == function.__module__ and _has_source(found):
            more, text = _definition(found, known)
            imports += more
            before += [*text, ""]
        elif callable(found) and module not in (None, function.__module__):
            imports.append(f"from {module} import {found.__name__}")
        else:
            raise TypeError(f"{name} is in {function.__module__} only")
    return imports, [*before, *lines]


def _bare(text: str) -> list[str]:
    """The lines of a function or a class without docstrings and annotations."""
    tree = ast.parse(textwrap.dedent(text))
    (whole,) = tree.body
    if not isinstance(whole, ast.FunctionDef | ast.ClassDef):
        raise TypeError("no function")
    for node in ast.walk(whole):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    texts = _Texts()
    return texts.back(ast.unparse(texts.visit(tree))).splitlines()


class _Texts(ast.NodeTransformer):
    """Keeps strings of several lines as they are written: `ast.unparse` would make one line of them."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str) or "\n" not in node.value or '"""' in node.value or "\\" in node.value:
            return node
        self.kept.append(node.value)
        return ast.Name(f"_text_{len(self.kept)}_of_several_lines")

    def back(self, text: str) -> str:
        for number, value in enumerate(self.kept, 1):
            text = text.replace(f"_text_{number}_of_several_lines", f'"""{value}"""')
        return text


#: What a line of a program needs, by a name in it.
_NEEDS = {
    "ctypes.": "import ctypes",
    "gc.": "import gc",
    "weakref.": "import weakref",
    "abi.": "from cai_conformance import abi",
    "driver()": "from cai_conformance.cuda import driver",
    "exchanged(": "from cai_conformance.exchanged import exchanged",
    "read_only(": "from cai_conformance.judge.samples import read_only",
}


def _imports(text: str) -> list[str]:
    return [line for name, line in _NEEDS.items() if name in text]


def _shown(call: str) -> str:
    return f"print(abi.read({call}))" if "__dlpack__(" in call else f"print({call})"


_OFFERS = {"cai-consumer": "cai()", "dlpack-consumer": "tensor()", "exchange-consumer": "exchanged()"}
_SHOW = {
    "cai-producer": "print(array.__cuda_array_interface__)",
    "dlpack-producer": "print(abi.read(array.__dlpack__()))",
    "exchange-producer": "print(type(array).__dlpack_c_exchange_api__)",
}
_SHOW_CAI = 'print(getattr(taken, "__cuda_array_interface__", taken))'
