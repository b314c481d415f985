"""What a library was handed ends with the library's array: its deleter is called, once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.tests.interpreter.process import environment

PROGRAM = """
import gc, sys
import cai_dlpack as cd
import numpy as np

name = sys.argv[1]
if name == "warp":
    import warp

    warp.init()
array, live = np.arange(6, dtype=np.float32).reshape(2, 3), cd.stats()["live"]
before = sys.getrefcount(array)
ways = {
    "array": lambda: array,
    "view": lambda: cd.view(array),
    "legacy capsule": lambda: array.__dlpack__(),
    "versioned capsule": lambda: array.__dlpack__(max_version=(1, 0)),
    "our capsule": lambda: cd.to_dlpack(array, max_version=(1, 3)),
}
for way, make in ways.items():
    for _ in range(5):
        made = cd.to(make(), name, read_only=False)
        del made
    gc.collect()
    assert (sys.getrefcount(array), cd.stats()["live"]) == (before, live), way
print("whole")
"""


@pytest.mark.parametrize("name", ["jax", "tensorflow", "paddle", "onnxruntime", "pyarrow", "array_api_strict", "warp"])
def test_every_library_lets_go(name: str) -> None:
    if name == "jax" and sys.version_info < (3, 11):
        pytest.skip("JAX 0.10.2 needs Python 3.11")
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, name],
        env=environment(TF_CPP_MIN_LOG_LEVEL="3"), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stdout.splitlines()[-1:]) == (0, ["whole"]), answer.stderr[-3000:]
