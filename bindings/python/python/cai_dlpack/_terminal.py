"""Lines for a terminal: coloured by rich, if that is installed and somebody looks; plain text otherwise."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

WIDTH = 80


def printer() -> Callable[[str, str], None]:
    """Returns what prints a text in a style, such as "bold red"; "" is the terminal's own."""
    try:
        from rich.console import Console
    except ImportError:
        return lambda text, style: print(text)
    console = Console(width=WIDTH, highlight=False)
    return lambda text, style: console.print(text, style=style or None, markup=False, soft_wrap=True)


def wrapped(text: str, indent: str, first: str | None = None) -> str:
    """The text in lines that fit, each indented; the first may begin otherwise."""
    begin = indent if first is None else first
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=begin, subsequent_indent=indent)
