"""The C program of docs/cusim.md is compiled and run on the simulator."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conformance.tests.interpreter.process import ROOT, environment


def test_the_c_program_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cusim.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```c\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(programs) == 1
    source, program = tmp_path / "page.c", tmp_path / "page"
    source.write_text(programs[0])
    # Rust needs a C compiler to link, so there is one.
    compile_it = ["cc", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "conformance" / "simulator"), str(source)]
    subprocess.run([*compile_it, "-o", str(program), "-ldl"], check=True)
    simulate = [sys.executable, "-m", "cai_conformance", "simulate", "--", str(program)]
    done = subprocess.run(simulate, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "1 1\n"
