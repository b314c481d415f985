"""Text of a subject's, made fit for a report."""

from __future__ import annotations

#: Characters of evidence that a report has.
MOST = 2000


def text_of(error: BaseException) -> str:
    """An exception's class and the first line of what it says, whatever its `__str__` does."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["its text cannot be had"]
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines else name


def printable(text: str) -> str:
    """The text without what a terminal, a file in UTF-8 or XML does not take, and not longer than a reader does."""
    shown = text if len(text) <= MOST else f"{text[:MOST]} [...], {len(text)} characters"
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
