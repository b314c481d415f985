"""Libraries built without a GPU, given device memory: `explain` says that trying tells, or refuses; no process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.tests.interpreter.process import environment

PROGRAM = """
import importlib, sys
import cai_dlpack as cd
import numpy as np

class Array:
    __cuda_array_interface__ = {"shape": (8,), "typestr": "<f4", "data": (4096, False), "version": 3}

name, way = sys.argv[1:]
before = cd.explain(Array(), to=name, stream=1, device_id=0)
assert name not in sys.modules, f"explain has imported {name}"
assert before.refused is None and "cannot be known without trying" in before.unknown, before
module = importlib.import_module(name)
library = {"name": name, "module": module, "class": getattr(module, "Tensor", None)}[way]
capsule = cd.to_dlpack(Array(), device_id=0)
for given, keywords in ((Array(), {"device_id": 0}), (capsule, {"producer_stream": None})):
    after = cd.explain(given, to=name, stream=1, **keywords)
    try:
        cd.to(given, library, stream=1, **keywords)
    except Exception as error:
        rule = getattr(error, "rule", None)
        told = (str(error), None) if rule else (None, before.unknown)
        assert (after.refused, after.unknown) == told, (after, error)
    else:
        raise AssertionError("taken")
assert cd.view(capsule).shape == (8,)
assert cd.to(np.ones(3), library) is not None
print("whole", rule)
"""


@pytest.mark.parametrize(
    ("name", "way", "rule"),
    [
        ("jax", "name", None),
        ("tensorflow", "name", None),
        ("paddle", "name", "transfer-refused"),
        ("paddle", "module", "transfer-refused"),
        ("paddle", "class", "transfer-refused"),
    ],
)
def test_device_memory(name: str, way: str, rule: str | None) -> None:
    """In a process of its own: Paddle's own call ends it."""
    if name == "jax" and sys.version_info < (3, 11):
        pytest.skip("JAX 0.10.2 needs Python 3.11")
    quiet = environment(TF_CPP_MIN_LOG_LEVEL="3")
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, name, way],
        env=quiet, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stdout) == (0, f"whole {rule}\n"), answer.stderr[-3000:]
