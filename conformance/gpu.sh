#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one; each result is kept under conformance/results.
#
#   conformance/gpu.sh [PYTHON [WHEEL]]
#
# PYTHON has the libraries that shall take part; WHEEL is this package's, if it is not installed there.
# Nothing is downloaded. PARTS='questions races' runs some of it, TRIALS=1000 shortens the races.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
export PYTHONPATH=$PWD/conformance/kit/src
if [ $# -gt 1 ]; then
    "$python" -m pip install --quiet --no-index --no-deps --upgrade --target target/gpu "$2" || exit 1
    PYTHONPATH=$PWD/target/gpu:$PYTHONPATH
fi

# What the simulator says is never kept as a GPU's.
"$python" -c '
from conformance.matrix.installed import driver
found = driver()
raise SystemExit(None if found.startswith("NVIDIA") else f"a GPU is needed; here: {found}")' || exit 2

# Where the simulator and this driver answer differently: a difference is a finding, and no failure.
questions() {
    local answers=conformance/results/gpu-answers.tsv
    "$python" -m conformance.tests.cusim.questions >"$answers" || return
    diff conformance/tests/cusim/answers.tsv "$answers"
    return 0
}
races() { "$python" -m conformance.soak.gpu_races --trials "${TRIALS:-10000}"; }
matrix() { "$python" -m conformance.matrix.run --keep; }
bench() { "$python" benches/gpu.py; }

failed=0
for part in ${PARTS:-questions bench matrix races}; do
    echo "== $part"
    "$part" || { echo "== $part: exit code $?"; failed=1; }
done
exit $failed
