"""`python -m cai_dlpack doctor`: the driver, the libraries that are here, what each speaks, and which pairs work.

What is told of a library is the table of partners (docs/partners.md), by which `explain` answers, too.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
import sysconfig
import textwrap
from typing import Any

import cai_dlpack as cd
from cai_dlpack import _core
from cai_dlpack._terminal import printer, wrapped

# How each library makes a small array: in host memory, and on the first device.
HOST = {
    "numpy": "numpy.arange(2.0)",
    "torch": "torch.arange(2.0)",
    "jax": "jax.numpy.arange(2.0)",
    "tensorflow": "tensorflow.range(2.0)",
    "tvm_ffi": "tvm_ffi.from_dlpack(numpy.arange(2.0))",
    "paddle": "paddle.arange(2.0)",
    "pyarrow": "pyarrow.array([0.0, 1.0])",
    "warp": "warp.array([0.0, 1.0], dtype=float, device='cpu')",
    "array_api_strict": "array_api_strict.arange(2.0)",
}
DEVICE = {
    "numba": "numba.cuda.to_device(numpy.arange(2.0))",
    "cuda.core": "(d := cuda.core.Device(0)).set_current() or d.allocate(16, stream=d.default_stream)",
    "cupy": "cupy.arange(2.0)",
    "torch": "torch.arange(2.0, device='cuda')",
    "jax": "jax.device_put(jax.numpy.arange(2.0), jax.devices('gpu')[0])",
    "warp": "warp.array([0.0, 1.0], dtype=float, device='cuda')",
    "rmm": "rmm.DeviceBuffer(size=16)",
}
MEMORY = {"host": HOST, "device": DEVICE}
# What has to be called before arrays can change hands.
BEFORE = {"warp": "init"}
# What a name of the table is imported as, if that is not the name.
IMPORTED = {"numba": "numba.cuda"}
# What is told of a library that returns none from `to`: its call takes a view.
NO_ARRAYS = "no array of its own"
# Where the faults of the table are, with how to see them, and what the conformance kit has found of a distribution.
FAULTS = "docs/partners.md#faults-of-the-libraries-with-the-smallest-reproduction"
FINDINGS = {
    "apache-tvm-ffi",
    "array-api-strict",
    "cuda-core",
    "dlpark",
    "jax",
    "mpi4py",
    "nanobind",
    "numba-cuda",
    "numpy",
    "onnxruntime",
    "paddlepaddle",
    "tensorflow-cpu",
    "torch",
    "warp-lang",
}


def page(path: str) -> str:
    """The address of a page of this version, if the package knows where it is published; else its path there."""
    urls = importlib.metadata.metadata("cai-dlpack").get_all("Project-URL") or []
    for label, _, address in (url.partition(", ") for url in urls):
        if label == "Source Code":
            return f"{address}/blob/v{cd.__version__}/{path}"
    return path


def report() -> dict[str, Any]:
    """What is found here, as data. Imports no library, and starts no driver."""
    return {
        "cai_dlpack": cd.__version__,
        "python": platform.python_version() + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
        "platform": f"{platform.system()} {platform.machine()}",
        "driver": driver(),
        "libraries": libraries(),
    }


def driver() -> dict[str, Any]:
    """The CUDA driver's version and devices, or why there is none."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return {"found": False, "why": str(error)}
    version, count, label = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
    if code := library.cuInit(0):
        return {"found": False, "why": f"cuInit returns {code}"}
    library.cuDriverGetVersion(ctypes.byref(version))
    library.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for ordinal in range(count.value):
        library.cuDeviceGetName(label, len(label), ordinal)
        devices.append(label.value.decode(errors="replace"))
    return {
        "found": True,
        "version": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "simulated": hasattr(library, "sim_abi"),
        "devices": devices,
    }


def libraries() -> list[dict[str, Any]]:
    """The partners that are installed, with what the table says of each."""
    found = []
    for partner in _core._partners():
        names = [partner["distribution"], *partner["distributions"]]
        versions = {name: version for name in names if (version := _version(name))}
        if versions:
            distribution, version = next(iter(versions.items()))
            takers = filter(None, [*partner["calls"], partner["launch"]])
            found.append(
                {
                    "name": partner["name"],
                    "title": partner["title"],
                    "distribution": distribution,
                    "version": version,
                    "checked": partner["version"],
                    "makes_arrays": partner["produces"],
                    "exports": partner["exports"],
                    "imports": [*dict.fromkeys(taker["reads"] for taker in takers)],
                    "silence": partner["silence"],
                    "calls": [call["code"] for call in partner["calls"]],
                    # The caller's own object that its call needs: `to` refuses, as there is no array to return.
                    "needs": partner["calls"][0]["needs"],
                    "quirks": partner["quirks"],
                    "faults": [
                        {"what": what, "reproduction": shown, "link": reported or page(FAULTS)}
                        for what, shown, reported in partner["faults"]
                    ],
                    "findings": [page(f"docs/findings/{name}.md") for name in names if name in FINDINGS],
                }
            )
    return found


def titled(library: dict[str, Any]) -> str:
    """A library's title, with the distribution whose version is told unless that is the same name."""
    title, distribution = library["title"], library["distribution"]
    same = re.sub("[-_.]", "", title).lower() == re.sub("[-_.]", "", distribution).lower()
    return title if same else f"{title} ({distribution})"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def pairs(memory: str, producer: str) -> dict[str, str]:
    """Hands an array of one library to each library that is here, by `cd.to`: "works", or why not."""
    if importlib.util.find_spec("paddle"):  # before TensorFlow, which it ends the process after
        importlib.import_module("paddle")
    here = {library["name"]: library for library in libraries()}
    for name in BEFORE.keys() & here.keys():
        getattr(importlib.import_module(name), BEFORE[name])()
    named: dict[str, Any] = {}
    for name in ("numpy", producer):
        importlib.import_module(IMPORTED.get(name, name))
        named[name.partition(".")[0]] = sys.modules[name.partition(".")[0]]
    came = {}
    for consumer in here:
        if consumer == producer:
            continue
        if here[consumer]["needs"]:
            came[consumer] = f"{NO_ARRAYS}: `{here[consumer]['calls'][0]}`"
            continue
        array = eval(MEMORY[memory][producer], named)
        try:
            cd.to(array, consumer)
        except Exception as error:
            came[consumer] = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
            came[consumer] += "".join(f"; instead {remedy}" for remedy in cd.explain(array, to=consumer).remedies)
        else:
            came[consumer] = "works"
    return came


def tried() -> dict[str, dict[str, dict[str, str]]]:
    """Tries all pairs: each producer in a process of its own, since some end it."""
    here = {library["name"] for library in libraries()}
    devices = driver().get("devices")
    found: dict[str, dict[str, dict[str, str]]] = {}
    for memory, makers in MEMORY.items():
        found[memory] = {}
        for producer in makers:
            if producer not in here or (memory == "device" and not devices):
                continue
            code = (
                f"import json; from cai_dlpack import doctor; print(json.dumps(doctor.pairs({memory!r}, {producer!r})))"
            )
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
            if done.returncode == 0:
                found[memory][producer] = json.loads(done.stdout.splitlines()[-1])
            else:
                last = (done.stderr.strip().splitlines() or [f"the process ends with {done.returncode}"])[-1]
                found[memory][producer] = {"": last}
    return found


def main(*, as_json: bool, try_pairs: bool) -> int:
    """Prints the report; with `try_pairs` also what came of each pair."""
    found = report()
    if try_pairs:
        found["pairs"] = tried()
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    say = printer()
    say(f"cai-dlpack {found['cai_dlpack']}, Python {found['python']}, {found['platform']}", "bold")
    cuda = found["driver"]
    if cuda["found"]:
        kind = "simulated CUDA driver" if cuda["simulated"] else "CUDA driver"
        say(f"{kind} {cuda['version']}: {', '.join(cuda['devices']) or 'no device'}", "")
    else:
        say(wrapped(f"no CUDA driver ({cuda['why']}): arrays in host memory change hands all the same", "  ", ""), "")
    say("\nLibraries that are installed, and the version that their row of the table was checked with", "bold")
    if not found["libraries"]:
        say("    none that the table has; pip install numpy, torch or numba-cuda brings one", "yellow")
    for library in found["libraries"]:
        same = library["version"] == library["checked"]
        versions = library["version"] + ("" if same else f" (checked: {library['checked']})")
        say(f"{titled(library):28} {versions}", "" if same else "yellow")
        ways = [("out", library["exports"]), ("in", library["imports"])]
        spoken = "; ".join(f"{way}: {', '.join(protocols) or 'nothing'}" for way, protocols in ways)
        say(wrapped(spoken, "    "), "")
        say(wrapped("; ".join(library["calls"]), "    "), "cyan")
        for quirk in library["quirks"]:
            say(wrapped(quirk, "      ", "    ! "), "yellow")
        links: dict[str, None] = {}
        for fault in library["faults"]:
            seen = "" if same else f"seen in {library['checked']}: "
            say(wrapped(f"{seen}{fault['what']}", "      ", "    ! "), "yellow")
            links[fault["link"]] = None
        # An address is not broken: a terminal lets the reader open it.
        for link in [*links, *library["findings"]]:
            say(f"      see {link}", "")
    for memory, producers in found.get("pairs", {}).items():
        say(f"\nBy cd.to, from {memory} memory", "bold")
        if not producers:
            has_device = memory != "device" or cuda.get("devices")
            lack = "no library that makes arrays is" if has_device else "no device is"
            say(f"    not tried: {lack} here", "yellow")
        for producer, came in producers.items():
            works = [consumer for consumer, result in came.items() if result == "works"]
            say(
                wrapped(f"{', '.join(works) or 'nobody'}", " " * 20, f"{producer:16} -> "),
                "green" if works else "yellow",
            )
            for consumer, result in came.items():
                if result.startswith(NO_ARRAYS):
                    say(wrapped(f"{consumer}: {result}", "      ", "    "), "")
                elif result != "works":
                    say(wrapped(f"{consumer}: {result}".lstrip(": "), "      ", "    ! "), "yellow")
    return 0
