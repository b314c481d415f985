#!/usr/bin/env bash
# Builds the Rust programs that conformance/gpu/rust.py runs on a machine with a GPU and without Rust, and prints where they
# are: `make gpu-rust`. They find the driver as every program does: by the loader.
#
#   conformance/gpu/rust.sh FEATURES FOLDER
#   CUBECL=1                 cubecl's tests, too: builds 170 crates
#   CANDLE=1                 candle's tests, too: builds 170 crates; no nvcc is needed, as they launch no kernel
set -euo pipefail
cd "$(dirname "$0")/../.."
features=$1 folder=$2 target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$folder"
rm -f "$folder/simulated.tsv"
# Smaller programs, as they are carried.
small=(--target-dir "$target/gpu-rust-build" --config profile.dev.opt-level=1 --config profile.dev.debug=0)

# `keep NAME ARGUMENTS...` builds one test program, and keeps it without symbols.
keep() {
    local name=$1 built
    shift
    built=$(cargo test --locked --no-run --message-format json "$@" |
        sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    strip -o "$folder/$name" "$built"
}

keep rust --package cai-dlpack --features "$features" "${small[@]}" --test rust
cargo build --locked --package cai-dlpack --features "$features" "${small[@]}" --example cudarc
strip -o "$folder/example-cudarc" "$target/gpu-rust-build/debug/examples/cudarc"
if [ -n "${CUBECL:-}" ]; then
    keep cubecl --manifest-path conformance/rust/cubecl/Cargo.toml --target-dir "$target/cubecl" --test device
fi
if [ -n "${CANDLE:-}" ]; then
    # Linked as for CUDA 13 without a toolkit: by stand-ins that have the names of the libraries, which the loader finds
    # there. What no test calls stays unresolved, as binding is lazy; the flags are of this target's programs alone.
    libraries=$target/candle-gpu/libraries stand_ins=$target/candle-gpu/stand-ins
    mkdir -p "$libraries" "$stand_ins"
    for library in cuda:1 cublas:13 curand:10 cublasLt:13 nvrtc:13 cudart:13; do
        name=lib${library%%:*}.so
        source=/dev/null
        case $name in
            libcublas.so | libcurand.so)
                source=conformance/rust/candle/stand_ins.c
                # For a run on the simulator.
                ln -sf "$libraries/$name" "$stand_ins/$name.${library##*:}"
                ;;
        esac
        cc -shared -nostdlib -Wl,-soname,"$name.${library##*:}" -o "$libraries/$name" -x c "$source"
    done
    host=$(rustc -vV | sed -n 's/^host: //p')
    lazily='-C relro-level=off -C link-arg=-Wl,-z,lazy -C link-arg=-Wl,--unresolved-symbols=ignore-all'
    named='-C link-arg=-Wl,--no-as-needed -C link-arg=-lcuda -C link-arg=-lcublas -C link-arg=-lcurand'
    export NVCC=$PWD/conformance/rust/candle/nvcc.sh CUDA_COMPUTE_CAP=90 CUDARC_CUDA_VERSION=13000
    RUSTFLAGS="$lazily -L native=$libraries $named" keep candle --features cuda --test cuda \
        --manifest-path conformance/rust/candle/Cargo.toml --target "$host" --target-dir "$target/candle-gpu"
fi
du -sh "$folder"
ls -l "$folder"
