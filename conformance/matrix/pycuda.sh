#!/usr/bin/env bash
# Builds PyCUDA from source into an environment: it has no wheel. CUDA's headers come from NVIDIA's wheels,
# and libcuda is linked from a folder of the caller's, such as the simulated driver's. Needs a C++ compiler.
#
#     pycuda.sh ENVIRONMENT FOLDER_OF_LIBCUDA
set -euo pipefail
python=$(realpath -s "$1")/bin/python
driver=$(realpath "$2")
pip="$python -m pip --disable-pip-version-check"

$pip install --quiet --only-binary :all: setuptools==80.9.0 wheel==0.45.1 mako==1.3.10 markupsafe==3.0.3 \
    platformdirs==4.5.0 pytools==2025.2.5 siphash24==1.8 nvidia-cuda-profiler-api==13.5.25
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
$pip download --quiet --no-deps --no-binary pycuda --dest "$build" pycuda==2026.1
tar -xzf "$build"/pycuda-*.tar.gz -C "$build" --strip-components 1
headers=$($python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/nvidia/cu13/include
cd "$build"
$python configure.py --no-cuda-enable-curand --cuda-root="$build" --cuda-inc-dir="$headers" \
    --cudadrv-lib-dir="$driver"
# Not optimised: what is asked of it is which pointers it takes.
CFLAGS='-O0 -w' $pip install --quiet --no-deps --no-build-isolation .
