"""Reads the date and the commit of a result."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def commit() -> str:
    """Returns the short commit, marked if the tree has changes; `COMMIT` names it for a tree without its repository."""
    named = os.environ.get("COMMIT")
    if named:
        return named
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no commit"
    return answer.stdout.strip() or "no commit"
