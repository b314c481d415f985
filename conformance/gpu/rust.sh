#!/usr/bin/env bash
# Builds the Rust programs that conformance/gpu/rust.py runs on a machine with a GPU and without Rust, and prints where they
# are: `make gpu-rust`. They find the driver as every program does: by the loader.
#
#   conformance/gpu/rust.sh FEATURES FOLDER
#   CUBECL=1                 cubecl's tests, too: builds 170 crates
set -euo pipefail
cd "$(dirname "$0")/../.."
features=$1 folder=$2 target=${CARGO_TARGET_DIR:-target}
mkdir -p "$folder"

# `keep NAME ARGUMENTS...` builds one test program, and keeps it without symbols.
keep() {
    local name=$1 built
    shift
    built=$(cargo test --locked --no-run --message-format json "$@" |
        sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    strip -o "$folder/$name" "$built"
}

keep rust --package cai-dlpack --features "$features" --test rust
cargo build --locked --package cai-dlpack --features "$features" --example cudarc
strip -o "$folder/example-cudarc" "$target/debug/examples/cudarc"
if [ -n "${CUBECL:-}" ]; then
    keep cubecl --manifest-path conformance/rust/cubecl/Cargo.toml --target-dir "$target/cubecl" --test device
fi
du -sh "$folder"
ls -l "$folder"
