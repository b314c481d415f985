"""Judges libraries' arrays in the memory of a GPU with the conformance kit, race trials included.

    python -m conformance.gpu.judged [WORD ...]         on a GPU
    python -m cai_conformance simulate -- python -m conformance.gpu.judged --simulated

The kit's own report of each is printed as soon as it is there. WORD chooses the targets whose command has it. Exits
with 1 if this package's arrays or imports are found wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.gpu.facts import begin

ROOT = Path(__file__).parents[2]
HERE, JUDGED = "conformance.gpu.judged", "conformance.judged.targets"


def torch_array(array: Any) -> Any:
    """torch's tensor on the GPU."""
    import torch

    return torch.from_numpy(array.copy()).cuda()


def torch_import(obj: Any) -> Any:
    """torch's import of the CUDA Array Interface."""
    import torch

    return torch.as_tensor(obj, device="cuda")


def jax_array(array: Any) -> Any:
    """JAX's array on the GPU."""
    import jax

    return jax.device_put(array, jax.devices("gpu")[0])


def torch_read(tensor: Any) -> Any:
    """What torch's current stream reads of a tensor."""
    return tensor.cpu().numpy()


def jax_read(array: Any) -> Any:
    """What JAX reads of its array."""
    import numpy

    return numpy.asarray(array)


#: The module that must be there, and what the kit's command is given.
TARGETS = (
    ("cai_dlpack", "producer", "conformance.tests.kit.ourselves:on_a_device"),
    ("cai_dlpack", "consumer", "cai_dlpack:view", "--profile", "cai-consumer", "--profile", "exchange-consumer"),
    ("cai_dlpack", "consumer", "cai_dlpack:from_dlpack", "--profile", "dlpack-consumer"),
    ("numba_cuda", "producer", "numba.cuda:to_device"),
    ("numba_cuda", "consumer", "numba.cuda:as_cuda_array", "--profile", "cai-consumer"),
    ("cuda.core", "consumer", f"{JUDGED}:cuda_core_cai", "--profile", "cai-consumer"),
    (
        *("cuda.core", "consumer", f"{JUDGED}:cuda_core_on_a_stream", "--profile", "dlpack-consumer"),
        *("--read", f"{JUDGED}:cuda_core_read"),
    ),
    ("tvm_ffi", "consumer", "tvm_ffi:from_dlpack", "--profile", "dlpack-consumer", "--profile", "exchange-consumer"),
    ("tvm_ffi", "consumer", f"{JUDGED}:tvm_ffi_call", "--profile", "exchange-consumer"),
    ("cupy", "producer", "cupy:asarray"),
    ("cupy", "consumer", "cupy:asarray", "--profile", "cai-consumer", "--read", "cupy:asnumpy"),
    ("cupy", "consumer", "cupy:from_dlpack", "--profile", "dlpack-consumer", "--read", "cupy:asnumpy"),
    ("torch", "producer", f"{HERE}:torch_array"),
    ("torch", "consumer", f"{HERE}:torch_import", "--profile", "cai-consumer", "--read", f"{HERE}:torch_read"),
    ("torch", "consumer", "torch:from_dlpack", "--profile", "dlpack-consumer", "--read", f"{HERE}:torch_read"),
    ("jax", "producer", f"{HERE}:jax_array"),
    ("jax", "consumer", "jax.dlpack:from_dlpack", "--profile", "dlpack-consumer", "--read", f"{HERE}:jax_read"),
)


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def judged(target: tuple[str, ...], simulated: bool) -> tuple[str, int]:
    """Returns the kit's words on a target and its exit code; if it is not run, the reason and 0."""
    module, *arguments = target
    if not is_there(module):
        return f"not run: {module} is not installed", 0
    if simulated and module in ("cupy", "torch", "jax"):
        return f"not run: {module} reaches no simulated driver", 0
    command = [sys.executable, "-m", "cai_conformance", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip(), done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="on the simulator, those that reach its driver")
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a target's command")
    asked = parser.parse_args()
    chosen = [target for target in TARGETS if any(word in " ".join(target) for word in asked.words or [""])]
    begin(parser, asked.simulated)
    failed = False
    # Side by side: a check's time is that of a library's import, in a process of its own.
    with ThreadPoolExecutor(os.cpu_count()) as together:
        asked_of = {together.submit(judged, target, asked.simulated): target for target in chosen}
        for answer in as_completed(asked_of):
            target, (said, code) = asked_of[answer], answer.result()
            print(f"\n== {' '.join(target[1:])}\n{said}", flush=True)
            failed |= code > (target[0] != "cai_dlpack")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
