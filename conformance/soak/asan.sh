#!/usr/bin/env bash
# Every Rust test of the library and of the simulator with each allocation watched, and leaks looked for
# at the end. Needs a nightly compiler: `rustup toolchain install nightly`. No suppressions; tests whose driver refuses twice
# leak on purpose, and are left out: the owner stays for ever then, and is out of reach.
set -euo pipefail
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/asan
kept_for_ever=(
    where_the_graph_cannot_keep_it_the_owner_stays_for_ever
    an_owner_that_nothing_waits_for_stays
    a_slice_that_is_dropped_elsewhere_is_freed_after_its_work_or_never
    elements_that_nothing_waits_for_are_not_read_in_silence
    an_owner_goes_if_the_context_of_its_guard_has_gone
    work_that_is_lost_is_waited_for_once
    a_question_about_a_capture_is_refused
    a_reader_whose_context_is_not_told
    a_reader_whose_context_could_not_be_made_current
    a_reader_of_another_context_of_which_nothing_is_known
    a_writer_waits_for_a_reader_of_which_nothing_is_known
    what_keeps_a_lost_stream_goes_where_its_context_stays
    lost_parts_keep_their_context
    a_lost_reader_keeps_its_context
    a_slice_that_is_never_let_free_is_tried_a_few_times
    cuCtxGetId__::nth_1_1::faults_4_4
)
# The sanitizer has variables on a stack of its own, so that what is left of the thread's is not known.
of_the_stack=(
    there_is_room_in_the_first_half_of_a_large_stack_for_what_uses_little
    what_is_let_go_of_after_a_long_chain_ends_at_once
    what_stands_beside_owners_ends_after_them_where_the_stack_is_large
)
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
        --skip uncompilable $(printf -- '--skip %s ' "${kept_for_ever[@]}" "${of_the_stack[@]}")
    echo "exit code 0"
} 2>&1 | grep --line-buffered -vE '\.\.\. ok$|^ +(Compiling|Downloaded|Downloading|Fresh) ' | tee conformance/results/asan.txt
