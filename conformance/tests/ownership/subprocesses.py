"""Interpreters of their own: for what can be seen only as one ends, or in another version."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pytest

from conformance.tests.interpreter.process import environment
from conformance.tests.ownership import native


@dataclass(frozen=True)
class Interpreter:
    """A CPython, and where the extension that was built for it is."""

    name: str
    executable: str
    package: str | None

    def run(self, *parts: str, seconds: float = 120) -> tuple[int, str]:
        """Runs the parts of a program, each dedented, as one; returns its exit code and all that it printed."""
        return run([self.executable], "".join(map(textwrap.dedent, parts)), self.package, seconds)


def interpreters() -> list[Interpreter]:
    """Returns this interpreter, and those that conformance/soak/pythons.py has built the extension for."""
    here = Interpreter("this", sys.executable, None)
    others = os.environ.get("CAI_DLPACK_PYTHONS", "")
    return [here] + [Interpreter(*entry.split("|")) for entry in others.split() if entry]


EACH_INTERPRETER = pytest.mark.parametrize("interpreter", interpreters(), ids=lambda interpreter: interpreter.name)


def run(command: list[str], code: str, package: str | None = None, seconds: float = 120) -> tuple[int, str]:
    """Runs a Python process; returns its exit code and all that it printed."""
    answer = subprocess.run(
        [*command, "-X", "faulthandler", "-c", code],
        env=environment(package, CAI_DLPACK_NATIVE=str(native.path())),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    return answer.returncode, answer.stdout
