#!/usr/bin/env bash
# Ownership, views, queue, element access and the ledger of borrows as Miri sees them: aliasing, provenance,
# uninitialised memory, leaks, data races. Needs a nightly compiler: `rustup toolchain install nightly --component miri,rust-src`.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}/miri
mkdir -p conformance/results
# Said before the file of results is opened, which is tracked.
provenance="miri, $(date -u +%Y-%m-%d), commit $(git describe --always --dirty --exclude='*'), $(cargo +nightly miri --version)"
{
    echo "$provenance"
    cargo +nightly miri test --locked --target-dir "$target" \
        --package cai-dlpack --lib --features cai-dlpack/half -- view::
    echo "exit code 0"
} 2>&1 | grep --line-buffered -vE '\.\.\. ok$|^ +(Compiling|Downloaded|Downloading|Fresh) ' | tee conformance/results/miri.txt
