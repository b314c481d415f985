"""Reads the date and the commit of a result."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def commit() -> str:
    """Returns the short commit, marked if the tree has changes."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "no commit"
