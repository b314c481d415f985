"""Tests the kit's pytest plugin in runs of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import os, subprocess, sys
import cai_dlpack as cd

class Old:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 2}

def test_here():
    cd.view(Old(), device_id=0)

def test_in_a_child():
    program = "import test_strict; test_strict.test_here()"
    assert subprocess.run([sys.executable, "-c", program], cwd=os.path.dirname(__file__)).returncode == 0
"""
# Both import the package before the plugin is configured; only the first is loaded by pytest after its plugins.
CONFTEST = "import cai_dlpack as cd\ncd.stats()\n"
EARLY = "import cai_dlpack\n"


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on a user's tests, with the plugin."""
    (folder / "test_strict.py").write_text(TEST)
    (folder / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-p", "cai_conformance.plugin", *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_run_is_strict_if_it_is_asked_to_be(tmp_path: Path) -> None:
    strict = pytest_in(tmp_path, "--cai-strict")
    assert strict.returncode == 1, strict.stdout
    assert "2 failed" in strict.stdout and "[stream-undeclared]" in strict.stdout
    assert "cai_dlpack: strict" in strict.stdout


def test_a_run_is_lenient_otherwise(tmp_path: Path) -> None:
    lenient = pytest_in(tmp_path)
    assert (lenient.returncode, "strict\n" in lenient.stdout) == (0, False), lenient.stdout


def test_a_run_that_cannot_be_made_strict_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    late = pytest_in(tmp_path, "-p", "early", "--cai-strict")
    assert late.returncode == pytest.ExitCode.USAGE_ERROR
    assert "CAI_DLPACK_STRICT=1" in late.stderr
