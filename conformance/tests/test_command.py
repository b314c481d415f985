"""`python -m cai_dlpack`: the demo, the doctor, and what explains an array."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_dlpack import _core, doctor
from cai_dlpack.demo.cases import CASES

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT, simulate
from conformance.tests.simulated.machine import Machine

pytestmark = needs.numba_cuda
LAZY = ["--schedule", "lazy"]
WIDTH = 80
# The others run by `make demo ALL=1`.
HERE = [case for case in CASES if case.is_on_a_device]
# What a plain line holds: letters, marks, and no escape codes.
PLAIN = re.compile(r"[ -~]*")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command without the simulated driver, unless it starts that itself."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"} | variables
    command = [sys.executable, "-m", "cai_dlpack", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_the_demo_is_right_with_the_bridge_and_wrong_without_each_time(tmp_path: Path) -> None:
    for _ in range(3):
        done = run("demo", "--svg", str(tmp_path / "drawn.svg"))
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        assert all(len(line) <= WIDTH and PLAIN.fullmatch(line) for line in lines)
        verdicts = re.findall(r"^ {12}(right|WRONG|refused): ", done.stdout, re.MULTILINE)
        without, bridged = verdicts[::2], verdicts[1::2]
        assert bridged == ["right"] * len(HERE)
        assert len(without) == len(HERE) and set(without) == {"WRONG", "refused"}
        assert "With the bridge 6 of 6 right; without it 2 refused, 4 WRONG." in lines
        assert lines[-1] == "Not all ran: not installed: torch, jax, tensorflow."
    kept = ROOT / "docs" / "hand-over.svg"
    assert kept.read_text("utf-8") == (tmp_path / "drawn.svg").read_text("utf-8"), "python -m cai_dlpack demo --svg"


def test_the_pictures_of_the_page_of_streams_are_those_of_the_calls(tmp_path: Path) -> None:
    done = simulate([], ["docs/site/pictures.py", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "streams.md").read_text("utf-8")
    for drawn in sorted(tmp_path.iterdir()):
        kept = ROOT / "docs" / drawn.name
        assert kept.read_text("utf-8") == drawn.read_text("utf-8"), "make pictures"
        assert f"]({drawn.name})" in page
    assert len(list(tmp_path.iterdir())) == 3


def test_the_pictures_of_the_performance_page_are_those_of_the_kept_figures(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "benches" / "plots.py"), str(tmp_path)], check=True)
    for drawn in sorted(tmp_path.iterdir()):
        kept = ROOT / "docs" / drawn.name
        assert kept.read_text("utf-8") == drawn.read_text("utf-8"), "python benches/plots.py docs"
        assert f"]({drawn.name})" in (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_picture_of_the_way_between_processes_is_drawn_by_its_script(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "docs" / "site" / "way.py"), str(tmp_path / "way.svg")], check=True)
    kept = ROOT / "docs" / "way.svg"
    assert kept.read_text("utf-8") == (tmp_path / "way.svg").read_text("utf-8"), "python docs/site/way.py docs/way.svg"
    assert "](way.svg)" in (ROOT / "docs" / "reach.md").read_text("utf-8")


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.title)
def test_the_demo_fails_if_a_hand_over_is_not_right(case: object) -> None:
    at = CASES.index(case)  # type: ignore[arg-type]
    broken = (
        "import sys, dataclasses; from cai_dlpack.demo import cases, run; "
        f"case = cases.CASES[{at}]; cases.CASES[:] = [dataclasses.replace(case, bridge=case.without)]; "
        "sys.exit(run.main())"
    )
    done = simulate(LAZY, ["-c", broken])
    assert done.returncode == 1 and "0 of 1 right" in done.stdout, done.stdout + done.stderr


def test_the_demo_says_what_is_not_installed() -> None:
    missing = "import sys; sys.modules['mpi4py'] = None; from cai_dlpack.demo import run; sys.exit(run.main())"
    done = simulate(LAZY, ["-c", missing])
    told = "Not all ran: not installed: mpi4py, "
    assert done.returncode == 0 and told in done.stdout, done.stdout + done.stderr
    assert "5 of 5 right" in done.stdout


def test_without_a_device_the_demo_runs_in_host_memory() -> None:
    """No simulated driver is found: the hand-overs that need a device are told of."""
    bare = "import sys; sys.path = [path for path in sys.path if 'kit' not in path]; from cai_dlpack import demo; "
    bare += "sys.exit(demo.main())"
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    done = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, env=environment)
    told = "No hand-over ran: a GPU is not here; not installed: torch, jax, tensorflow."
    assert "on host memory" in done.stdout and told in done.stdout, done.stdout + done.stderr
    assert done.returncode == 2 and "pip install ./conformance/kit" in done.stderr


def test_a_demo_for_which_nothing_is_installed_prints_what_to_install() -> None:
    absent = "import sys; sys.modules.update(dict.fromkeys(['numba_cuda', 'cuda', 'tvm_ffi', 'mpi4py', 'torch', 'jax', "
    absent += "'tensorflow'])); from cai_dlpack import demo; sys.exit(demo.main())"
    done = simulate([], ["-c", absent])
    assert done.returncode == 2 and "No hand-over ran" in done.stdout, done.stdout + done.stderr
    (line,) = re.findall(r"pip install (numpy .*)", done.stderr)
    # mpi4py is there with the MPI that it needs, and Numba with the toolkit's headers.
    modules = {need for case in HERE for need in case.needs}
    names = {"cuda": "cuda-core", "tvm_ffi": "apache-tvm-ffi", "numba_cuda": "numba-cuda"}
    assert {names.get(module, module) for module in modules} <= set(line.split())


def test_the_demo_is_lazy_on_any_schedule_of_the_simulated_driver() -> None:
    """What is wrong without the bridge looks right if the work is done meanwhile."""
    done = simulate(["--schedule", "threaded"], ["-m", "cai_dlpack", "demo"])
    assert "With the bridge 6 of 6 right; without it 2 refused, 4 WRONG." in done.stdout, done.stdout + done.stderr


def test_colours_are_for_a_terminal() -> None:
    coloured = run("doctor", FORCE_COLOR="1", TERM="xterm-256color").stdout
    plain = run("doctor").stdout
    assert "\x1b[" in coloured and re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    without = "import sys; sys.modules['rich.console'] = None; from cai_dlpack import doctor; "
    without += "doctor.main(as_json=False, try_pairs=False)"
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    command = [sys.executable, "-c", without]
    assert subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout == plain


def test_the_doctor_finds_the_libraries_and_the_driver() -> None:
    done = simulate([], ["-m", "cai_dlpack", "doctor", "--json"])
    found = json.loads(done.stdout)
    assert found["driver"]["simulated"] is True and len(found["driver"]["devices"]) == 2
    for library in found["libraries"]:
        assert library["calls"], library
    versions = {library["name"]: library["version"] for library in found["libraries"]}
    for name, distribution in (("numpy", "numpy"), ("tvm_ffi", "apache-tvm-ffi"), ("cuda.core", "cuda-core")):
        assert versions[name] == importlib.metadata.version(distribution)
    absent = json.loads(run("doctor", "--json").stdout)["driver"]
    assert absent["found"] is False and "libcuda" in absent["why"]


def test_the_doctor_links_each_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (numba,) = (library for library in doctor.libraries() if library["name"] == "numba")
    assert numba["faults"] and {fault["link"] for fault in numba["faults"]} == {doctor.FAULTS}
    assert numba["findings"] == ["docs/findings/numba-cuda.md"]
    plain = run("doctor").stdout
    for library in doctor.libraries():
        for link in [*(fault["link"] for fault in library["faults"]), *library["findings"]]:
            assert f"      see {link}\n" in plain
    assert "seen in" not in plain
    # A fault that somebody has reported has the report's address, and a published package that of its pages.
    row: dict[str, Any] = {
        "name": "numpy",
        "title": "NumPy",
        "distribution": "numpy",
        "distributions": ["torch"],
        "version": "1",
    }
    row |= {"produces": True, "exports": [], "silence": None, "quirks": [], "launch": None}
    row["calls"] = [{"code": "f(v)", "reads": "DLPack", "needs": None}]
    faults = [("a", "b", "https://example.org/1"), ("c", "d", None)]
    monkeypatch.setattr("cai_dlpack._core._partners", lambda: [{**row, "faults": faults}])
    metadata = Message()
    metadata["Project-URL"] = "Source Code, https://example.org/us"
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: metadata)
    (library,) = doctor.libraries()
    pages = f"https://example.org/us/blob/v{cd.__version__}"
    assert [fault["link"] for fault in library["faults"]] == ["https://example.org/1", f"{pages}/{doctor.FAULTS}"]
    assert library["findings"] == [f"{pages}/docs/findings/{name}.md" for name in ("numpy", "torch")]
    # The faults are those of the version that was checked, which is another one.
    capsys.readouterr()
    doctor.main(as_json=False, try_pairs=False)
    told = capsys.readouterr().out
    assert "    ! seen in 1: a\n" in told and "    ! seen in 1: c\n" in told


def test_the_doctor_names_the_distribution_of_a_version_and_the_protocols() -> None:
    told = run("doctor").stdout
    version = importlib.metadata.version
    (numba,) = re.findall(r"^Numba \(numba-cuda\) +(.*)\n(.*)$", told, re.MULTILINE)
    assert numba == (version("numba-cuda"), "    out: interface; in: interface, DLPack")
    assert re.search(rf"^NumPy +{version('numpy')}\n    out: DLPack, array interface, buffer; in: ", told, re.MULTILINE)
    assert "\n    out: nothing; in: buffer or DLPack" in told.partition("\nmpi4py ")[2]


def has_buffer(array: Any) -> bool:
    try:
        memoryview(array).release()
    except (TypeError, BufferError, NotImplementedError):
        return False
    return True


SPOKEN: dict[str, Any] = {
    "interface": lambda array: hasattr(array, "__cuda_array_interface__"),
    "DLPack": lambda array: hasattr(array, "__dlpack__"),
    "array interface": lambda array: hasattr(array, "__array_interface__"),
    "buffer": has_buffer,
}


@pytest.mark.parametrize("name", ["numpy", "numba", "cuda.core", "tvm_ffi"])
def test_the_protocols_of_the_table_are_those_of_an_array(name: str, machine: Machine) -> None:
    import cuda.core
    import numba.cuda
    import tvm_ffi

    made = {**doctor.DEVICE, **doctor.HOST}[name]
    array = eval(made, {"numpy": np, "numba": numba, "tvm_ffi": tvm_ffi, "cuda": cuda})
    (row,) = (row for row in _core._partners() if row["name"] == name)
    assert {*row["exports"]} == {protocol for protocol, speaks in SPOKEN.items() if speaks(array)}


def test_the_pages_that_the_doctor_links_are_there() -> None:
    assert {file.stem for file in (ROOT / "docs" / "findings").iterdir()} == doctor.FINDINGS
    path, _, anchor = doctor.FAULTS.partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_doctor_tries_each_pair() -> None:
    done = simulate([], ["-m", "cai_dlpack", "doctor", "--json", "--pairs"])
    pairs = json.loads(done.stdout)["pairs"]
    assert pairs["host"]["numpy"]["tvm_ffi"] == pairs["device"]["numba"]["tvm_ffi"] == "works"
    assert pairs["device"]["numba"]["cuda.core"] == pairs["device"]["cuda.core"]["numba"] == "works"
    refused = pairs["device"]["numba"]["numpy"]
    assert "Error" in refused and refused.endswith('; instead np.from_dlpack(v, device="cpu")'), "device memory"
    for pairs_of in pairs["host"]["numpy"], pairs["device"]["numba"]:
        assert pairs_of["nanobind"] == "no array of its own: `function(v)`"
        assert pairs_of["mpi4py"] == "no array of its own: `comm.Send(v, dest=1)`"
    told = simulate([], ["-m", "cai_dlpack", "doctor", "--pairs"]).stdout
    assert "\n    mpi4py: no array of its own: `comm.Send(v, dest=1)`\n" in told


def test_a_doctor_without_a_library_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cai_dlpack._core._partners", list)
    assert doctor.main(as_json=False, try_pairs=False) == 0
    assert "none that the table has; pip install numpy" in capsys.readouterr().out


def test_the_command_lines_of_the_readme_are_for_a_shell(tmp_path: Path) -> None:
    """An expression has parentheses, which a shell takes for its own unless they are quoted."""
    lines = re.findall(r"`(python -m cai_dlpack [^`]*)`", " ".join((ROOT / "README.md").read_text("utf-8").split()))
    assert len(lines) == 3, lines
    for line in lines:
        parsed = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True)
        assert parsed.returncode == 0, parsed.stderr


def test_the_doctor_tells_why_no_pair_was_tried() -> None:
    told = run("doctor", "--pairs").stdout
    assert "By cd.to, from device memory\n    not tried: no device is here\n" in told, told


def on_a_device() -> Any:
    import numba.cuda

    return numba.cuda.to_device(np.zeros(3))


def test_an_array_is_explained() -> None:
    done = run("explain", "numpy:zeros(3)", "--to", "tvm_ffi")
    assert (done.returncode, done.stdout) == (0, f"{cd.explain(np.zeros(3), to='tvm_ffi')}\n")
    refused = run("explain", "numpy:zeros(3, 'M8[s]')", "--to", "tvm_ffi")
    assert refused.returncode == 1 and "refused" in refused.stdout


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["explain", "numpy.zeros(3)"], "has no colon"),
        (["explain", "numpy:zeros(3"], "SyntaxError"),
        (["explain", "no_such_module:x"], "ModuleNotFoundError"),
        (["explain", "numpy:zeros(3)", "--to", "frobnicate"], "argument 'to' = 'frobnicate': "),
        (["explain", f"{__name__}:on_a_device()", "--stream", "-5"], "argument 'stream' = -5: "),
        (["repair"], "invalid choice"),
        ([], "required"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], told: str) -> None:
    done = simulate([], ["-m", "cai_dlpack", *arguments])
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("colours", [True, False])
@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["doctor"], ["demo"], ["explain", "numpy:zeros(3)"]])
def test_a_reader_that_goes_ends_the_command_quietly(arguments: list[str], colours: bool, tmp_path: Path) -> None:
    if not colours:
        (tmp_path / "rich.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    command = [sys.executable, "-m", "cai_dlpack", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # before anything is written
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(110) == 1


def test_the_issue_templates_ask_for_commands_that_are_there() -> None:
    templates = [path.read_text() for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    asked = set(re.findall(r"python -m cai_dlpack (\w+)", "".join(templates)))
    assert asked == {"doctor", "explain"}
    variables = set(re.findall(r"CAI_DLPACK_\w+", "".join(templates)))
    page = (ROOT / "docs" / "python.md").read_text()
    assert variables and all(name in page for name in variables)
