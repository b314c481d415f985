"""A view of another extension module's copy of the library: what makes nothing wait, and what `explain` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example
import cai_example_peer as peer
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Dlpack
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.moved_producers import KINDS
from conformance.tests.streams.race import LEGACY, NBYTES, Track
from conformance.tests.streams.test_capture import captures

__all__ = ["captures"]

#: Types with a dict, and without one.
DTYPES = {"float32": ((6,), (abi.FLOAT, 32, 1)), "bfloat16": ((12,), (abi.BFLOAT, 16, 1))}
#: Which stream is in a capture: the one where the data is ready, or where the producer has gone.
CAPTURED = (None, "ready", "new")


class Passed:
    """A view, and the one that another copy makes of it; the producer moves later."""

    def __init__(self, track: Track, kind: str, dtype: str, ready: int) -> None:
        self.machine = track.machine
        data = track.data if kind == "device" else getattr(track.machine, f"{kind}_memory")(NBYTES)
        shape, of = DTYPES[dtype]
        self.producer = exchange.Producer(abi.make(shape, dtype=of, device=KINDS[kind], data=data))
        self.producer.stream = ready
        self.own = cd.view(exchange.make_type(exchange.capsule(exchange.table(self.producer)), self.producer)())
        self.named = {"ready": ready, "new": track.machine.stream(0), "other": track.b}
        self.peers = peer.view_of(self.own)

    def go(self) -> None:
        self.producer.stream = self.named["new"]

    def done(self, call: Callable[[], Any]) -> tuple[list[tuple[str, int]], Any]:
        """Returns the calls that order streams, and why the call is refused."""
        self.machine.clear()
        refused = None
        try:
            call()
        except (BufferError, ValueError, TypeError) as error:
            refused = str(error)
        return self.machine.order(), refused


@pytest.fixture
def passed(request: pytest.FixtureRequest, track: Track) -> Iterator[Passed]:
    """Of the parameters' kind of memory and type."""
    kind, dtype = request.param
    made = Passed(track, kind, dtype, track.a)
    yield made
    made.machine.finish()
    made.machine.destroy_stream(made.named["new"])


EACH = pytest.mark.parametrize(
    "passed", [(kind, dtype) for kind in KINDS for dtype in DTYPES], ids="-".join, indirect=True
)


@EACH
@pytest.mark.parametrize("captured", CAPTURED, ids=str)
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("policy", ["event", "host", "none"])
def test_where_the_caller_says_that_the_data_is_ready_nothing_waits(
    policy: Any, moves: bool, captured: str | None, passed: Passed, captures: Captures
) -> None:
    if moves:
        passed.go()
    if captured:
        captures.begin(passed.named[captured])
    for said in (passed.named["other"], passed.named["ready"], LEGACY, None):
        with cd.policy(sync=policy):
            assert passed.done(partial(cd.view, passed.peers, producer_stream=said)) == ([], None)
            view, own = cd.view(passed.peers, producer_stream=said), cd.view(passed.own, producer_stream=said)
            assert (view.stream, view.producer_stream) == (own.stream, own.producer_stream)
            assert passed.done(partial(cd.explain, passed.peers, producer_stream=said)) == ([], None)
            told = cd.explain(passed.peers, producer_stream=said, stream=passed.named["other"])
            own_told = cd.explain(passed.own, producer_stream=said, stream=passed.named["other"])
        assert (told.ready, told.order, told.refused) == (own_told.ready, own_told.order, own_told.refused)
    captures.close()


@EACH
@pytest.mark.parametrize("captured", [None, "ready", "other"], ids=str)
@pytest.mark.parametrize("policy", ["event", "host", "none"])
def test_a_pass_alone_makes_nothing_wait(policy: Any, captured: str | None, passed: Passed, captures: Captures) -> None:
    if captured:
        captures.begin(passed.named[captured])
    with cd.policy(sync=policy):
        for take in (
            lambda: peer.view_of(passed.own),
            lambda: cd.view(passed.peers),
            lambda: cd.explain(passed.peers),
            lambda: cd.explain(passed.peers, stream=passed.named["other"]),
        ):
            assert passed.done(take) == ([], None)
    captures.close()


@EACH
@pytest.mark.parametrize("captured", CAPTURED, ids=str)
@pytest.mark.parametrize("policy", ["event", "host", "none"])
def test_explain_tells_the_wait_and_the_refusal_of_the_import(
    policy: Any, captured: str | None, passed: Passed, captures: Captures
) -> None:
    """The import waits for a producer that has moved, whatever the consumer asks for; by the policy of its own copy."""
    passed.go()
    if captured:
        captures.begin(passed.named[captured])
    with cd.policy(sync=policy):
        calls, refused = passed.done(lambda: cd.view(passed.peers))
        assert passed.done(lambda: cd.view(passed.own)) == (calls, refused)
        each: list[dict[str, Any]] = [{}, {"stream": -1}, {"to": "cuda.core", "stream": -1}]
        for asked in each:
            assert passed.done(partial(cd.explain, passed.peers, **asked)) == ([], None)
            found = cd.explain(passed.peers, **asked)
            assert found.refused == refused, asked
            if asked and not refused:
                assert found.driver_calls == tuple(name for name, _ in calls), asked
    captures.close()


@EACH
@pytest.mark.parametrize("captured", CAPTURED, ids=str)
@pytest.mark.parametrize("moves", [True, False])
def test_from_dlpack_makes_the_waits_of_its_call_alone(
    moves: bool, captured: str | None, passed: Passed, captures: Captures
) -> None:
    """Its dict, of which an import by DLPack asks whether the memory may be written, is read without a wait."""
    if moves:
        passed.go()
    if captured:
        captures.begin(passed.named[captured])
    for asked in (passed.named["other"], passed.named["ready"], passed.named["new"], LEGACY, -1, None):
        of_peers = passed.done(partial(cd.from_dlpack, passed.peers, stream=asked))
        assert of_peers == passed.done(partial(cd.from_dlpack, passed.own, stream=asked)), asked
    captures.close()


@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_memory_ready_on_another_context_s_default_stream(kind: str, track: Track) -> None:
    """Its dict is refused where that context is not current; the producer's default stream is that one's by now."""
    passed = Passed(track, kind, "float32", LEGACY)
    track.machine.set_current(1)
    try:
        own = passed.done(lambda: cd.view(passed.own))
        assert own == (one_event(LEGACY, LEGACY), None)
        assert passed.done(lambda: cd.view(passed.peers)) == own
        assert passed.done(lambda: peer.view_of(passed.peers)) == own
        assert passed.done(lambda: cd.explain(passed.peers)) == ([], None)
    finally:
        track.machine.set_current(0)


def test_memory_of_rocm_is_ready_where_the_caller_says() -> None:
    view = cd.view(Dlpack(abi.make((6,), device=(abi.ROCM, 0), data=0x7F0000001000)))
    for said in (None, 2, 0x5000):
        found = cd.view(peer.view_of(view), producer_stream=said)
        own = cd.view(view, producer_stream=said)
        assert (found.stream, found.producer_stream) == (own.stream, own.producer_stream)
        assert cd.explain(peer.view_of(view), producer_stream=said).refused is None


def test_what_has_the_streams_alone_is_explained_as_it_is_imported(track: Track) -> None:
    """It passes another view's capsule, and its dict is read by the getter."""
    view = cd.view(Passed(track, "device", "float32", track.a).own).on(track.b)

    class Proxy:
        _is_cai_view = True
        _streams = property(lambda _: getattr(view, "_streams"))  # noqa: B009
        __cuda_array_interface__ = property(lambda _: view.__cuda_array_interface__)

    for none in (property(lambda _: 1 / 0), property(lambda _: 3), None):
        kind = Proxy if none is None else type("Other", (Proxy,), {"_interface": none})
        told = cd.explain(kind())
        try:
            assert cd.view(kind()).stream == track.b
            assert told.refused is None
        except ZeroDivisionError:
            assert told.refused == "division by zero"


#: Imports by which a view is passed, beside `view`.
BESIDE: dict[str, Callable[[Any], cd.CaiView]] = {
    "from_cai": cd.from_cai,
    "split_masked": lambda view: cd.split_masked(view)[0],
}


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("captured", CAPTURED, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", BESIDE)
def test_other_imports_wait_as_that_of_one_s_own_view(
    by: str, kind: str, captured: str | None, policy: Any, track: Track, captures: Captures
) -> None:
    passed = Passed(track, kind, "float32", track.a)
    passed.go()
    if captured:
        captures.begin(passed.named[captured])
    with cd.policy(sync=policy):
        own = passed.done(lambda: cd.view(passed.own))
        assert passed.done(lambda: BESIDE[by](passed.own)) == own
        assert passed.done(lambda: BESIDE[by](passed.peers)) == own
        for view in (passed.own, passed.peers):
            assert passed.done(partial(cd.from_cai, view, producer_stream=track.b)) == ([], None)
    captures.close()


#: Imports of a view by name or by a function of Rust, each of which is refused whatever is waited for.
REFUSED: dict[str, Callable[[Any], object]] = {
    "shape": lambda view: cd.view(view, shape=(7,)),
    "dtype": lambda view: cd.view(view, dtype="float64"),
    "from_cai, shape": lambda view: cd.from_cai(view, shape=(7,)),
    "from_cai, dtype": lambda view: cd.from_cai(view, dtype="float64"),
    "Rust, axes": lambda view: cai_example.add(view, view),
    "Rust, read-only": cai_example.zero,
    "capsule, shape": lambda view: cd.to_dlpack(view, shape=(7,)),
    "capsule, device": lambda view: cd.to_dlpack(view, dl_device=(abi.CUDA, 9), copy=False),
}


@pytest.mark.parametrize("by", REFUSED)
@pytest.mark.parametrize("whose", ["own", "peer's"])
def test_a_refused_import_leaves_no_wait(whose: str, by: str, track: Track) -> None:
    passed = Passed(track, "device", "float32", track.a)
    view = cd.view(passed.own, read_only=True) if by == "Rust, read-only" else passed.own
    view = peer.view_of(view) if whose == "peer's" else view
    passed.go()
    calls, refused = passed.done(partial(REFUSED[by], view))
    assert refused
    assert not calls
