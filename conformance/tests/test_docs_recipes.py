"""The blocks of the pages that need a GPU, run with doubles that demand what the consumers' sources demand.

Each double reads where the library works, and looks whether the data is ready there: by the driver's log the host has
waited for the producer's stream, or the library's stream for an event of it.
"""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles import consumers
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("conformance/**/*.md")])
BLOCK = re.compile(r"^```py\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
#: The labels of blocks of code that something runs or compiles; all others are no Python.
PYTHON = {"py", "python"}
LABEL = re.compile(r"^ *```(\w+)", re.MULTILINE)
LEGACY = 1


def blocks() -> list[Any]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start())
            first = textwrap.dedent(block["code"]).strip().splitlines()[0]
            found.append(pytest.param(page, line, block["code"], id=f"{page.name}: {first}"))
    return found


class NotReady(AssertionError):
    pass


class Libraries:
    """The names that the blocks use. `stream` is where a library works that has one of its own."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ready, self.stream = machine.stream(), machine.stream()
        pointer = machine.device_memory(4096)
        self.view = cd.view(Cai(interface(shape=(6,), data=(pointer, False), stream=self.ready)))
        self.reads = 0
        machine.clear()

    def read(self, where: int | None) -> None:
        """Reads the array on a stream; None: on the host, or on a stream that has no name."""
        calls = self.machine.order()
        by_host = ("cuStreamSynchronize", self.ready) in calls
        by_event = ("cuEventRecord", self.ready) in calls and ("cuStreamWaitEvent", where) in calls
        if not (by_host or (where is not None and by_event)):
            raise NotReady(f"read on {where}: {calls}")
        self.reads += 1
        self.machine.clear()

    def of(self, double: Callable[[Any], int], where: Callable[[Any], int | None]) -> Callable[..., str]:
        def call(view: Any, *positional: Any, **named: Any) -> str:
            assert double(view) == self.view.ptr
            self.read(where(named))
            return "read"

        return call

    def as_tensor(self, view: Any, device: str | None = None) -> None:
        """`internal_new_from_data` ends in a copy to `device`, or to the default one, which is the CPU."""
        assert device is not None and device.startswith("cuda"), "a copy on the CPU"
        assert consumers.torch(view) == self.view.ptr
        self.read(self.stream)

    def asarray(self, view: Any) -> None:
        """JAX makes its own stream wait for the one in the dict, but for 1 and 2."""
        consumers.jax(view)
        self.by_itself(view)

    def predict(self, view: Any) -> None:
        """XGBoost waits for the stream in the dict, but for 1."""
        consumers.xgboost(view)
        self.by_itself(view)

    def by_itself(self, view: Any) -> None:
        stream = view.__cuda_array_interface__["stream"]
        if stream in (None, LEGACY, 2):
            self.read(None)
            return
        # It waits for this stream, which has to be one that waits for the data.
        self.read(stream)

    def send(self, view: Any, dest: int) -> None:
        self.read(None)

    def from_capsule(self, capsule: Any) -> None:
        assert abi.read(capsule).data == self.view.ptr
        self.read(None)

    def writes(self, capsule: Any) -> None:
        """The module that test_pybind11 compiles, which launches on `s`."""
        assert abi.read(capsule).data == self.view.ptr
        self.read(self.stream)

    def reduce_into(self, *, d_in: Any, stream: Any, **others: Any) -> None:
        assert consumers.cuda_compute(d_in) == self.view.ptr
        self.read(stream.handle)

    def launch(self, stream: Any, grid: Any, kernel: Any, arguments: tuple[Any]) -> None:
        consumers.without_order(arguments[0], lambda address: self.read(stream.handle))

    def from_dlpack(self, view: Any) -> Any:
        """`cutlass.cute.runtime` of nvidia-cutlass-dsl 4.8.1: -1, and no version; the tensor keeps the capsule."""
        capsule = view.__dlpack__(stream=-1)
        assert abi.read(capsule).data == self.view.ptr
        return capsule

    def write_file(self, view: Any) -> None:
        assert consumers.contiguous(view) == self.view.ptr
        self.read(None)

    def names(self) -> dict[str, Any]:
        own = SimpleNamespace(
            handle=self.stream,
            cuda_stream=self.stream,
            value=lambda: self.stream,
            __cuda_stream__=lambda: (0, self.stream),
        )

        class Handle:
            handle = self.stream
            value = staticmethod(lambda: own.handle)

            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, int(own.handle)

        @contextlib.contextmanager
        def stream() -> Iterator[Any]:
            yield own

        here: Callable[[Any], int] = lambda named: self.stream  # noqa: E731
        return {
            "cd": cd,
            "np": np,
            "v": self.view,
            "s": Handle(),
            "torch": SimpleNamespace(
                cuda=SimpleNamespace(current_stream=lambda: own), as_tensor=self.as_tensor, float32=np.float32
            ),
            "wp": SimpleNamespace(
                get_stream=lambda device: own, float32=np.float32, array=self.of(consumers.warp, here)
            ),
            "comm": SimpleNamespace(Send=self.send),
            "nvcv": SimpleNamespace(cuda=SimpleNamespace(Stream=stream), as_tensor=self.of(consumers.nvcv, here)),
            "buffer": SimpleNamespace(
                copy_from_device=self.of(consumers.pybind11_cai, lambda named: int(named["stream"].value()))
            ),
            "cudf": SimpleNamespace(Series=self.of(consumers.cudf, lambda named: LEGACY)),
            "kernel": self.of(consumers.pycuda, lambda named: int(named["stream"].handle)),
            "jnp": SimpleNamespace(asarray=self.asarray),
            "cuda": SimpleNamespace(compute=SimpleNamespace(reduce_into=self.reduce_into)),
            **dict.fromkeys(("out", "plus", "zero", "grid")),
            "ct": SimpleNamespace(launch=self.launch),
            "from_dlpack": self.from_dlpack,
            "function": lambda tensor, stream: self.read(stream.handle),
            "file": SimpleNamespace(write=self.write_file),
            "by_pybind11": SimpleNamespace(writes=self.writes),
            "booster": SimpleNamespace(predict=self.predict),
            "tf": SimpleNamespace(experimental=SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=self.from_capsule))),
        }


def run(machine: Machine, code: str, page: Path, line: int) -> int:
    """Runs each statement of a block on a new array, and returns how often a library has read."""
    libraries = Libraries(machine)
    exec(compile("\n" * (line + 1) + code, page, "exec"), libraries.names())
    return libraries.reads


def statements(code: str) -> list[str]:
    """The block, once for each call of a consumer that stands alone in a line."""
    lines = textwrap.dedent(code).splitlines()
    alone = [line for line in lines if re.match(r"\w+ = jnp|booster", line)]
    return alone or ["\n".join(lines)]


def test_there_are_such_blocks() -> None:
    assert len(blocks()) > 7


@pytest.mark.parametrize(("page", "line", "code"), blocks())
def test_the_data_is_ready_where_the_library_reads(machine: Machine, page: Path, line: int, code: str) -> None:
    for statement in statements(code):
        assert run(machine, statement, page, line) == 1


@pytest.mark.parametrize(("page", "line", "code"), blocks())
def test_without_the_call_that_orders_it_is_not(machine: Machine, page: Path, line: int, code: str) -> None:
    orders = re.compile(r"\.on\((?:[^()]|\([^()]*\))*\)|\.synchronize\(\)|, stream=\"host\"|stream=s, (?=max)")
    for statement in statements(code):
        bare = orders.sub("", statement)
        assert bare != statement
        with pytest.raises((NotReady, cd.Refusal)):
            run(machine, bare, page, line)


def test_without_a_device_torch_copies_to_the_cpu(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="a copy on the CPU"):
        run(machine, "torch.as_tensor(v.on(1))", ROOT / "README.md", 0)


def test_every_block_of_python_has_a_label_that_is_run() -> None:
    """`python` is run by test_docs_python, `py` here; nothing that is Python hides behind another label."""
    others = {"console", "text", "sh", "rust", "toml", "c", "cpp", "json", "make", "yaml", "bash", "diff", "ini"}
    for page in PAGES:
        labels = set(LABEL.findall(page.read_text(encoding="utf-8")))
        assert labels <= PYTHON | others, (page.name, labels - PYTHON - others)
