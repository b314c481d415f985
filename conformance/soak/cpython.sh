#!/usr/bin/env bash
# A CPython, built from its source where it is not built yet, and the Python tests on it:
#
#   conformance/soak/cpython.sh gil               3.14: every test, and the demo
#   conformance/soak/cpython.sh debug             the same with CPython's assertions, in Python's development mode
#   conformance/soak/cpython.sh 3.15              the same on 3.15
#   conformance/soak/cpython.sh free-threaded     the same, and the threads at once for longer: an hour or so
#   conformance/soak/cpython.sh tsan              free-threaded, interpreter and extension under the thread sanitizer
#
# The source comes from python.org or from Debian, or is the file $PYTHON_SOURCE; by whatever way, it must have
# the SHA-256 below. Or the interpreter is $PYTHON_BUILT, which was built as stated here. Needs a C compiler, and the
# headers of OpenSSL, zlib, libffi and SQLite (Debian: libssl-dev zlib1g-dev libffi-dev libsqlite3-dev). Once built, it
# is kept under target/cpython.
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=$1
version=3.14.4
sha256=d923c51303e38e249136fc1bdf3568d56ecb03214efdef48516176d3d7faaef8
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
built=$target/cpython/$version-$kind
python=$built/bin/python3.14t
options=(--disable-gil)
case $kind in
gil) python=$built/bin/python3.14 options=() ;;
# For the development mode CPython has a variable, which the tests' own processes inherit.
debug) python=$built/bin/python3.14d options=(--with-pydebug) && export PYTHONDEVMODE=1 ;;
3.15)
    version=3.15.0rc2
    sha256=8d93af5eaaaea5adfd41bd786a7ba3f03f2ad1ab57c6a65e0b963deab91d5ad7
    built=$target/cpython/$version
    python=$built/bin/python3.15 options=()
    ;;
free-threaded) ;;
tsan) options+=(--with-thread-sanitizer) ;;
*) echo "$0: gil, debug, 3.15, free-threaded or tsan, not '$kind'" >&2 && exit 2 ;;
esac
python=${PYTHON_BUILT:-$python}

# What Debian's mirrors hold changes; the archive of the version is the same, whoever has it.
fetch() {
    local debian
    debian=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | head -n 1 || true)
    if [ -n "${PYTHON_SOURCE:-}" ]; then
        cp "$PYTHON_SOURCE" "$1"
    else
        curl -sSfLo "$1" "https://www.python.org/ftp/python/${version%%rc*}/Python-$version.tar.xz" ||
            curl -sSfLo "$1" "$debian/pool/main/p/python${version%.*}/python${version%.*}_${version/rc/~rc}.orig.tar.xz"
    fi
    echo "$sha256  $1" | sha256sum --check --quiet
}

# Under the sanitizer to compile the standard library takes longer than everything else: it is left out.
build() {
    local source=$target/cpython/Python-$version
    mkdir -p "$target/cpython/build-$kind"
    if [ ! -d "$source" ]; then
        fetch "$source.tar.xz"
        tar -xf "$source.tar.xz" -C "$target/cpython"
    fi
    cd "$target/cpython/build-$kind"
    "$source/configure" --quiet --prefix="$built" "${options[@]}"
    make --silent -j2
    if [ "$kind" = tsan ]; then
        make --silent sharedinstall inclinstall bininstall COMPILEALL_OPTS=-q
        cp -r "$source/Lib/." "$built/lib/python3.14t"
    else
        make --silent install
    fi
    "$python" -c 'import ctypes, sqlite3, ssl, zlib'
}

# What is kept of the tests; all of it stands in the log.
summary() {
    tee -a "$target/cpython-$kind.log" |
        grep -E '^(FAILED|ERROR) |Skipped: |^=+ .*(passed|failed|error)|^[0-9]+ (passed|failed)'
}

# Every test. A module that does not say that it can do without the GIL would turn it on, here with an error.
tests() {
    local venv
    venv=.venv-$(basename "$python")
    make --silent test-python MARKED= PYTHON="$python" 2>&1 | summary
    make --silent demo PYTHON="$python" >/dev/null
    [ "$kind" = free-threaded ] || return 0
    PYTHONPATH=conformance/kit/src CAI_DLPACK_FIGURES=large "$venv/bin/python" -m cai_conformance simulate -- \
        "$venv/bin/python" -m pytest -q \
        conformance/tests/ownership/test_together.py conformance/tests/ownership/test_claims.py 2>&1 | summary
}

mkdir -p conformance/results "$target"
# Said before the file of results is opened, which is tracked.
provenance="$kind, $(date -u +%Y-%m-%d), commit $(git describe --always --dirty --exclude='*'), $(uname -sm), $(nproc) cores"
{
    echo "$provenance"
    if [ ! -x "$python" ]; then
        (build >"$target/cpython-$kind.log" 2>&1) || { tail -n 20 "$target/cpython-$kind.log" && exit 1; }
    fi
    "$python" -VV
    if [ "$kind" = tsan ]; then
        conformance/soak/cpython_tsan.sh "$python" \
            "$target/cpython/Python-$version/Tools/tsan/suppressions_free_threading.txt"
    else
        tests
    fi
    echo "exit code 0"
} 2>&1 | grep --line-buffered -vE '^ +(Compiling|Downloaded|Downloading|Fresh|Finished) ' |
    tee "conformance/results/cpython-$kind.txt"
