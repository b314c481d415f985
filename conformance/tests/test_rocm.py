"""Looks for a way in which memory of ROCm is told as CUDA's, or its order asked of a library, where there is no CUDA.

Each case runs in a process without a CUDA driver, as on AMD's machines; `libamdhip64` is an empty library of that name.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import environment

BEFORE = """
import ctypes, sys
import cai_dlpack as cd
from conformance.tests.doubles.producers import cai
if sys.argv[1:]:
    ctypes.CDLL(sys.argv[1])

def rule(function, *given, **keywords):
    try:
        return function(*given, **keywords)
    except cd.Refusal as refusal:
        return refusal.rule
    except cd.DriverError:
        return "a driver was looked for"
"""

#: What orders, or would have to: each call of a view `v` that is ready on the default stream.
ORDERS = [
    "v.on(7)",
    "v.synchronize()",
    "v.consume(7).__enter__()",
    "v.__dlpack__(stream=7)",
    "v.__dlpack__(stream=7, max_version=(1, 3))",
    "cd.to_dlpack(v, stream=7)",
    "cd.to_dlpack(cai(stream=1), stream=7, device_id=(10, 0))",
    "cd.to_dlpack(cai(stream=2), stream='host', device_id=(10, 0))",
]
#: Each function that makes something of the array of an interface.
IMPORTS = ["cd.view", "cd.from_cai", "cd.to_dlpack", "cd.split_masked", "cd.explain"]


def run(body: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(**more)
    env.pop("LD_PRELOAD", None)
    env.pop("LD_LIBRARY_PATH", None)
    command = [sys.executable, "-W", "ignore", "-c", BEFORE + body, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def hip(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hip")
    (folder / "hip.c").write_text("int hip;\n", encoding="utf-8")
    library = folder / "libamdhip64.so.6"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "hip.c")], check=True, timeout=60)
    return str(library)


def test_an_order_is_refused_before_any_library_is_looked_for(tmp_path: Path) -> None:
    calls = "".join(f"print(rule(lambda: {call}))\n" for call in ORDERS)
    log = tmp_path / "libraries"
    done = run(
        f"v = cd.view(cai(stream=1), device_id=(10, 0))\nassert v.device == (10, 0)\n{calls}",
        LD_DEBUG="libs",
        LD_DEBUG_OUTPUT=str(log),
    )
    assert done.stdout.split() == ["rocm-order"] * len(ORDERS)
    looked_for = "".join(file.read_text(encoding="utf-8") for file in tmp_path.iterdir())
    assert "libc.so" in looked_for and "libcuda" not in looked_for


def test_a_number_alone_is_refused_where_rocm_is_loaded(hip: str) -> None:
    body = "".join(
        f"""
print(rule({function}, cai(), device_id=0))
print(rule({function}, cai(), device_id=5))
for device in ((10, 0), "rocm:3"):
    assert rule({function}, cai(), device_id=device) not in ("rocm-device", "a driver was looked for"), device
"""
        for function in IMPORTS
        if function != "cd.explain"
    )
    assert run(body, hip).stdout.split() == ["rocm-device"] * 2 * (len(IMPORTS) - 1)


def test_a_number_is_refused_from_when_rocm_is_loaded_on(hip: str) -> None:
    """Whoever imports its library of HIP after the first call is not told CUDA's memory from then on."""
    body = f"""
assert cd.view(cai(), device_id=0).device == (2, 0)
ctypes.CDLL({hip!r})
print(rule(cd.view, cai(), device_id=0), rule(cd.to_dlpack, cai(), device_id=0))
"""
    assert run(body).stdout.split() == ["rocm-device", "rocm-device"]


def test_a_process_that_has_cudas_driver_is_one_of_cuda(hip: str, tmp_path: Path) -> None:
    """Whatever is loaded after, and what is loaded is not read at each call."""
    cuda = tmp_path / "libcuda.so.stand-in"
    shutil.copy(hip, cuda)
    body = f"""
ctypes.CDLL({str(cuda)!r})
assert cd.view(cai(), device_id=0).device == (2, 0)
ctypes.CDLL({hip!r})
assert cd.view(cai(), device_id=0).device == (2, 0)
"""
    run(body)
    counted = """
import time
def seconds(call):
    start = time.perf_counter()
    for _ in range(2000):
        call()
    return time.perf_counter() - start
array = cai()
{load}
cd.view(array, device_id=0)
assert seconds(lambda: cd.view(array, device_id=0)) < seconds(lambda: open("/proc/self/maps").read()) / 2
"""
    run(counted.format(load=""))
    run(counted.format(load=f"ctypes.CDLL({str(cuda)!r})"))


def test_without_a_device_the_advice_is_to_name_the_platform(hip: str) -> None:
    body = f"""
for function in ({", ".join(IMPORTS)}):
    try:
        print(function(cai()).refused)
    except cd.DriverError as error:
        print(error)
"""
    with_rocm, without = run(body, hip).stdout.splitlines(), run(body).stdout.splitlines()
    assert len(with_rocm) == len(without) == len(IMPORTS)
    for one, other in zip(with_rocm, without, strict=True):
        assert "no CUDA driver" in one and "no CUDA driver" in other
        assert ("device_id=(10, 0)" in one, "device_id" in other) == (True, False)


def test_a_number_is_cudas_where_rocm_is_not_loaded() -> None:
    body = "print(cd.view(cai(), device_id=3).device, cd.view(cai(), device_id=(2, 3)).device)"
    assert run(body).stdout == "(2, 3) (2, 3)\n"


def test_each_device_that_is_no_interface_s_is_refused() -> None:
    body = """
for kind in (*range(-1, 30), 2**31):
    for id in (-1, 0, 3):
        found = rule(cd.view, cai(), device_id=(kind, id))
        is_taken = not isinstance(found, str)
        assert is_taken == (kind in (2, 10) and id >= 0), (kind, id, found)
        assert not is_taken or found.device == (kind, id)
for wrong in ("cpu", "rocm", "rocm:-1", "rocm:x", "hip:0", (10,), (10, 0, 0), (10.0, 0), 1.5, b"rocm:0", ()):
    assert rule(cd.view, cai(), device_id=wrong) in (
        "argument-value", "argument-type", "device-id", "device-unknown"
    ), wrong
assert rule(cd.view, cai(), device_id=(10, 0), check="bounds") == "argument-value"
"""
    run(body)


def test_what_a_refused_device_id_is_told_to_be_is_taken() -> None:
    body = """
import re
wrong = ("gpu", "cpu", "cpu:0", "cuda:x", "rocm", (1, 0), (3, 0), (2,), (10, 0, 0), (), [2, 0], 1.5, b"cuda", object())
for device in wrong:
    try:
        cd.view(cai(), device_id=device)
    except cd.Refusal as refusal:
        said = str(refusal).partition("must be ")[2]
    names = re.findall('"([a-z0-9:]+)"', said)
    pairs = [tuple(map(int, pair)) for pair in re.findall(r"\\((\\d+), (\\d+)\\)", said)]
    assert len(names) >= 3 and len(pairs) >= 2, (device, said)
    for told in (*names, *pairs):
        assert cd.view(cai(), device_id=told).device[0] in (2, 10), (device, told)
"""
    run(body)


def test_the_device_is_what_the_tensor_says() -> None:
    """A capsule and a view of ROCm come back as they were, and are refused by another name."""
    body = """
v = cd.view(cai(), device_id="rocm:1")
tensor = lambda: cd.to_dlpack(v, stream=0, max_version=(1, 3))
for given, expected in (((10, 1), True), ((10, 0), False), ((2, 1), False), (1, False)):
    found = rule(cd.view, tensor(), device_id=given)
    assert (getattr(found, "device", found) == ((10, 1) if expected else "pointer-device")), (given, found)
assert rule(lambda: v.__cuda_array_interface__) == "cai-device"
assert cd.view(tensor()).device == (10, 1)
"""
    run(body)
