"""Runs the parts for a GPU on the simulator: they find missing order, and are not mistaken for a GPU's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.gpu.child import answer, answers
from conformance.gpu.facts import SIMULATED
from conformance.gpu.rust import steered
from conformance.tests.interpreter.process import ROOT, environment

pytestmark = pytest.mark.long

RESULTS = ROOT / "conformance" / "results"


def run(*command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    env = environment(**changes)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)


def module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", name, *arguments)


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Returns the rows below the head and the names of the columns. The head says that nothing is a GPU's."""
    lines = done.stdout.splitlines()
    assert f"# hardware and driver: {SIMULATED}" in lines, done.stdout + done.stderr
    return [line.split("\t") for line in lines if not line.startswith("# ")][1:]


def kept() -> list[Path]:
    return sorted(RESULTS.rglob("*"))


def test_the_races_of_a_gpu_run_on_the_simulator() -> None:
    done = module("conformance.gpu.races", "--simulated", "--trials", "20", "--unordered", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done)
    unordered = [(int(row[-3]), int(row[-2])) for row in found]
    assert {int(row[-4]) for row in found} == {0}
    assert {trials for trials, _ in unordered} == {0, 200}
    assert all(missed > 0 for trials, missed in unordered if trials)


# What the simulator cannot show, and the libraries that cannot reach it.
NOT_RUN = ("pinned: given back", "torch", "CuPy", "JAX", "Numba, a kernel")


@pytest.mark.parametrize("part", ["captures", "copies", "contexts", "host_readers", "processes", "libraries"])
def test_the_checks_of_a_gpu_run_on_the_simulator(part: str) -> None:
    """Each holds, and the control of each check of an order fails."""
    done = module("conformance.gpu.checks", part, "--simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done)
    assert len(found) > 5
    shown = [row for row in found if not any(each in row[1] for each in NOT_RUN)]
    assert len(shown) > 5
    assert {outcome for _, _, outcome, _ in shown} == {"ok"}
    assert all(outcome == "ok" or outcome.startswith("not run: ") for _, _, outcome, _ in found)
    controls = [control for _, _, outcome, control in found if outcome == "ok"]
    assert set(controls) <= {"lost", "no order"} and "lost" in controls


@pytest.mark.parametrize("engines", [("nccl", "copies"), ("mpi4py",), ("pickle",)], ids="-".join)
def test_what_sends_memory_of_a_gpu_runs_on_the_simulator(engines: tuple[str, ...]) -> None:
    """As far as it is installed; docs/reach.md says what of it needs a device."""
    done = module("conformance.gpu.reach", *engines, "--simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done)
    assert {row[0] for row in found if row[2] == "ok"} == set(engines)
    assert {control.partition(":")[0] for _, _, _, control, _ in found} <= {"lost", "no order"}


def test_the_times_of_a_gpu_are_taken_on_the_simulator() -> None:
    done = run(sys.executable, "benches/gpu.py", "--simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# hardware and driver: {SIMULATED}" in done.stdout
    assert "| view: one pointer query |" in done.stdout
    assert "| cupy.asarray | not run | ModuleNotFoundError" in done.stdout
    states = {
        line.split(" | ")[0]: line.rsplit("| ", 1)[1] for line in done.stdout.splitlines() if line.endswith("y |")
    }
    assert states["| view.on"] == states["| cd.join"] == "busy |"
    assert "| view.synchronize: the control, which must wait |" not in states


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "conformance.gpu.races", "--trials", "1"),
        ("-m", "conformance.gpu.checks", "contexts"),
        ("-m", "conformance.gpu.reach", "nccl"),
        ("benches/gpu.py",),
    ],
    ids=lambda command: command[-1],
)
def test_the_simulator_is_not_taken_for_a_gpu(command: tuple[str, ...]) -> None:
    done = run(sys.executable, *command)
    assert done.returncode == 2
    assert "--simulated is for the simulator, and only for it" in done.stderr


def test_nothing_of_the_simulator_is_kept_as_a_gpus() -> None:
    before = kept()
    done = run("bash", "conformance/gpu.sh", sys.executable)
    assert done.returncode == 2
    assert SIMULATED in done.stderr
    assert kept() == before


def test_a_machine_without_a_driver_is_refused(tmp_path: Path) -> None:
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).touch()  # no library: the search ends here
    done = run("bash", "conformance/gpu.sh", sys.executable, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 2
    assert "a GPU is needed; here: no driver" in done.stderr


def test_the_one_command_runs_on_the_simulator_under_its_label() -> None:
    """Its questions get the listed answers; nothing goes where a GPU's results are kept."""
    before = kept()
    done = run("bash", "conformance/gpu.sh", sys.executable, SIMULATED="1", PARTS="questions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("SIMULATED: no GPU takes part, and nothing below is about one\n")
    assert done.stdout.endswith("== differences: < the simulator, > this driver\n")
    assert kept() == before
    saved = (ROOT / "target" / "gpu-simulated" / "questions.tsv").read_text(encoding="utf-8")
    assert SIMULATED in saved


def test_make_gpu_builds_nothing() -> None:
    """The machine with the GPU has no network, and need not have a compiler."""
    done = run("make", "--dry-run", "--no-print-directory", "gpu", "WHEEL=some.whl", "PYTHON=python3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["SIMULATED=", "conformance/gpu.sh", "python3", "some.whl"]


def killed() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def hanging() -> str:
    time.sleep(60)
    return "awake"


def test_a_child_that_dies_or_hangs_is_an_answer() -> None:
    assert answer(lambda: "42") == "42"
    assert answer(killed) == "the process ended by SIGKILL"
    assert answer(hanging, seconds=0.2).startswith("no answer in 0 s, in hanging (test_gpu_scripts.py, line ")


def test_checks_that_share_a_process_go_on_in_a_new_one() -> None:
    """After one that dies or hangs, and where the context is lost: no answer is left out, and none is asked twice."""
    assert list(answers([lambda: "1", killed, lambda: "3"])) == ["1", "the process ended by SIGKILL", "3"]
    first, *others = answers([hanging, lambda: "2", lambda: "3"], seconds=0.5)
    assert first.startswith("no answer in 0 s")
    assert others == ["2", "3"]
    of = [lambda: str(os.getpid())] * 3
    assert len(set(answers(of))) == 1
    assert len(set(answers(of, can_go_on=lambda: False))) == 3


def test_a_rust_test_that_needs_the_simulator_is_not_begun_on_a_gpu(tmp_path: Path) -> None:
    """As the same program has said on the simulator: no other reason counts there, and no other program."""
    why = "not run: it reads the log of calls, which the simulator alone has"
    rows = [("rust", "a::calls", why), ("rust", "a::data", "ok"), ("other", "b::calls", why)]
    rows += [("rust", "a::peers", "not run: it needs a second device"), ("rust", "a::bad", "WRONG: a lost write")]
    (tmp_path / "simulated.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    assert steered(tmp_path / "rust") == {"a::calls": why}
    assert steered(tmp_path / "none" / "rust") == {}
