#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one, without a network: `make gpu`.
#
#   conformance/gpu.sh [PYTHON [WHEEL]]
#
# PYTHON has the libraries that take part (torch, CuPy, JAX, numba-cuda, cuda-core); WHEEL is this package's, if it is
# not installed there. Each part's output is kept under conformance/results/gpu, with hardware, driver, versions, date
# and commit at its head.
#
#   PARTS='questions races'   some parts: questions checks reach races bench matrix judged, and rust, which runs what
#                             `make gpu-rust` has built: carry target/gpu-rust in
#   CARRIED=site.tar.xz       engines for `reach` that are not installed there (conformance/gpu/carried.py)
#   TRIALS=1000               shortens the races
#   ENGINES='dask nixl'       some engines of `reach`; JOBS=8 checks of it at once
#   JUDGED='torch jax'        some targets of `judged`
#   COMMIT=1a2b3c4            names the commit of a tree that was carried in without its repository
#   PIN_CLOCKS=1              fixes the clocks for the run, which needs the right to (nvidia-smi --lock-gpu-clocks)
#   SIMULATED=1               runs the parts on the simulated driver, to see that they run: every output says
#                             SIMULATED and goes to target/gpu-simulated
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
export PYTHONPATH=$PWD:$PWD/conformance/kit/src${PYTHONPATH:+:$PYTHONPATH}
# JAX would take most of the memory of the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
if [ -n "${2:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --upgrade --target target/gpu "$2" || exit 1
    PYTHONPATH=$PWD/target/gpu:$PYTHONPATH
fi
if [ -n "${CARRIED:-}" ]; then
    rm -rf target/gpu-carried
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' \
        "$CARRIED" target/gpu-carried || exit 1
    PYTHONPATH=$PYTHONPATH:$PWD/target/gpu-carried
fi

if [ -n "${SIMULATED:-}" ]; then
    results=target/gpu-simulated flags=(--simulated)
    run=("$python" -m cai_conformance simulate -- "$python")
    echo 'SIMULATED: no GPU takes part, and nothing below is about one'
else
    results=conformance/results/gpu flags=()
    run=("$python")
fi
# Refuses a machine without a GPU, and the simulator where it was not asked for.
head=$("${run[@]}" -m conformance.gpu.facts "${flags[@]}") || exit 2
echo "$head"
mkdir -p "$results"

if [ -n "${PIN_CLOCKS:-}" ] && [ -z "${SIMULATED:-}" ]; then
    clock=$(nvidia-smi --query-gpu=clocks.max.sm --format=csv,noheader,nounits | head -n 1)
    nvidia-smi --lock-gpu-clocks="$clock,$clock" || exit 1
    trap 'nvidia-smi --reset-gpu-clocks' EXIT
fi

# `keep FILE COMMAND...` runs a command, shows what it prints, and keeps that once the command has ended.
keep() {
    local file=$results/$1
    shift
    "$@" | tee "$file.unfinished"
    local code=$?
    mv "$file.unfinished" "$file"
    return $code
}

# Where the simulator and this driver differ: a difference is a finding, and no failure.
asked() { echo "$head" && "${run[@]}" -m conformance.tests.cusim.questions; }
questions() {
    keep questions.tsv asked || return
    echo "== differences: < the simulator, > this driver"
    diff conformance/tests/cusim/answers.tsv <(grep -v '^# ' "$results/questions.tsv")
    return 0
}
checks() { keep checks.tsv "${run[@]}" -m conformance.gpu.checks "${flags[@]}"; }
reach() { keep reach.tsv "${run[@]}" -m conformance.gpu.reach "${flags[@]}" ${JOBS:+--jobs "$JOBS"} ${ENGINES:-}; }
races() { keep races.tsv "${run[@]}" -m conformance.gpu.races "${flags[@]}" --trials "${TRIALS:-10000}"; }
bench() { keep bench.md "${run[@]}" benches/gpu.py "${flags[@]}"; }
matrix() {
    if [ -n "${SIMULATED:-}" ]; then
        "${run[@]}" -m conformance.matrix.run
    else
        local found=${CARGO_TARGET_DIR:-target}/results/matrix-gpu
        rm -f "$found.json" "$found.md"
        "${run[@]}" -m conformance.matrix.run --keep
        local code=$?
        # A table with cells that are wrong does not replace the one that is kept, and is a finding.
        for kind in json md; do
            if [ -e "$found.$kind" ]; then cp "$found.$kind" "$results/"; fi
        done
        return $code
    fi
}
rust() { keep rust.tsv timeout "${RUST_SECONDS:-300}" "${run[@]}" -m conformance.gpu.rust "${flags[@]}"; }
judged() { keep judged.txt "${run[@]}" -m conformance.gpu.judged "${flags[@]}" ${JUDGED:-}; }

failed=0
for part in ${PARTS:-questions checks reach bench races matrix judged}; do
    echo "== $part"
    "$part" || { echo "== $part: exit code $?"; failed=1; }
done
exit $failed
