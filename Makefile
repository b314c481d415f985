# `make demo` and `make test` do all their own set-up: they need Rust, Python 3.10 to 3.14
# and a C linker, and write to .venv and target only.
#
#   make demo                        what the bridge does, on your GPU or on a simulated driver
#   make test                        every Rust and Python test
#   make check                       formatting, lints, types, documentation
#   make conformance                 every installed pair of libraries, as a table; KEEP=1 replaces the kept one
#   make torch                       the same for torch on the CPU, with tests of its own; takes 1.3 GB
#   make pycuda                      builds PyCUDA from source, for `make conformance`
#   make soak MINUTES=30             what takes longer: races, the simulator, ownership, sanitizers
#   make bench                       nanoseconds, beside the C floor and the libraries of the field
#   make bench-torch                 tensors of torch, in torch's own environment
#   make bench-instructions          instructions, beside the C floor; fails over a budget, or on a rise above 5%
#   make bench-memory                bytes per view, and no growth over ten million conversions
#   make test PYTHON=python3.12      with an interpreter of your choice

# Tried in this order. Each is run before it is chosen: a name on PATH proves nothing.
PYTHON  ?= python3 python3.14 python3.13 python3.12 python3.11 python3.10
# An interpreter that you choose gets an environment of its own.
VENV    := .venv$(if $(filter file,$(origin PYTHON)),,-$(notdir $(firstword $(PYTHON))))
BIN     := $(VENV)/bin
TARGET  := $(or $(CARGO_TARGET_DIR),target)

# As maturin builds, so do the tests and lints: for one interpreter, and without linking to
# libpython, which many machines lack. No Rust test calls Python; those tests are Python's own.
export PYO3_PYTHON := $(abspath $(BIN))/python
export PYO3_BUILD_EXTENSION_MODULE := 1

USABLE_PYTHON := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))
RUST_SOURCES  := $(shell find src bindings/python/src -name '*.rs') \
                 $(wildcard build.rs Cargo.toml Cargo.lock bindings/python/Cargo.toml)
WHEEL_SOURCES := $(RUST_SOURCES) $(shell find bindings/python/python -name '*.py*' -not -path '*/__pycache__/*') \
                 bindings/python/pyproject.toml
PYTHON_CODE   := bindings conformance
# The conformance kit, which finds the simulated driver in Cargo's target folder.
KIT           := PYTHONPATH=$(abspath conformance/kit/src)

.PHONY: bench bench-torch bench-instructions bench-memory help demo test test-rust test-python check check-rust check-python soak asan valgrind loom candle torch conformance pycuda simulator clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.package simulator
	$(KIT) $(BIN)/python bindings/python/demo

test: test-rust test-python

# tvm-ffi's crate has a workspace of its own, and its library from the Python package.
test-rust: $(VENV)/.requirements simulator
	cargo test --workspace --locked --features cai-dlpack/half
	PATH="$(abspath $(BIN)):$$PATH" LD_LIBRARY_PATH="$$($(BIN)/tvm-ffi-config --libdir)" \
	    cargo test --locked --manifest-path conformance/rust/tvm-ffi/Cargo.toml --target-dir $(TARGET)/tvm-ffi

test-python: $(VENV)/.package $(VENV)/.examples simulator
	$(KIT) $(BIN)/python -m cai_conformance simulate -- $(BIN)/python -m pytest

check: check-rust check-python

# The library must stand without its features. cudarc needs a CUDA version, which the library
# leaves to others: its tests choose one. The wheel for 3.12 and later can be checked with any
# interpreter, or none.
check-rust: $(VENV)/.requirements
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package cai-dlpack --all-targets -- -D warnings
	cargo clippy --locked --package cai-dlpack --all-targets --features cudarc -- -D warnings
	cargo clippy --locked --package cai-dlpack --features pyo3 -- -D warnings
	PYO3_NO_PYTHON=1 cargo clippy --locked --package cai-dlpack-python --features abi3 -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items
	cargo package --quiet --locked --package cai-dlpack --allow-dirty

check-python: $(VENV)/.package
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cai_dlpack

# --- set-up: a stamp file for each step that is slow even when there is nothing to do ---

$(BIN)/python:
	@for python in $(PYTHON); do \
	    if $$python -c '$(USABLE_PYTHON)' 2>/dev/null; then exec $$python -m venv --clear $(VENV); fi; \
	done; \
	echo 'No usable Python among: $(PYTHON)' >&2; \
	echo 'Needed: 3.10 to 3.14 with the venv module (Debian: apt install python3-venv).' >&2; \
	exit 1

# What has no wheel for a free-threaded interpreter, which no environment marker names. Tests that need it
# are listed as not run (conformance/tests/absent.py).
NO_WHEEL_FREE_THREADED := numba-cuda

$(VENV)/.requirements: conformance/requirements.txt | $(BIN)/python
	@if $(BIN)/python -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'; \
	    then grep -vE '^($(NO_WHEEL_FREE_THREADED))==' $<; else cat $<; fi > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r $(VENV)/requirements.txt
	@touch $@

# The real wheel, installed as a user would: nothing is imported from the source tree.
$(VENV)/.package: $(VENV)/.requirements $(WHEEL_SOURCES)
	@rm -rf $(VENV)/wheel
	$(BIN)/maturin build --release --locked --manifest-path bindings/python/Cargo.toml \
	    --interpreter $(BIN)/python --out $(VENV)/wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

# Every installed pair of libraries x dtype x layout, through the bridge: a table, printed, saved under
# target/results and compared with the one in conformance/results, which KEEP=1 replaces; a cell that was OK
# and is not any more is an error. The libraries are large, and have an environment of their own. On a GPU: the second line without `simulate`, where CuPy is installed too.
MATRIX := $(VENV)-matrix

conformance: $(MATRIX)/.package simulator
	$(KIT) $(MATRIX)/bin/python -m cai_conformance simulate -- \
	    $(MATRIX)/bin/python -m conformance.matrix.run $(if $(KEEP),--keep)

$(MATRIX)/.requirements: conformance/requirements.txt conformance/matrix/requirements.txt | $(BIN)/python
	$(BIN)/python -m venv --clear $(MATRIX)
	$(MATRIX)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
	    -r conformance/requirements.txt -r conformance/matrix/requirements.txt
	@touch $@

$(MATRIX)/.package: $(MATRIX)/.requirements $(VENV)/.package
	$(MATRIX)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

# PyCUDA, which has no wheel, into the environment of `make conformance`: a minute and a half, with a C++
# compiler. Linked against the simulated driver, under the name that a real one has too.
pycuda: $(MATRIX)/.package simulator
	conformance/matrix/pycuda.sh $(MATRIX) $(TARGET)/release/cusim

# torch's tensors of the CPU, both ways, and its pairs of the matrix. torch comes without its dependencies,
# which are 4 GB of CUDA's libraries that its CPU side never calls: stand-ins lie where torch looks for them.
TORCH        := $(VENV)-torch
TORCH_WHEEL  := torch==2.15.0

torch: $(TORCH)/.package simulator
	$(KIT) $(TORCH)/bin/python -m cai_conformance simulate -- \
	    $(TORCH)/bin/python -m pytest -p conformance.tests.conftest conformance/matrix/torch_cpu
	$(KIT) $(TORCH)/bin/python -m cai_conformance simulate -- \
	    $(TORCH)/bin/python -m conformance.matrix.run --room host --only torch,numpy,apache-tvm-ffi \
	        --name matrix-torch $(if $(KEEP),--keep)

$(TORCH)/.requirements: conformance/requirements-torch.txt conformance/matrix/torch_cpu/stand_ins.py | $(BIN)/python
	$(BIN)/python -m venv --clear $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r $<
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps $(TORCH_WHEEL)
	site=$$($(TORCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))') && \
	    $(TORCH)/bin/python conformance/matrix/torch_cpu/stand_ins.py $$site/torch $$site/nvidia/cu13/lib
	@touch $@

$(TORCH)/.package: $(TORCH)/.requirements $(VENV)/.package
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

# candle's tensors of the CPU as views, and back (docs/rust.md): a workspace of its own, as candle is large.
candle:
	cargo test --locked --manifest-path conformance/rust/candle/Cargo.toml --target-dir $(TARGET)/candle

# The example extensions: built as their users would, and found by the tests like any other module.
$(VENV)/.examples: $(VENV)/.requirements $(RUST_SOURCES) $(shell find bindings/example bindings/example-peer -type f)
	@rm -rf $(VENV)/examples
	for example in example example-peer; do \
	    $(BIN)/maturin build --release --locked --manifest-path bindings/$$example/Cargo.toml \
	        --interpreter $(BIN)/python --out $(VENV)/examples || exit 1; \
	done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(VENV)/examples/*.whl
	@touch $@

# Every order of the steps of the threads that release and claim: what it needs is built apart.
loom:
	RUSTFLAGS='--cfg loom' cargo test --release --locked --target-dir $(TARGET)/loom \
	    --package cai-dlpack --lib queue::orders

# What `make test` has no time for, kept in conformance/results with date and commit; MINUTES=5 for
# less, PARTS='races asan' for some of it. The sanitizers need a nightly compiler and valgrind.
MINUTES ?= 30
soak: $(VENV)/.package $(VENV)/.examples simulator
	$(KIT) $(BIN)/python -m conformance.soak.run --minutes $(MINUTES) $(PARTS)

asan:
	$(MAKE) soak PARTS=asan

valgrind:
	$(MAKE) soak PARTS=ownership-valgrind

# --- how fast, and how large: docs/performance.md ---

bench: $(VENV)/.package simulator
	$(KIT) $(BIN)/python -m cai_conformance simulate -- $(BIN)/python benches/compare.py $(BENCH)

bench-torch: $(TORCH)/.package $(VENV)/.examples simulator
	$(KIT) $(TORCH)/bin/python -m cai_conformance simulate -- $(TORCH)/bin/python benches/compare.py --torch $(BENCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(VENV)/examples/*.whl
	$(TORCH)/bin/python benches/extraction.py --torch

# Counts do not jitter, so that a machine with other work will do. Without valgrind nothing is counted,
# which is said, and is a failure.
bench-instructions: $(VENV)/.package $(VENV)/.examples
	@command -v valgrind >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && { apt-get update -qq; apt-get install -qq -y valgrind >/dev/null; }; } || true
	$(BIN)/python benches/instructions.py --budgets $(BENCH)
	$(BIN)/python benches/extraction.py

bench-memory: $(VENV)/.package
	$(BIN)/python benches/memory.py --conversions 10000000

simulator:
	cargo build --release --locked --package cusim

clean:
	rm -rf .venv .venv-* $(TARGET) .mypy_cache .ruff_cache .pytest_cache
