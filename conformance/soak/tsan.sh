#!/usr/bin/env bash
# The simulator with its workers, and the library's queue, gate and owners, under the thread sanitizer, the
# standard library instrumented too. Needs a nightly compiler with its source:
# `rustup toolchain install nightly --component rust-src`. No suppressions.
set -euo pipefail
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/tsan
mkdir -p conformance/results
# Asked before the file of results is opened, which is tracked.
commit=${COMMIT:-$(git describe --always --dirty --exclude='*')}
provenance="thread sanitizer, $(date -u +%Y-%m-%d), commit $commit, $(rustc +nightly --version)"
{
    echo "$provenance"
    # Not the tests that load the simulator as libcuda.so.1: it brings a standard library of its own, whose
    # locks the sanitizer does not know. Nor those of protocol/, which has no thread and no unsafe, and goes through whole
    # spaces: minutes here. Nor the one of what releases may use of the stack: the frames are larger here.
    cargo +nightly -Zbuild-std --config "target.$host.rustflags=['-Zsanitizer=thread']" \
        test --locked --no-fail-fast --target "$host" --target-dir "$target" \
        --package cai-dlpack --package cusim --lib --features cai-dlpack/half,cai-dlpack/ipc -- --skip simulated --skip protocol:: \
        --skip what_stands_beside_owners_ends_after_them_where_the_stack_is_large
    echo "exit code 0"
} 2>&1 | grep --line-buffered -vE '\.\.\. ok$|^ +(Compiling|Downloaded|Downloading|Fresh) ' | tee conformance/results/tsan.txt
