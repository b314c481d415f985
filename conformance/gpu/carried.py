"""Packs wheels for a machine without a network: unpacked, without what no run needs, in one archive.

    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
        --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \\
        --platform manylinux2014_x86_64 --dest WHEELS -r conformance/requirements-gpu-reach.txt
    python -m conformance.gpu.carried WHEELS site.tar.xz
    CARRIED=site.tar.xz PARTS=reach conformance/gpu.sh python3     there

Left out: headers, static libraries, tests, programs, symbols; of NIXL its engines but UCX, and what they alone link
to; transports of UCX for networks that no such machine has. Libraries that lie there three times are one, and links.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

#: By name, and by path within the archive.
LEFT_OUT = (
    *("*.a", "*.la", "*.h", "*.hpp", "*.cuh", "*.pxd", "*.pyx", "*.cpp", "*.c", "*.cmake", "*.pc", "*.mod", "*.pyc"),
    *("*.js", "*.map", "*.tmpl", "*.png", "*.svg", "RECORD", "libucx_perftest*", "libucxx_test*"),
    *(
        "*/include/*",
        "*/tests/*",
        "*/cmake/*",
        "*/pkgconfig/*",
        "*/licenses/*",
        "*/benchmarks/*",
        "*/examples/*",
        "*/3rdparty/*",
    ),
    *("libucx/bin/*", "*/libmpi_abi*", "*/libuct_ib*", "*/libuct_rdmacm*", "*/libfabric/*", "*/share/*"),
    *(
        "nixl_ep_cu13/*",
        "nixl_cu13.scripts/*",
        "nixl_cu13.libs/nixl/libt*",
        "example.py",
        "mpi4py/MPI.[!m]*",
    ),
    *(".nixl_cu13.mesonpy.libs/plugins/*", ".nixl_cu13.mesonpy.libs/lib*utils.so", "nixl_cu13.libs/*_perftest_*"),
)
#: Kept of what the above leaves out.
KEPT = ("*/bin/mpiexec.hydra", "*/bin/hydra_pmi_proxy", "*/plugins/libplugin_UCX.so")
PROGRAMS = "*.data/*/bin/*"
#: Of NIXL: what these link to stays, and no other of its libraries.
ROOTS = ("nixl_cu13/*.so", ".nixl_cu13.mesonpy.libs/plugins/*", "nixl_cu13.libs/ucx/*")
OF_NIXL = ("nixl_cu13.libs/", ".nixl_cu13.mesonpy.libs/")


def is_left_out(path: str) -> bool:
    if any(fnmatch(path, kept) for kept in KEPT):
        return False
    name = path.rpartition("/")[2]
    return fnmatch(path, PROGRAMS) or any(fnmatch(name, each) or fnmatch(path, each) for each in LEFT_OUT)


def unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir() or is_left_out(member.filename):
                continue
            archive.extract(member, site)
            if member.external_attr >> 16 & 0o111:
                (site / member.filename).chmod(0o755)


def needed(library: Path) -> list[str]:
    listed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return [line.partition("[")[2].rstrip("]") for line in listed.splitlines() if "(NEEDED)" in line]


def without_unlinked_libraries(site: Path) -> None:
    """Drops libraries of NIXL's that its UCX engine does without."""
    there = {path.name: path for folder in OF_NIXL for path in (site / folder).rglob("*.so*")}
    wanted = [path for pattern in ROOTS for path in site.glob(pattern)]
    seen: set[Path] = set()
    while wanted:
        library = wanted.pop()
        if library not in seen:
            seen.add(library)
            wanted += [there[name] for name in needed(library) if name in there]
    for path in there.values():
        if path not in seen:
            path.unlink()


def is_library(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"


def strip(path: Path) -> None:
    """Drops the symbols; not of a library whose parts `strip` puts where no loader takes them, as patched ones have."""
    stripped = path.with_name(path.name + ".stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", stripped, path], check=True)
    listed = subprocess.run(["readelf", "-lW", stripped], capture_output=True, text=True, check=True).stdout
    loads = [line.split() for line in listed.splitlines() if line.split()[:1] == ["LOAD"]]
    if all((int(load[1], 16) - int(load[2], 16)) % int(load[-1], 16) == 0 for load in loads):
        shutil.copymode(path, stripped)
        stripped.replace(path)
    else:
        stripped.unlink()


def slim(site: Path) -> None:
    without_unlinked_libraries(site)
    first: dict[tuple[Path, bytes], Path] = {}
    for path in sorted(site.rglob("*"), key=lambda path: (path.parent, -len(path.name))):
        if not is_library(path):
            continue
        same = first.setdefault((path.parent, sha256(path.read_bytes()).digest()), path)
        if same is not path:
            path.unlink()
            path.symlink_to(same.name)
        else:
            strip(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("archive", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        for wheel in sorted(asked.wheels.glob("*.whl")):
            unpack(wheel, site)
        slim(site)
        for data in sorted(site.glob("*.data/data")):  # what an installer puts beside `bin` and `lib`
            shutil.copytree(data, site / "prefix", dirs_exist_ok=True, symlinks=True)
            shutil.rmtree(data.parent)
        with tarfile.open(asked.archive, "w:xz", preset=6) as archive:
            for path in sorted(site.iterdir()):
                archive.add(path, path.name)
    print(f"{asked.archive}: {asked.archive.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
