#!/usr/bin/env bash
# The conformance kit as others get it: installed from its folder into an environment of its own, used from
# another folder, and refused where there is no simulator.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT
cd "$away"
"${1:-python3}" -m venv environment
environment/bin/python -m pip install --quiet --disable-pip-version-check "$root/conformance/kit" pytest
cat >test_mine.py <<'TEST'
import ctypes


def test_mine(sim):
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert (count.value, sim.schedule, sim.count("cuInit")) == (3, "lazy", 1)
TEST
environment/bin/python -m cai_conformance simulate --devices 3 --schedule lazy -- \
    environment/bin/python -m pytest -q test_mine.py
if environment/bin/python -m pytest -q test_mine.py >without 2>&1; then
    echo 'a test that asks for the simulator has passed without it' >&2
    exit 1
fi
grep -q NotSimulated without

# README's first command, with and without the simulated driver: the installed kit says its version.
judged() {
    "$@" producer numpy:asarray --json judged.json >/dev/null
    environment/bin/python - "$driver" <<'PYTHON'
import json, sys

found = json.load(open("judged.json"))
assert found["driver"] == sys.argv[1], found["driver"]
assert found["counts"]["passed"] > 50 and not found["counts"]["violations"] + found["counts"]["deviations"], found["counts"]
assert "not installed" not in found["versions"]["cai-conformance"], found["versions"]
PYTHON
}
driver=none
judged environment/bin/cai-conformance
driver=simulated
judged environment/bin/cai-conformance simulate -- environment/bin/cai-conformance
