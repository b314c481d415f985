"""Tests what a type checker makes of calls: of the documented ones nothing, of wrong ones an error in their line."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.expectations.refusal import builtin
from conformance.tests.interpreter.process import ROOT

ACCEPTED = """
import cai_dlpack as cd
import numpy as np
from typing import Any
from typing_extensions import CapsuleType, assert_type

class Cai:
    __cuda_array_interface__: dict[str, Any] = {}

class Dlpack:
    def __dlpack__(self, stream: int | None = None) -> object:
        return None

class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 1)

class Device:
    type = "cuda"
    index = 1

array = np.zeros(3)
v = cd.view(array)
assert_type(v, cd.CaiView)
cd.view(v)
cd.view(Cai(), device_id=0, producer_stream=Stream(), dtype="float32", shape=(3,))
cd.view(Dlpack(), dtype=np.float32, read_only=True)
cd.view(v.__dlpack__())
cd.view({"shape": (3,)}, owner=array)
assert_type(cd.to_dlpack(array, stream=1), CapsuleType)
cd.to(array, "torch", stream=Stream())
assert_type(memoryview(v)[0], int)
cd.explain(array, to=np)
cd.explain(array, to=np.ndarray)

def takes(array: cd.typing.ArrayLike, stream: cd.typing.StreamLike) -> cd.Explanation:
    return cd.explain(array, to="torch", stream=stream)

try:
    cd.view(array)
except cd.Refusal as refusal:
    assert_type(refusal.rule, str)
    assert_type(refusal.field, str)
    assert_type(refusal.hint, str | None)
except (TypeError, ValueError, BufferError) as error:
    print(error)

def block(stream: Stream) -> int:
    held: cd.Consume = v.consume(stream)
    with held as ready:
        return ready.size

with cd.policy(trace=True), cd.use_stream(1):
    pass
"""

REFUSED = [
    'cd.view("x")',
    "cd.view(3)",
    "cd.view(None)",
    "cd.view([1.0, 2.0])",
    "cd.from_cai(object())",
    "cd.from_dlpack(b'x')",
    "cd.to_dlpack((1, 2))",
    "cd.split_masked(1.5)",
    "cd.to(3, 'numpy')",
    "cd.explain(array, to=3)",
    "cd.view(array, dtype=3)",
    "cd.view(array, device_id=1.5)",
    "cd.view(array, producer_stream='x')",
    "cd.view(array, check='all')",
    "cd.view(array, nothing=1)",
    "cd.policy(sync='never')",
    "cd.Refusal('x').nothing",
]
BEFORE = "import cai_dlpack as cd\nimport numpy as np\narray = np.zeros(3)\n"


def mypy(path: Path) -> set[int]:
    """The lines with errors."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(r":(\d+): error:", done.stdout)}


def pyright(path: Path) -> set[int]:
    """The lines with errors."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_documented_calls_are_accepted(checker: Any, tmp_path: Path) -> None:
    path = tmp_path / "accepted.py"
    path.write_text(ACCEPTED)
    lines = ACCEPTED.splitlines()
    assert [lines[at - 1] for at in checker(path)] == []


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_wrong_calls_are_refused(checker: Any, tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    path.write_text(BEFORE + "\n".join(REFUSED) + "\n")
    first = BEFORE.count("\n") + 1
    missed = set(range(first, first + len(REFUSED))) - checker(path)
    assert [REFUSED[at - first] for at in missed] == []


@pytest.mark.parametrize("call", REFUSED[:-1])
def test_and_refused_when_called(call: str) -> None:
    with pytest.raises(cd.Refusal) as caught:
        eval(call, {"cd": cd, "array": np.zeros(3)})
    assert caught.value.rule in str(caught.value)


def test_a_refusal_is_pickled() -> None:
    classes = [cd.TypeRefusal, cd.ValueRefusal, cd.BufferRefusal, cd.RuntimeRefusal, cd.AttributeRefusal]
    for each in classes:
        assert issubclass(each, cd.Refusal) and each.__bases__[1].__module__ == "builtins"
    with pytest.raises(cd.Refusal) as caught:
        cd.view(np.zeros(3), shape=(5,))
    error = caught.value
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, again.rule, again.field, again.hint) == (
        type(error),
        error.args,
        error.rule,
        error.field,
        error.hint,
    )
    assert builtin(error) is ValueError or isinstance(error, BufferError)


def test_the_types_stand_on_the_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    names = [name for name in cd.__all__ if isinstance(getattr(cd, name), type)] + [*cd.typing.__all__]
    missing = [name for name in names if f"`cd.{name}`" not in page and f"`{name}`" not in page]
    assert not missing
