#!/usr/bin/env bash
# Every Rust test of the library and of the simulator with each allocation watched, and leaks looked for
# at the end. Needs a nightly compiler: `rustup toolchain install nightly`. No suppressions.
set -euo pipefail
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/asan
mkdir -p conformance/results
# The simulator that the tests load is not instrumented: its own tests are.
cargo build --release --locked --package cusim

{
    echo "asan and lsan, $(date -u +%Y-%m-%d), commit $(git describe --always --dirty --exclude='*'), $(rustc +nightly --version)"
    RUSTFLAGS=-Zsanitizer=address RUSTDOCFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1 \
        cargo +nightly test --locked --target "$host" --target-dir "$target" \
        --package cai-dlpack --package cusim --package cusim-control \
        --lib --test '*' --features cai-dlpack/half,cai-dlpack/cudarc -- --skip uncompilable
    echo "exit code 0"
} 2>&1 | grep -v '\.\.\. ok$' | tee conformance/results/asan.txt
