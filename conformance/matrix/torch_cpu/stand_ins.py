"""Stand-ins for CUDA's libraries, so that torch's CPU tensors load without 4 GB of the real ones.

torch's wheel is linked with cuBLAS, cuDNN and ten more that its CPU side never calls. Each stand-in
has the name, the version mark and the symbols that the loader asks for; whoever calls one of the
functions is stopped at once. libcudart is the real one.

    python stand_ins.py TORCH_FOLDER OUTPUT_FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# The libraries, each with the beginning of its functions' names, for those that mark no version.
STAND_INS = {
    "libcublas.so.13": "",
    "libcublasLt.so.13": "",
    "libcudnn.so.9": "",
    "libcufft.so.12": "",
    "libcufile.so.0": "cuFile",
    "libcupti.so.13": "",
    "libcusolver.so.12": "",
    "libcusparse.so.12": "",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvrtc.so.13": "",
    "libnvshmem_host.so.3": "nvshmem",
}

# Where the mark is not the library's name.
MARKS = {"libnvshmem_host.so.3": "NVSHMEM"}


def wanted(folder: Path) -> set[tuple[str, str]]:
    """Every symbol that torch's libraries leave to others, with its version mark or an empty one."""
    files = [str(file) for file in sorted(folder.glob("lib/*.so"))]
    listed = subprocess.run(["nm", "-D", "--undefined-only", *files], check=True, capture_output=True, text=True)
    found = set()
    for line in listed.stdout.splitlines():
        kind, _, symbol = line.strip().partition(" ")
        if kind == "U":
            name, _, mark = symbol.partition("@")
            found.add((name, mark.lstrip("@")))
    return found


def build(torch: Path, folder: Path) -> None:
    """Builds all of them. Needs a C compiler and `nm`, which comes with every linker."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = wanted(torch)
    marks, source = folder / "marks.map", folder / "stand_in.c"
    for library, beginning in STAND_INS.items():
        mark = MARKS.get(library, library)
        names = {name for name, of in symbols if of == mark or (not of and beginning and name.startswith(beginning))}
        source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in sorted(names)))
        marks.write_text(f"{mark} {{ *; }};\n")
        command = [
            os.environ.get("CC", "cc"),
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-o",
            str(folder / library),
            str(source),
        ]
        subprocess.run([*command, f"-Wl,-soname,{library}", f"-Wl,--version-script={marks}"], check=True)
    source.unlink()
    marks.unlink()


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
