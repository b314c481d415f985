#!/usr/bin/env bash
# Every Rust test of the library and of the simulator with each allocation watched, and leaks looked for
# at the end. Needs a nightly compiler: `rustup toolchain install nightly`. No suppressions; two tests are left out,
# which leak on purpose: of a driver that cannot have a graph keep an owner, or that refuses both an event and a wait, the
# owner stays for ever, and is out of reach.
set -euo pipefail
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/asan
mkdir -p conformance/results
# Asked before the file of results is opened, which is tracked.
commit=${COMMIT:-$(git describe --always --dirty --exclude='*')}
provenance="asan and lsan, $(date -u +%Y-%m-%d), commit $commit, $(rustc +nightly --version)"
{
    echo "$provenance"
    # By --config, which the builds that the tests start do not inherit: the simulator that they load as
    # libcuda.so.1 is a plain one, as another process may need it too. Its own tests are instrumented.
    # A test asks for more memory than there is, and wants the refusal: `allocator_may_return_null`.
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
        cargo +nightly --config "target.$host.rustflags=['-Zsanitizer=address']" \
        test --locked --no-fail-fast --target "$host" --target-dir "$target" \
        --package cai-dlpack --package cusim --package cusim-control \
        --lib --test '*' --features cai-dlpack/half,cai-dlpack/cudarc,cai-dlpack/ipc -- \
        --skip uncompilable --skip where_the_graph_cannot_keep_it_the_owner_stays_for_ever \
        --skip an_owner_that_nothing_waits_for_stays \
        --skip a_slice_that_is_dropped_elsewhere_is_freed_after_its_work_or_never \
        --skip elements_that_nothing_waits_for_are_not_read_in_silence --skip an_owner_goes_if_the_context_of_its_guard_has_gone
    echo "exit code 0"
} 2>&1 | grep --line-buffered -vE '\.\.\. ok$|^ +(Compiling|Downloaded|Downloading|Fresh) ' | tee conformance/results/asan.txt
