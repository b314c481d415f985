"""Subjects that the kit has not seen: they fork, exit, hang and lie, or do what a specification allows and few do."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from cai_conformance import testing
from cai_conformance.testing import ConformanceError

from conformance.tests.kit.test_command import of, report, run

pytestmark = pytest.mark.long

SUBJECTS = '''
import ctypes, os, signal, sys, time
from dataclasses import replace
import numpy as np
from cai_conformance.cuda import driver
from cai_conformance.reference.consumers import DlpackConsumer, TakenTensor, work_stream
from cai_conformance.reference.producers import DeviceMemory, DlpackArray

def at_a_copy(function):
    """A producer that does something if a copy is asked for."""
    class AtACopy(DlpackArray):
        def __dlpack__(self, **keywords):
            if keywords.get("copy"):
                function()
            return super().__dlpack__(**keywords)
    return AtACopy

def says(error):
    def function():
        raise error
    return function

def of_a_device_alone(**members):
    """A consumer that refuses the host's memory."""
    rules = {**DlpackConsumer.rules, "host": lambda read: read.device[0] == 1}
    return type("OfADeviceAlone", (DlpackConsumer,), {"rules": rules, **members})()

of_a_device = of_a_device_alone()

class Misread(TakenTensor):
    def shown(self):
        return replace(self.read, strides=None) if self.read.strides == (1, 2) else self.read

misreads_on_a_device = of_a_device_alone(taken=lambda self, read: Misread(read))

class Opaque:
    """A copy of which nothing tells where it lies."""
    def __init__(self, values):
        self._values = values

def copies_somewhere(obj):
    return Opaque(np.array(np.from_dlpack(obj)))

def reads_opaque(copy):
    return copy._values

def on_the_host(function):
    """A consumer of both that does something to the host's memory."""
    class OnTheHost(DlpackConsumer):
        def taken(self, read):
            return function(self, read) if read.device[0] == 1 else super().taken(read)
    return OnTheHost()

def misread(self, read):
    return TakenTensor(replace(read, strides=(0,) * read.ndim))

misreads_the_host = on_the_host(misread)
crashes_on_the_host = on_the_host(lambda self, read: os.kill(os.getpid(), signal.SIGSEGV))
exits_on_the_host = on_the_host(lambda self, read: sys.exit(0))

def floats_of_a_device(obj):
    """Refuses the host's memory for one dtype alone."""
    if obj.__dlpack_device__()[0] == 1 and getattr(obj, "array", np.empty(0)).dtype == np.float32:
        raise BufferError("torch.tensor() takes no float32 of the host")
    return DlpackConsumer()(obj)

def takes_none(obj):
    raise BufferError("none")

exits = at_a_copy(lambda: sys.exit(0))
ends = at_a_copy(lambda: os._exit(0))
interrupts = at_a_copy(says(KeyboardInterrupt()))
hangs = at_a_copy(lambda: time.sleep(1000))
babbles = at_a_copy(says(ValueError("<b>&]]>\\x00\\x1b[31m\\udc80" + "x" * 10**6)))

class Forks(DlpackArray):
    """Its copies go on, and one lives on with everything that is open."""
    def __dlpack__(self, **keywords):
        os.fork()
        return super().__dlpack__(**keywords)

def leaves_a_daemon(array):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    return DlpackArray(array)

class Unfriendly(DlpackArray):
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")
    def __repr__(self):
        raise RuntimeError("nothing to see")

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")

def refuses(array):
    raise Unprintable

def many_axes(count):
    class Axes(DlpackArray):
        def fill(self, tensor, *rest):
            super().fill(tensor, *rest)
            tensor.ndim = count
    return Axes

axes_below_0, axes_of_a_liar = many_axes(-1), many_axes(2**31 - 1)

def dies_of_complex(array):
    if array.dtype == np.complex128:
        ctypes.string_at(8)
    return DlpackArray(array)

class VersionedOnly(DlpackArray):
    """As the array API allows since March 2025."""
    def __dlpack__(self, **keywords):
        if keywords.get("max_version") is None:
            raise BufferError("say max_version")
        return super().__dlpack__(**keywords)

class OlderOnly(DlpackArray):
    """Has no tensor for what must not be written."""
    def is_versioned(self, max_version):
        return False

class WrongName(DlpackArray):
    """A versioned tensor in a capsule of the older name."""
    def capsule(self, tensor, versioned):
        return super().capsule(tensor, False)

class NoLanes(DlpackArray):
    def fill(self, tensor, *rest):
        super().fill(tensor, *rest)
        tensor.dtype.lanes = 0

class ReadsOnTheHost(DlpackConsumer):
    """Takes memory of any device for memory of the host."""
    def taken(self, read):
        ctypes.string_at(read.data, 4)
        return super().taken(read)

reads_on_the_host = ReadsOnTheHost()

class Lazy(DlpackConsumer):
    """Names -1, and waits for nothing."""
    def naming(self, device):
        return {"stream": -1} if device[0] == 2 else {}

lazy = Lazy()

class Copies(Lazy):
    """Names -1, and copies at once."""
    def taken(self, read):
        taken = super().taken(read)
        if read.device[0] != 2:
            return taken
        count = int(np.prod(read.shape)) * read.dtype[1] // 8
        self.copy = DeviceMemory(np.zeros(count, np.uint8))
        copied = driver().read_after(work_stream(0), read.data, count)
        driver().write(self.copy.address, copied)
        return TakenTensor(replace(read, data=self.copy.address, deleter=0))

copies = Copies()

def crashes_on_null(obj):
    if getattr(obj, "changes", {}).get("shape", 0) is None:
        ctypes.string_at(8)
    return DlpackConsumer()(obj)

def chokes(obj):
    """Dies of a code that does not exist, and takes any number of bits."""
    given = getattr(obj, "changes", {}).get("dtype")
    if given == (2, 13, 1):
        os.abort()
    if given == (0, 0, 1):
        return "anything"
    return DlpackConsumer()(obj)

class Unsigned(DlpackConsumer):
    """Reads bool as uint8."""
    def __call__(self, obj):
        taken = super().__call__(obj)
        if taken.read.dtype == (6, 8, 1):
            return np.asarray(taken).view(np.uint8)
        return taken

unsigned = Unsigned()
print("noise at import")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "strangers.py").write_text(SUBJECTS)
    return tmp_path


def failed(found: Any) -> dict[str, str]:
    return {row["id"].partition(".")[2]: row["evidence"] for row in found["results"] if row["outcome"] == "failed"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exits", "SystemExit: 0"),
        ("ends", "exit code 0"),
        ("interrupts", "KeyboardInterrupt"),
        ("hangs", "no result within 2 s"),
    ],
)
def test_a_process_that_ends_in_a_check_is_one_violation(folder: Path, name: str, said: str) -> None:
    code, found = report(folder, "producer", f"strangers:{name}", "--timeout", "2")
    wrong = failed(found)
    assert code == 1 and list(wrong) == ["copy-true"] and said in wrong["copy-true"]
    assert "array.__dlpack__(copy=True)" in of(found, "dlpack-producer.copy-true")["program"]


@pytest.mark.parametrize("name", ["Forks", "leaves_a_daemon", "Unfriendly", "VersionedOnly"])
def test_what_a_specification_says_nothing_of_is_no_failure(folder: Path, name: str) -> None:
    code, found = report(folder, "producer", f"strangers:{name}", "--timeout", "20")
    assert code == 0 and not failed(found) and found["counts"]["passed"] > 55


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("axes_below_0", "ndim"),
        ("axes_of_a_liar", "ndim"),
        ("dies_of_complex", "dtype-code"),
        ("OlderOnly", "max-version-1"),
        ("WrongName", "capsule-name-known"),
        ("NoLanes", "dtype-lanes"),
    ],
)
def test_one_fault_is_one_finding(folder: Path, name: str, rule: str) -> None:
    _, found = report(folder, "producer", f"strangers:{name}", "--timeout", "5")
    assert list(failed(found)) == [rule]


def test_evidence_is_fit_for_every_report(folder: Path) -> None:
    done = run(folder, "producer", "strangers:babbles", "--json", "out.json", "--junit", "j.xml", "--html", "h.html")
    evidence = of(json.loads((folder / "out.json").read_text()), "dlpack-producer.copy-true")["evidence"]
    assert done.returncode == 0 and len(evidence) < 3000 and evidence.isprintable()
    assert "<b>&]]>" in evidence and "<b>&" not in (folder / "h.html").read_text()
    assert ET.parse(folder / "j.xml").getroot().get("failures") == "0"


def test_to_choke_on_what_is_forbidden_is_no_violation_and_the_program_shows_it(folder: Path) -> None:
    code, found = report(folder, "consumer", "strangers:crashes_on_null")
    row = of(found, "dlpack-consumer.shape-null")
    assert code == 0 and row["severity"] == "deviation"
    assert "SIGSEGV" in row["evidence"] and "offer = tensor(shape=None, ndim=2)" in row["program"]
    program = subprocess.run([sys.executable, "-c", row["program"]], cwd=folder, capture_output=True, check=False)
    assert program.returncode == -11


def test_a_case_that_ends_the_process_hides_no_other(folder: Path) -> None:
    _, found = report(folder, "consumer", "strangers:chokes", "--profile", "dlpack-consumer", "--only", "dtype-bits")
    row = of(found, "dlpack-consumer.dtype-bits")
    assert row["severity"] == "deviation" and "offer = tensor(dtype=(2, 13, 1))" in row["program"]
    assert "SIGABRT; tensor(dtype=(0, 0, 1)): was accepted" in row["evidence"]


def test_a_program_needs_nothing_that_is_not_installed(folder: Path) -> None:
    _, found = report(folder, "consumer", "strangers:crashes_on_null")
    program = of(found, "dlpack-consumer.shape-null")["program"]
    assert "import strangers" not in program and "def crashes_on_null(obj):" in program


def on_streams(folder: Path, name: str) -> tuple[int, Any]:
    """The verdict on what a consumer does with memory of a device."""
    only = [text for rule in ("takes-device", "stream-order") for text in ("--only", rule)]
    return report(folder, "consumer", f"strangers:{name}", "--profile", "dlpack-consumer", *only)


def test_memory_of_a_device_that_is_read_on_the_host_is_a_crash_as_on_a_gpu(folder: Path) -> None:
    code, found = on_streams(folder, "reads_on_the_host")
    assert code == 1 and "SIGSEGV" in failed(found)["takes-device"]


def test_a_view_that_asks_for_no_order_is_not_judged(folder: Path) -> None:
    code, found = on_streams(folder, "lazy")
    row = of(found, "dlpack-consumer.stream-order")
    assert (code, row["outcome"]) == (0, "not run") and "the order is left to who calls it" in row["evidence"]


def test_a_copy_that_asks_for_no_order_is_found(folder: Path) -> None:
    code, found = on_streams(folder, "copies")
    assert code == 1 and "it read 0000000000000000" in failed(found)["stream-order"]


def test_a_type_that_is_taken_for_another_is_found(folder: Path) -> None:
    code, found = report(folder, "consumer", "strangers:unsigned")
    assert code == 1 and list(failed(found)) == ["reads-bool"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("producer", "strangers:refuses"), "its text cannot be had"),
        (("producer", "strangers:refuses", "--profile", "dlpack-producer"), "nothing to judge"),
        (("producer", "numpy:asarray", "--profile", "exchange-producer"), "nothing to judge"),
        (("pair", "strangers:refuses", "numpy:asarray"), "nothing to judge"),
        (("producer", "fails_to_import:f"), "RuntimeError: no GPU"),
        (("producer", "exits_at_import:f"), "SystemExit"),
        (("producer", "..strangers:f"), "relative import"),
        (("producer", "numpy:asarray", "--spec", "cai=.."), "no version '..' of CAI"),
        (("producer", "numpy:asarray", "--spec", "cai=²"), "no version '²' of CAI"),
        (("producer", "numpy:asarray", "--only", "no-such"), "no such check"),
        (("producer", "numpy:asarray", "--json", "no/such/folder.json"), "cannot be written"),
        (("producer", "numpy:asarray", "--html", "."), "is a folder"),
        (("producer", "numpy:asarray", "--timeout", "0"), "invalid seconds"),
        (("producer", "numpy:asarray", "--config", "bytes.toml"), "decode"),
        (("producer", "numpy:asarray", "--config", "typo.toml"), "'acept'"),
    ],
)
def test_wrong_usage_is_told_and_no_traceback(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    (folder / "fails_to_import.py").write_text("raise RuntimeError('no GPU')")
    (folder / "exits_at_import.py").write_text("raise SystemExit(0)")
    (folder / "bytes.toml").write_bytes(b"\xff\xfe")
    (folder / "typo.toml").write_text('[acept]\n"dlpack-producer.values" = "x"\n')
    done = run(folder, *arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_reason_for_another_profile_is_not_needless(folder: Path) -> None:
    (folder / "own.toml").write_text('[accept]\n"cai-consumer.stream-zero" = "documented"\n')
    _, found = report(folder, "producer", "numpy:asarray", "--config", "own.toml")
    assert found["needless"] == []


def test_a_terminal_of_another_encoding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run(folder, "producer", "strangers:babbles", "--html", "h.html")
    assert done.returncode == 0 and "\\u201c" in done.stdout
    assert "<!doctype html>" in (folder / "h.html").read_text()


def test_a_reader_that_has_enough(folder: Path) -> None:
    command = f"{sys.executable} -m cai_conformance producer numpy:asarray --json out.json"
    script = f"set -o pipefail; {command} | true; echo $?"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "") and (folder / "out.json").exists()


def test_a_command_that_does_not_exist_on_the_simulator(folder: Path) -> None:
    done = run(folder, "simulate", "--", "no-such-command")
    assert done.returncode == 2 and "no-such-command" in done.stderr and "Traceback" not in done.stderr


def test_arrays_of_a_program_may_end_after_the_kit() -> None:
    """At the interpreter's end, in whatever order it ends its modules."""
    program = """
import builtins, sys
import numpy as np
from cai_conformance.offers import *
from cai_conformance.reference.producers import DlpackArray
late = [np.from_dlpack(tensor()), np.from_dlpack(DlpackArray(np.arange(3.0))), DlpackArray(np.arange(3.0)).__dlpack__()]
late.append(late)
builtins.late = sys.late = np.late = late
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- in a test ---


def test_a_library_that_has_nothing_for_a_profile_does_not_pass() -> None:
    import numpy as np

    with pytest.raises(AssertionError, match="nothing to judge"):
        testing.check_exchange_producer(np.asarray)
    with pytest.raises(ValueError, match="no check"):
        testing.check_dlpack_producer(np.asarray, accept={"dlpack-producer.no-such": "a slip of the pen"})


def test_a_function_without_a_name_has_a_program() -> None:
    from cai_conformance.reference.producers import DlpackArray

    class Wrong(DlpackArray):
        def fill(self, tensor: Any, *rest: Any) -> None:
            super().fill(tensor, *rest)
            tensor.dtype.code = 77

    with pytest.raises(ConformanceError) as raised:
        testing.check_dlpack_producer(lambda array: Wrong(array))
    assert "array = function(np." in str(raised.value)


@pytest.mark.usefixtures("sim")
def test_an_event_that_nobody_waits_for_is_no_order() -> None:
    from cai_conformance.cuda import driver
    from cai_conformance.reference.consumers import CaiConsumer

    class Forgetful(CaiConsumer):
        def order(self, whole: dict[str, Any]) -> None:
            event = ctypes.c_void_p()
            with driver().context():
                driver()._do("cuEventCreate", ctypes.byref(event), 2)
                driver()._do("cuEventRecord", event, ctypes.c_void_p(whole["stream"] or 1))

    with pytest.raises(ConformanceError, match=r"cai-consumer\.stream-wait"):
        testing.check_cai_consumer(Forgetful())


def test_an_allocator_may_set_an_error_and_raise_it() -> None:
    """cuda.core's calls SetError, as the header demands, and sets Python's exception too."""
    from conformance.judged.targets import cuda_core_of_dlpack

    found = testing.check_exchange_producer(cuda_core_of_dlpack)
    (row,) = [result for result in found.results if result.check.rule == "allocate"]
    assert row.outcome.value == "passed"


def test_a_consumer_of_device_memory_alone_is_offered_that(folder: Path) -> None:
    """Only what is about the host is not run."""
    code, found = report(folder, "consumer", "strangers:of_a_device")
    assert code == 0 and {row["outcome"] for row in found["results"]} == {"passed", "not run"}
    left = {row["id"]: row["evidence"] for row in found["results"] if row["outcome"] == "not run"}
    assert all("device alone" in reason for reason in left.values()) and len(left) < 10, left
    code, found = report(folder, "consumer", "strangers:misreads_on_a_device", "--profile", "dlpack-consumer")
    failed = [row for row in found["results"] if row["outcome"] == "failed"]
    assert code == 1 and [row["id"] for row in failed] == ["dlpack-consumer.strides-fortran"]
    assert "device_tensor(" in failed[0]["evidence"] and "offer = device_tensor(" in failed[0]["program"]


def test_a_consumer_that_takes_neither_is_offered_the_hosts_memory(folder: Path) -> None:
    code, found = report(folder, "consumer", "strangers:takes_none", "--profile", "dlpack-consumer")
    row = of(found, "dlpack-consumer.takes")
    assert code == 1 and row["outcome"] == "failed" and row["evidence"].startswith("tensor(): raised BufferError")


def test_a_copy_whose_address_is_not_told_need_not_keep_the_producers_array(folder: Path) -> None:
    rules = [word for rule in ("owner-kept", "deleter-early") for word in ("--only", rule)]
    read = ("--read", "strangers:reads_opaque", "--profile", "dlpack-consumer")
    code, found = report(folder, "consumer", "strangers:copies_somewhere", *read, *rules)
    for rule in ("owner-kept", "deleter-early"):
        row = of(found, f"dlpack-consumer.{rule}")
        assert row["outcome"] == "not run" and "nothing tells" in row["evidence"], row
    assert code == 0


@pytest.mark.parametrize(
    "name", ["misreads_the_host", "crashes_on_the_host", "exits_on_the_host", "floats_of_a_device"]
)
def test_what_is_wrong_with_the_hosts_memory_is_found(name: str, folder: Path) -> None:
    """It is no refusal of the host's memory, whatever becomes of a device's."""
    for options in (("--profile", "dlpack-consumer"), ("--profile", "dlpack-consumer", "--only", "takes")):
        code, found = report(folder, "consumer", f"strangers:{name}", *options)
        row = of(found, "dlpack-consumer.takes")
        assert code == 1 and row["outcome"] == "failed" and row["evidence"].startswith("tensor(")
