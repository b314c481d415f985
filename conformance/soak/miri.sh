#!/usr/bin/env bash
# Every test of the library that Miri can run, by both models of aliasing: provenance, uninitialised memory, leaks,
# data races; `view::programs` are random programs over the safe functions, and a target of their own:
#
#   conformance/soak/miri.sh                        both models, everything
#   conformance/soak/miri.sh tree view::programs    one model, some tests: printed, not kept
#
# Not run: tests on the simulator, which is a library in C, and on Python; and, marked in the source as ignored under
# Miri, the exhaustive ones of code without `unsafe`, which take hours and cannot fail here. Needs a nightly compiler:
# `rustup toolchain install nightly --component miri,rust-src`.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}/miri
declare -A flags=([stacked]="" [tree]=-Zmiri-tree-borrows)

# A pointer that crosses C's borders as a number is made a pointer again by `with_exposed_provenance`: Miri need not warn of it.
check() {
    MIRIFLAGS="-Zmiri-permissive-provenance ${flags[$1]}" cargo +nightly miri test --jobs 1 --locked \
        --target-dir "$target" --package cai-dlpack --lib --features cai-dlpack/half -- "${@:2}"
}

if [ $# -gt 0 ]; then
    check "$@"
    exit
fi
mkdir -p conformance/results
# Said before the files of results are opened, which are tracked.
provenance="$(date -u +%Y-%m-%d), commit $(git describe --always --dirty --exclude='*'), $(cargo +nightly miri --version)"
for model in stacked tree; do
    {
        echo "miri, $model borrows, $provenance"
        check "$model" view:: driver:: protocol::
        echo "exit code 0"
    } 2>&1 | grep --line-buffered -vE '\.\.\. ok$|^ +(Compiling|Downloaded|Downloading|Fresh|Finished) ' |
        tee "conformance/results/miri-$model.txt"
done
