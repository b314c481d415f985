"""Views between two actors of Ray: what arrives is what left, and it was ready. Device memory is simulated."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import ray

from conformance.reach.actors import Actor
from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach.arrays import drawn
from conformance.tests.reach.page import stated

#: The bytes of Ray's store.
STORE = 128 << 20


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=STORE, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    of_class: Any = Actor
    made = of_class.remote(), of_class.remote()
    yield made
    for actor in made:
        ray.kill(actor)


def settles(value: Any, expected: int) -> bool:
    """Whether a number becomes the expected one: Ray frees in the background."""
    end = time.monotonic() + 20
    while value() != expected and time.monotonic() < end:
        time.sleep(0.2)
    return bool(value() == expected)


@pytest.mark.parametrize("memory", ["host", "device"])
def test_what_arrives_is_what_left_and_was_ready(pair: tuple[Any, Any], memory: str) -> None:
    one, other = pair
    chosen = random.Random(memory)
    for _ in range(25):
        array, read_only = drawn(chosen), chosen.random() < 0.5
        sent = one.make.remote(array, memory, read_only)
        values, device, shape, dtype, flag, process = ray.get(other.read.remote(sent), timeout=60)
        assert values.tobytes() == array.tobytes() and shape == array.shape and dtype == str(array.dtype)
        assert flag == read_only and process not in (os.getpid(), ray.get(one.process.remote()))
        assert device == ((2, 0) if memory == "device" and array.size else (1, 0))


@pytest.mark.parametrize("memory", ["host", "device"])
def test_many_views_travel_beside_other_objects(pair: tuple[Any, Any], memory: str) -> None:
    one, other = pair
    arrays = [np.arange(float(size)) for size in range(1, 40)]
    found = ray.get(other.read_many.remote(one.make_many.remote(arrays, memory)), timeout=60)
    assert all(np.array_equal(*both) for both in zip(found, arrays, strict=True))


def test_the_process_that_made_the_actors_gets_a_view_and_puts_one(pair: tuple[Any, Any]) -> None:
    one, other = pair
    found = ray.get(one.make.remote(np.arange(5.0), "device"), timeout=60)
    assert found.device == (2, 0) and np.array_equal(np.from_dlpack(found, device="cpu"), np.arange(5.0))
    sent = ray.put(cd.view(np.arange(7.0)), _tensor_transport="cai_dlpack")
    assert np.array_equal(ray.get(other.read.remote(sent), timeout=60)[0], np.arange(7.0))


def test_memory_of_another_device_is_refused_by_rule(pair: tuple[Any, Any]) -> None:
    with pytest.raises(Exception, match=r"copy-refused"):
        ray.get(pair[0].make_of_another_device.remote(), timeout=60)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("memory", ["host", "pinned", "managed", "device"])
def test_copies_at_each_end(pair: tuple[Any, Any], memory: str, read_only: bool) -> None:
    """Those of the page, which has a second pair of numbers for what arrives as the host's and may be written."""
    one, other = pair
    sent = one.make_watched.remote(memory, read_only)
    ray.get(other.prepare_to_receive.remote())
    received = ray.get(other.copied_to_receive.remote(sent), timeout=60)
    found = ray.get(one.copied_to_send.remote()), received
    assert found == stated("ray", memory, int(memory in ("host", "pinned") and not read_only))


def free() -> int:
    """The bytes of Ray's store that no object has."""
    return int(ray.available_resources()["object_store_memory"])


def test_nothing_is_left_of_what_was_sent(pair: tuple[Any, Any]) -> None:
    """Neither views in the actors nor memory in the store."""
    one, other = pair
    before = free()
    bases = [ray.get(actor.live.remote()) for actor in pair]
    for memory in ("host", "device"):
        for _ in range(5):
            assert ray.get(other.read.remote(one.make.remote(np.arange(1 << 17) * 1.0, memory)), timeout=60)[0][7] == 7
    assert settles(lambda: ray.get(one.live.remote()), bases[0])
    assert settles(lambda: ray.get(other.live.remote()), bases[1])
    assert settles(free, before)


def test_an_actor_that_is_killed_is_an_error_and_nothing_is_left(pair: tuple[Any, Any]) -> None:
    """What it held is an error, or is still in the store and right; the other actor works on, and keeps nothing."""
    one, other = pair
    base = ray.get(other.live.remote())
    sent = one.make.remote(np.arange(1 << 17) * 1.0, "device")
    process = ray.get(one.process.remote())
    ray.wait([sent], fetch_local=False, timeout=60)
    os.kill(process, signal.SIGKILL)
    try:
        assert np.array_equal(ray.get(other.read.remote(sent), timeout=90)[0], np.arange(1 << 17) * 1.0)
    except ray.exceptions.GetTimeoutError:
        pytest.fail("it hangs")
    except ray.exceptions.RayError:
        pass
    with pytest.raises(ray.exceptions.RayError):
        ray.get(one.make.remote(np.arange(3.0), "host"), timeout=60)
    del sent
    found = ray.get(other.make.remote(np.arange(3.0), "host"), timeout=60)
    assert np.array_equal(np.asarray(found), np.arange(3.0))
    del found
    assert settles(lambda: ray.get(other.live.remote()), base)


@pytest.mark.parametrize("how", ["its owner is killed", "it is released"])
def test_an_object_that_is_lost_is_an_error_and_no_other_bytes(pair: tuple[Any, Any], how: str) -> None:
    one, other = pair
    base, before = ray.get(other.live.remote()), free()
    sent = one.make.remote(np.arange(1 << 17) * 1.0, "device")
    ray.wait([sent], fetch_local=False, timeout=60)
    if how == "it is released":
        ray.get(one.release_stored.remote())
    else:
        os.kill(ray.get(one.process.remote()), signal.SIGKILL)
    assert settles(free, before)
    for _ in range(8):  # the store gives memory that nobody owns to others only when it is full
        ray.put(np.full(STORE >> 5, 7.0))
    try:
        found = ray.get(other.read.remote(sent), timeout=60)
    except ray.exceptions.ObjectLostError:
        pass
    else:
        # A store that has not noticed the death yet keeps the object, and what it gives is right.
        assert how == "its owner is killed" and np.array_equal(found[0], np.arange(1 << 17) * 1.0)
        del found
    del sent
    found = ray.get(other.make.remote(np.arange(3.0), "host"), timeout=60)
    assert np.array_equal(np.asarray(found), np.arange(3.0))
    del found
    assert settles(lambda: ray.get(other.live.remote()), base)
