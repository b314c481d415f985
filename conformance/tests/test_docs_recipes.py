"""The blocks of the pages that need a GPU, run with doubles that demand what the consumers' sources demand.

Each double reads where the library works, and looks whether the data is ready there: by the driver's log the host has
waited for the producer's stream, or the library's stream for an event of it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import re
import shlex
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi, plugin
from cai_conformance.__main__ import parser
from cai_dlpack import _wire, nixl

from conformance.tests.doubles import consumers
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.fences import Block, blocks, of_text
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

#: The labels of blocks of code that something runs or compiles.
RUN = {"python", "py", "rust", "rust,no_run", "rust,ignore", "c"}
#: Those of blocks that are no Python.
OTHERS = {"console", "text", "sh", "toml"}
LEGACY = 1
BLOCKS = [pytest.param(block, id=block.name) for block in blocks("py")]


class NotReady(AssertionError):
    pass


class Unregistered(NotReady):
    """Ray knows no such transport."""


class Libraries:
    """The names that the blocks use. `stream` is where a library works that has one of its own."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ready, self.stream = machine.stream(), machine.stream()
        pointer = machine.device_memory(4096)
        array = Cai(interface(shape=(6,), data=(pointer, False), stream=self.ready))
        view = cd.view(array)
        self.owner, self.ptr, self.size = weakref.ref(array), view.ptr, view.size
        #: Until the names of a block hold it.
        self.made = [view]
        self.into = cd.view(Cai(interface(shape=(6,), data=(machine.device_memory(4096), False), stream=self.ready)))
        self.transports: set[str] = set()
        #: What ends each kernel that is launched.
        self.kernels: list[Callable[[], None]] = []
        #: How many arrays a call reads.
        self.arrays = 1
        self.reads = 0
        machine.clear()

    def read(self, where: int | None, copied: bool = False) -> None:
        """Reads the array on a stream; None: on the host, or on a stream that has no name. What is copied first is
        waited for on the copy's stream, too."""
        calls = self.machine.order()
        if copied and [name for name, _ in calls[1:]] == ["cuStreamSynchronize"]:
            calls = calls[:1]
        orders = [[("cuStreamSynchronize", self.ready)]]
        if where is not None:
            orders.append([("cuEventRecord", self.ready), ("cuStreamWaitEvent", where)] * self.arrays)
        if calls not in orders:
            raise NotReady(f"read on {where}: {calls}")
        self.reads += 1
        self.machine.clear()

    def of(self, double: Callable[[Any], int], where: Callable[[Any], int | None]) -> Callable[..., str]:
        def call(view: Any, *positional: Any, **named: Any) -> str:
            assert double(view) == self.ptr
            self.read(where(named))
            return "read"

        return call

    def as_tensor(self, view: Any, device: str | None = None) -> None:
        """`internal_new_from_data` ends in a copy to `device`, or to the default one, which is the CPU."""
        assert device is not None and device.startswith("cuda"), "a copy on the CPU"
        assert consumers.torch(view) == self.ptr
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
        assert abi.read(capsule).data == self.ptr
        self.read(None)

    def writes(self, capsule: Any) -> None:
        """The module that test_pybind11 compiles, which launches on `s`."""
        assert abi.read(capsule).data == self.ptr
        self.read(self.stream)

    def reduce_into(self, *, d_in: Any, stream: Any, **others: Any) -> None:
        assert consumers.cuda_compute(d_in) == self.ptr
        self.read(stream.handle)

    def launch(self, stream: Any, grid: Any, kernel: Any, arguments: tuple[Any, ...]) -> None:
        """The kernel is done when the block is."""
        (view,), arguments = arguments, ()
        self.kernels.append(consumers.without_order(view, self.owner, lambda address: self.read(stream.handle)))

    def from_dlpack(self, view: Any) -> Any:
        """`cutlass.cute.runtime` of nvidia-cutlass-dsl 4.8.1: -1, and no version; the tensor keeps the capsule."""
        capsule = view.__dlpack__(stream=-1)
        assert abi.read(capsule).data == self.ptr
        return capsule

    def write_file(self, view: Any) -> None:
        assert consumers.contiguous(view) == self.ptr
        self.read(None)

    def all_reduce(self, send: int, receive: int, count: int, dtype: int, operation: int, stream: int) -> None:
        """`NcclCommunicator.allReduce` of CuPy (`nccl.pyx`): numbers, no objects."""
        assert all(type(each) is int for each in (send, receive, count, dtype, operation, stream))
        assert (send, receive, count, stream) == (self.ptr, self.into.ptr, self.size, self.stream)
        self.arrays = 2
        self.read(stream)

    def rows(self, rows: np.ndarray[Any, Any], memory: str, width: int) -> None:
        """`get_reg_descs` and `get_xfer_descs` of NIXL 1.5.1: rows of 64 bits without a sign, and the memory's name."""
        assert isinstance(rows, np.ndarray) and rows.dtype == np.uint64 and rows.ndim == 2 and rows.shape[1] == width
        assert memory == "VRAM" and int(rows[0, 0]) == self.ptr

    def agent(self) -> Any:
        """An agent of NIXL's, which reads when rows are prepared: it asks nobody for a stream."""

        def register_memory(rows: Any, memory: str) -> None:
            self.rows(rows, memory, 3)

        def get_xfer_descs(rows: Any, memory: str) -> None:
            self.rows(rows, memory, 3)
            self.read(None)

        def prep_xfer_dlist(name: str, rows: Any, memory: str) -> None:
            assert name == ""
            self.rows(rows, memory, 5)
            self.read(None)

        return SimpleNamespace(
            register_memory=register_memory, get_xfer_descs=get_xfer_descs, prep_xfer_dlist=prep_xfer_dlist
        )

    def at_once(self) -> Any:
        """`nixl` without its wait."""
        one, strided = (
            np.array([[self.ptr, 24, 0]], np.uint64),
            np.array([[self.ptr, 24, 0, 24, 1]], np.uint64),
        )
        return SimpleNamespace(
            rows=lambda view: nixl.Rows(one, "VRAM", view),
            strided_rows=lambda view: nixl.StridedRows(strided, "VRAM", view, one),
        )

    def method(self, *, tensor_transport: str) -> Callable[[Any], Any]:
        """`ray.method` of Ray 2.60.0 looks for the transport when the class is defined."""
        if tensor_transport.upper() not in self.transports:
            raise Unregistered(tensor_transport)

        def decorated(function: Any) -> Any:
            def remote() -> Any:
                # The actor's transport, as its method returns: `_wire` is what makes the bytes.
                sent = _wire.to_bytes(function(None))
                self.read(None, copied=True)
                return sent

            return SimpleNamespace(remote=remote)

        return decorated

    def remote(self, *, enable_tensor_transport: bool) -> Callable[[type], type]:
        assert enable_tensor_transport is True

        def decorated(actor: Any) -> Any:
            actor.remote = actor
            return actor

        return decorated

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Puts a double of `cai_dlpack.ray` where Ray is not installed."""
        module: Any = SimpleNamespace(register=lambda: self.transports.add("CAI_DLPACK"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(sys.modules, "cai_dlpack.ray", module)
            patched.setattr(cd, "ray", module, raising=False)
            yield

    def names(self) -> dict[str, Any]:
        own = SimpleNamespace(
            handle=self.stream,
            cuda_stream=self.stream,
            value=lambda: self.stream,
            __cuda_stream__=lambda: (0, self.stream),
        )

        class Handle:
            handle = ptr = self.stream
            value = staticmethod(lambda: own.handle)

            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, int(own.handle)

        @contextlib.contextmanager
        def stream() -> Iterator[Any]:
            yield own

        view = self.made.pop()
        here: Callable[[Any], int] = lambda named: self.stream  # noqa: E731
        return {
            "cd": cd,
            "np": np,
            "v": view,
            "s": Handle(),
            "torch": SimpleNamespace(
                cuda=SimpleNamespace(current_stream=lambda: own), as_tensor=self.as_tensor, float32=np.float32
            ),
            "wp": SimpleNamespace(
                get_stream=lambda device: own, float32=np.float32, array=self.of(consumers.warp, here)
            ),
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
            "contextlib": contextlib,
            "view": view,
            "into": self.into,
            "array": view,
            "comm": SimpleNamespace(Send=self.send, allReduce=self.all_reduce),
            "cupy": SimpleNamespace(
                cuda=SimpleNamespace(nccl=SimpleNamespace(NCCL_FLOAT32=7, NCCL_SUM=0)),
            ),
            "nixl": nixl,
            "agent": self.agent(),
            "at_once": self.at_once(),
            "ray": SimpleNamespace(remote=self.remote, method=self.method),
            "taker": SimpleNamespace(take=SimpleNamespace(remote=lambda sent: None)),
            "by_pybind11": SimpleNamespace(writes=self.writes),
            "booster": SimpleNamespace(predict=self.predict),
            "tf": SimpleNamespace(experimental=SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=self.from_capsule))),
        }


def run(machine: Machine, code: str, block: Block) -> int:
    """Runs each statement of a block on a new array, and returns how often a library has read."""
    libraries = Libraries(machine)
    names = libraries.names()
    with libraries.installed():
        exec(compile("\n" * block.line + code, block.page, "exec"), names)
    for ended in libraries.kernels:
        ended()
    return libraries.reads


def test_a_view_that_is_dropped_before_its_kernel_is_done_is_found(machine: Machine) -> None:
    """Of cuTile, which keeps nothing; the recipe holds it."""
    (block,) = [block for block in blocks("py") if "ct.launch" in block.code]
    assert run(machine, block.code, block) == 1
    forget = "\nimport gc\ndel t, v, view, array\ngc.collect()"
    with pytest.raises(consumers.Freed):
        run(machine, block.code + forget, block)


@pytest.mark.parametrize("more", ["v.on(s)", "v.on(1)", "v.on(s).on(s)", "v.synchronize()"])
def test_a_call_too_many_is_found(machine: Machine, more: str) -> None:
    """What a recipe costs is what it says, and no more."""
    block = Block(ROOT / "README.md", 0, "py", "")
    with pytest.raises(NotReady):
        run(machine, f"{more}\nfile.write(v.synchronize())", block)


def statements(code: str) -> list[str]:
    """The block, once for each call of a consumer that stands alone in a line."""
    lines = code.splitlines()
    alone = [line for line in lines if re.match(r"\w+ = jnp|booster", line)]
    return alone or ["\n".join(lines)]


def test_there_are_such_blocks() -> None:
    assert len(BLOCKS) > 15


@pytest.mark.parametrize("block", BLOCKS)
def test_the_data_is_ready_where_the_library_reads(machine: Machine, block: Block) -> None:
    for statement in statements(block.code):
        assert run(machine, statement, block) == 1


#: What orders, and what the block does without it.
ORDERS = {
    r"\.on\((?:[^()]|\([^()]*\))*\)|\.synchronize\(\)|, stream=\"host\"|stream=s, (?=max)": "",
    r"(\w+)\.consume\(s\)": r"contextlib.nullcontext(\1)",
    r"nixl\.(strided_)?rows\(v\)": r"at_once.\1rows(v)",
    r"cai_dlpack\.ray\.register\(\)": "",
}


@pytest.mark.parametrize("block", BLOCKS)
def test_without_the_call_that_orders_it_is_not(machine: Machine, block: Block) -> None:
    for statement in statements(block.code):
        bare = statement
        for pattern, without in ORDERS.items():
            bare = re.sub(pattern, without, bare)
        assert bare != statement
        with pytest.raises((NotReady, cd.Refusal)):
            run(machine, bare, block)


def test_without_a_device_torch_copies_to_the_cpu(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="a copy on the CPU"):
        run(machine, "torch.as_tensor(v.on(1))", Block(ROOT / "README.md", 0, "py", ""))


def test_the_block_of_ray_is_what_its_actors_do() -> None:
    """The lines that Ray reads, which `make reach` runs."""
    (block,) = [block for block in blocks("py") if "ray.remote" in block.code]
    actors = (ROOT / "conformance" / "reach" / "actors.py").read_text(encoding="utf-8")
    read = re.findall(r"enable_tensor_transport=\w+|@ray\.method\(.*\)|\bregister\(\)", block.code)
    assert len(read) == 3 and all(line in actors for line in read), read


# --- no block is left out by its label -------------------------------------------------------------------------


def reason(block: Block) -> str | None:
    """Why a block is one that nothing runs, and should be."""
    if block.label in RUN:
        return None
    if block.label not in OTHERS:
        return f"the label {block.label!r}"
    try:
        tree = ast.parse(block.code)
    except SyntaxError:
        return None
    is_plain = all(isinstance(node, ast.Module | ast.Expr | ast.Name | ast.Load) for node in ast.walk(tree))
    return None if is_plain else "Python that nothing runs"


def test_every_block_is_run_or_is_no_python() -> None:
    """`python` is run by test_docs_python, `py` here, `rust` and `c` are compiled; nothing that is Python hides behind
    another label, or behind none."""
    wrong = {f"{block.page.name}, line {block.line}": reason(block) for block in blocks() if reason(block)}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```text\nx = f(v)\n```\n", "Python that nothing runs"),
        ("```console\nwith v.consume(s):\n    pass\n```\n", "Python that nothing runs"),
        ("- a list\n\n  ```text\n  f(v)\n  ```\n", "Python that nothing runs"),
        ("```\nf(v)\n```\n", "the label ''"),
        ("```pycon\n>>> f(v)\n```\n", "the label 'pycon'"),
        ("```text\nname\n```\n", None),
        ("```text\nA --> B\n```\n", None),
        ("  ```py\n  f(v)\n  ```\n", None),
    ],
)
def test_what_the_guard_finds(text: str, why: str | None) -> None:
    (block,) = of_text(ROOT / "README.md", text)
    assert reason(block) == why


def test_a_fence_that_ends_elsewhere_is_found() -> None:
    with pytest.raises(AssertionError, match="not of a pair"):
        list(of_text(ROOT / "README.md", "```py\nf(v)\n  ```\n"))


def commands() -> list[Any]:
    """The lines of blocks of commands, without the prompt and the comment."""
    found = []
    for block in [*blocks("console"), *blocks("sh")]:
        for line in block.code.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                found.append(pytest.param(words, id=f"{block.page.name}: {' '.join(words)}"))
    return found


COMMANDS = commands()
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
#: Commands of others, whose first words are looked at and no more.
FOREIGN = {"pip": {"install"}, "cargo": {"add", "test"}, "dask": {"worker"}}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_one(words: list[str]) -> None:
    """Ours by the parser of the command line, by make's targets and by the files that there are."""
    match [*itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words)]:
        case ["pytest", *options] if any(option.startswith("--cai") for option in options):
            known = inspect.getsource(plugin)
            assert all(f'"{option}"' in known for option in options if option.startswith("--"))
        case ["cai-conformance", *rest] | ["python", "-m", "cai_conformance", *rest]:
            accepted(rest)
        case ["make", target, *variables]:
            assert target in TARGETS and all("=" in each for each in variables)
        case ["python", file, *_] if file.endswith(".py"):
            assert (ROOT / file).is_file()
        case [".ci/run"]:
            assert (ROOT / ".ci" / "run").is_file()
        case [".venv/bin/python", "-c", code]:
            exec(compile(code.replace("help(", "(lambda of: of)("), "a page", "exec"), {})
        case [program, verb, *_]:
            assert verb in FOREIGN[program]
        case _:
            raise AssertionError(words)


def accepted(arguments: list[str]) -> None:
    """Asks the kit's parser, and again what a simulated command is: the kit or Python."""
    found = parser().parse_args(arguments)
    if found.command == "simulate":
        assert found.rest[0] == "--" and len(found.rest) > 1
        if found.rest[1] == "cai-conformance":
            accepted(found.rest[2:])
        else:
            assert found.rest[1] == "python"


def test_a_command_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([words for (words,) in (each.values for each in COMMANDS) if words[0] == "cai-conformance"]) > 4
    for wrong in (
        ["produce", "numpy:asarray"],
        ["simulate", "--device", "x", "--", "python"],
        ["pair", "numpy:asarray"],
    ):
        with pytest.raises(SystemExit):
            accepted(wrong)
    assert "error" in capsys.readouterr().err


def test_the_lines_of_the_trace_are_of_its_form() -> None:
    """The block on docs/python.md that shows what `CAI_DLPACK_TRACE=1` writes."""
    page = ROOT / "docs" / "python.md"
    (block,) = blocks("text", [page])
    lines = block.code.replace("\\\n", "").splitlines()
    fact = r"\w+=(?:\([^)]*\)|\[[^\]]*\]|[^\s=]+)"
    assert len(lines) == 2 and all(re.fullmatch(rf"\w+:(?: +{fact})+", line) for line in lines), lines
    facts = {name for line in lines for name in re.findall(r"(\w+)=", line)}
    table = page.read_text(encoding="utf-8").partition("| Fact | Meaning |")[2].partition("\n\n")[0]
    assert facts <= set(re.findall(r"`(\w+)`", table)), facts
    assert all(hasattr(cd, line.partition(":")[0]) for line in lines)
