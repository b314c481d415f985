#!/usr/bin/env bash
# Every test of the library that Miri can run, by both models of aliasing: provenance, uninitialised memory, leaks,
# data races; `view::programs` are random programs over the safe functions. Not run: tests on the simulator, which is a
# library in C, and on Python. Needs a nightly compiler: `rustup toolchain install nightly --component miri,rust-src`.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}/miri
mkdir -p conformance/results
# Said before the file of results is opened, which is tracked.
provenance="miri, $(date -u +%Y-%m-%d), commit $(git describe --always --dirty --exclude='*'), $(cargo +nightly miri --version)"
{
    echo "$provenance"
    for model in "" -Zmiri-tree-borrows; do
        echo "${model:-stacked borrows}"
        MIRIFLAGS=$model cargo +nightly miri test --locked --target-dir "$target" \
            --package cai-dlpack --lib --features cai-dlpack/half -- view:: protocol:: driver::
    done
    echo "exit code 0"
} 2>&1 | grep --line-buffered -vE '\.\.\. ok$|^ +(Compiling|Downloaded|Downloading|Fresh) ' | tee conformance/results/miri.txt
