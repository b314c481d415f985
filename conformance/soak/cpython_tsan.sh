#!/usr/bin/env bash
# Threads at once (conformance/tests/ownership/test_together.py) on a free-threaded interpreter that was built
# with the thread sanitizer, the extensions and Rust's standard library instrumented too:
#
#   conformance/soak/cpython_tsan.sh PYTHON SUPPRESSIONS
#
# Called by `cpython.sh tsan`. The suppressions are CPython's own; none is ours. Needs a nightly compiler with its
# source: `rustup toolchain install nightly --component rust-src`.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1 suppressions=$2
host=$(rustc -vV | sed -n 's/^host: //p')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
package=$target/cpython/package-tsan
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

PYO3_PYTHON=$python PYO3_BUILD_EXTENSION_MODULE=1 \
    cargo +nightly -Zbuild-std --config "target.$host.rustflags=['-Zsanitizer=thread']" \
    build --quiet --release --locked --target "$host" --target-dir "$target/cpython/cargo-tsan" \
    --package cai-dlpack-python --package cai-example-peer
cargo build --quiet --release --locked --package cusim

# pytest and numpy come as wheels: nothing is installed by the sanitized interpreter, which takes its time.
rm -rf "$package" && mkdir -p "$package"
grep -E '^(pytest|iniconfig|packaging|pluggy|Pygments)==|^numpy==.*>=' conformance/requirements.txt >"$package/wheels.txt"
PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$package" \
    --python-version 3.14 --implementation cp --abi cp314t --abi none \
    --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_27_$(uname -m)" --platform any -r "$package/wheels.txt"
cp -r bindings/python/python/cai_dlpack "$package"
cp "$target/cpython/cargo-tsan/$host/release/lib_core.so" "$package/cai_dlpack/_core$suffix"
cp "$target/cpython/cargo-tsan/$host/release/libcai_example_peer.so" "$package/cai_example_peer$suffix"
cc -O1 -fno-builtin -shared -fPIC -o "$package/tsan_calls.so" conformance/soak/tsan_calls.c

# In one process: what starts others looks at exit codes and at what is printed. A report ends in exit code 66;
# it goes to a file, since pytest keeps what a test that passes has printed.
export PYTHONPATH=$package:$PWD/conformance/kit/src PYTHONDONTWRITEBYTECODE=1 CAI_DLPACK_FIGURES=few
code=0
TSAN_OPTIONS="suppressions=$suppressions exitcode=66 log_path=$package/report" LD_PRELOAD=$package/tsan_calls.so \
    "$python" -m cai_conformance simulate -- \
    "$python" -m pytest -q -p no:cacheprovider \
    conformance/tests/ownership/test_together.py -k 'not first_calls and not ends_while and not warning and not import_leaves' ||
    code=$?
cat "$package"/report.* 2>/dev/null || echo 'no report'
exit $code
