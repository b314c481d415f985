#!/usr/bin/env bash
# Walks through README in an empty directory with each Python, as a new user does from a checkout:
#
#   conformance/soak/readme.sh [PYTHON ...]      python3.10 to python3.14 and python3.14t, those that are here
#
# Each has an environment of its own, with what README says to install, and runs README's example, `doctor`, `explain`
# and `demo` on the simulated driver. A minute or two each: the package is built from source. What was installed is
# printed; the summary of all is kept in conformance/results/readme.txt.
set -uo pipefail
cd "$(dirname "$0")/../.."
checkout=$PWD results=$PWD/conformance/results/readme.txt
[ $# -gt 0 ] || set -- python3.10 python3.11 python3.12 python3.13 python3.14 python3.14t
kept=("# conformance/soak/readme.sh at $(git rev-parse --short HEAD), $(date +%F), $(rustc --version)")

# Prints README's block of console lines that has a word, without the remarks.
block() { awk -v word="$1" '/^```sh/{text=""; on=1; next} /^```/{if (on && text ~ word) printf "%s", text; on=0} on{sub(/ *#.*/, ""); text=text $0 "\n"}' README.md; }

is_free_threaded() { "$1" -c 'import sys; sys.exit(sys._is_gil_enabled())' 2>/dev/null; }

walk() {
    local python=$1 empty
    empty=$(mktemp -d) && trap 'rm -rf "$empty"' RETURN
    "$python" -m venv "$empty/venv" || return
    cp README.md "$empty" && cd "$empty" || return
    PATH=$empty/venv/bin:$PATH
    export PYTHONPATH='' PIP_DISABLE_PIP_VERSION_CHECK=1
    # The paths of README's lines are of the checkout.
    local installs
    installs=$(cd "$checkout" && block 'pip install numba-cuda' | grep '^pip' | sed "s|\./|$checkout/|")
    pip install --quiet "$checkout/bindings/python" || return
    eval "$installs" || return
    awk '/^```python/{on=1; next} /^```/{if (on) exit} on' README.md > example.py
    if is_free_threaded python; then
        pip uninstall --quiet --yes numba-cuda numba || return # which has no wheel for it, as README says
    else
        python -m cai_conformance simulate -- python example.py || return
    fi
    python -m cai_conformance simulate -- python -m cai_dlpack doctor --pairs || return
    python -m cai_dlpack explain 'numpy:zeros(3)' --to torch || return
    python -m cai_conformance simulate -- python -m cai_dlpack demo || return
    cd "$checkout" || return
}

failed=0
for python in "$@"; do
    if ! command -v "$python" >/dev/null || ! version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
        kept+=("${python##*/}: not here")
        continue
    fi
    if (walk "$python"); then
        left=$(is_free_threaded "$python" && echo " but the lines with Numba, which has no wheel for it")
        kept+=("CPython ${python##*python} ($version): all of it$left")
    else
        kept+=("CPython ${python##*python} ($version): WRONG, see above")
        failed=1
    fi
done
printf '%s\n' "${kept[@]}" | tee "$results"
exit $failed
