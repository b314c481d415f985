#!/usr/bin/env bash
# The larger figures of ownership, and the checkers that are too slow for `make test`. Each part is
# run, timed and kept in conformance/results/, with the date and the commit; a part that fails fails all.
#
#   conformance/soak/ownership.sh PYTHON [PART...]     parts: figures refusals loom pythons asan valgrind
set -uo pipefail
cd "$(dirname "$0")/../.."
python=$1
shift
parts=("$@")
[ $# -gt 0 ] || parts=(figures refusals loom pythons asan valgrind)
target=${CARGO_TARGET_DIR:-target}
ownership=conformance/tests/ownership
mkdir -p conformance/results
export PYTHONPATH=$PWD/conformance/kit/src

figures() {
    CAI_DLPACK_FIGURES=large "$python" -m cai_conformance simulate -- \
        "$python" -m pytest -q -s --durations=10 --ignore="$ownership/test_refusals.py" "$ownership"
}

# A million of each refusal: a quarter of an hour.
refusals() {
    CAI_DLPACK_FIGURES=large "$python" -m cai_conformance simulate -- \
        "$python" -m pytest -q --durations=10 "$ownership/test_refusals.py"
}

loom() {
    RUSTFLAGS='--cfg loom' cargo test --quiet --release --locked --target-dir "$target/loom" \
        --package cai-dlpack --lib queue::orders
}

pythons() {
    CAI_DLPACK_FIGURES=large "$python" -m cai_conformance simulate -- \
        "$python" -m conformance.soak.pythons "$target/pythons" -k 'not this'
}

# The Rust tests of ownership, with every allocation watched and leaks looked for at the end.
asan() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1 \
        cargo +nightly test --quiet --locked --target "$host" --target-dir "$target/asan" \
        --package cai-dlpack --lib -- view::block view::kind view::nested view::owner view::queue
}

# The Python tests that stay in one process and need no other library, on an extension with its symbols.
# Fewer times each, and with more patience: valgrind takes some thirty times as long.
valgrind() {
    local log package tests=conformance/tests
    log=$(mktemp)
    package=$(realpath -m "$target/valgrind")
    PYO3_BUILD_EXTENSION_MODULE=1 PYO3_PYTHON=$python \
        cargo build --release --locked --quiet --target-dir "$target" --package cai-dlpack-python || return 1
    rm -rf "$package" && mkdir -p "$package" && cp -r bindings/python/python/cai_dlpack "$package" || return 1
    cp "$target/release/lib_core.so" \
        "$package/cai_dlpack/_core$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')"
    PYTHONPATH=$package:$PYTHONPATH PYTHONMALLOC=malloc CAI_DLPACK_FIGURES=few \
        "$python" -m cai_conformance simulate -- \
        valgrind --leak-check=full --show-leak-kinds=definite,indirect --num-callers=60 --log-file="$log" \
        "$python" -m pytest -q \
        "$ownership"/test_{claims,conversions,ends,foreign_threads,refusals}.py \
        "$tests"/test_{capsules,explain,export,import,malformed_cai,malformed_dlpack}.py || return 1
    "$python" -m conformance.soak.valgrind_log "$log"
}

commit=$(git rev-parse --short HEAD)
failed=0
for part in "${parts[@]}"; do
    file=conformance/results/ownership-$part.txt
    {
        echo "$part, $(date -u +%Y-%m-%d), commit $commit, $("$python" --version), $(uname -sm), $(nproc) cores"
        time "$part"
        code=$?
        echo "exit code $code"
    } 2>&1 | sed "s|$PWD/||g" >"$file"
    tail -n 1 "$file" | grep -q 'exit code 0' || failed=1
    echo "$file: $(tail -n 1 "$file")"
done
exit $failed
