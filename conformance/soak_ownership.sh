#!/usr/bin/env bash
# The larger figures of ownership, and the checkers that are too slow for `make test`. Each part is
# run, timed and kept in conformance/results/, with the date and the commit; a part that fails fails all.
#
#   conformance/soak_ownership.sh PYTHON [PART...]     parts: figures loom pythons asan valgrind
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
parts=("$@")
[ $# -gt 0 ] || parts=(figures loom pythons asan valgrind)
target=${CARGO_TARGET_DIR:-target}
ownership=conformance/tests/ownership
mkdir -p conformance/results
export PYTHONPATH=$PWD/conformance/kit/src

figures() {
    CAI_DLPACK_FIGURES=large "$python" -m cai_conformance simulate -- \
        "$python" -m pytest -q -s --durations=10 "$ownership"
}

loom() {
    RUSTFLAGS='--cfg loom' cargo test --release --locked --target-dir "$target/loom" \
        --package cai-dlpack --lib queue::orders
}

pythons() {
    CAI_DLPACK_FIGURES=large "$python" conformance/pythons.py "$target/pythons" -k 'not this'
}

# The Rust tests of ownership, with every allocation watched and leaks looked for at the end.
asan() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1 \
        cargo +nightly test --locked --target "$host" --target-dir "$target/asan" \
        --package cai-dlpack --lib -- view::block view::kind view::nested view::owner view::queue
}

# The Python tests of ownership that stay in one process. What the interpreter itself keeps at its end is
# its own affair: a leak counts where one of our functions is on its stack.
valgrind() {
    local log
    log=$(mktemp)
    PYTHONMALLOC=malloc command valgrind --leak-check=full --show-leak-kinds=definite,indirect \
        --num-callers=40 --log-file="$log" \
        "$python" "$ownership/under_valgrind.py" || return 1
    "$python" "$ownership/under_valgrind.py" --read "$log"
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
    } >"$file" 2>&1
    tail -n 1 "$file" | grep -q 'exit code 0' || failed=1
    echo "$file: $(tail -n 1 "$file")"
done
exit $failed
