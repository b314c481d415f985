"""Device memory between actors of Ray by CUDA IPC: run by `test_ray_shared`, as a process registers one transport."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import cai_dlpack as cd
import numpy as np
import ray
from cai_conformance import Sim
from cai_dlpack import ray as bridge

from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach.arrays import on_device
from conformance.tests.simulated.machine import Machine

bridge.register(ipc=True)


def part() -> np.ndarray[Any, Any]:
    """Made where it is used: an array that is pickled arrives in C order."""
    return np.arange(24.0).reshape(4, 6)[:, :4]


NUMBERS = part()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    """Work of its driver is done when somebody waits for it, and not before."""

    def __init__(self, key: str | None = None) -> None:
        if key is not None:
            bridge._users_key = lambda: key.encode()
        self.machine = Machine(Sim())
        self.machine.set_current(0)
        self.machine.control.schedule = "lazy"
        self.sent: dict[str, Any] = {}

    @ray.method(tensor_transport="cai_dlpack")
    def make(self, kind: str) -> list[cd.CaiView]:
        stream = self.machine.stream()
        view = on_device(self.machine, part(), stream, False)
        if kind == "pool":
            view = cd.from_dlpack(NUMBERS, device="cuda")
        self.sent[kind] = view
        return [view, cd.view(NUMBERS.copy())] if kind == "mixed" else [view]

    def write(self, kind: str) -> None:
        view = self.sent[kind]
        view.synchronize()
        self.machine.write(view.ptr, bytes(8))

    def keep(self, views: list[cd.CaiView]) -> list[tuple[Any, ...]]:
        self.kept = views
        return [(np.array(np.from_dlpack(view, device="cpu")), view.device, view.elem_strides) for view in views]

    def first(self) -> float:
        return float(np.from_dlpack(self.kept[0], device="cpu")[0, 0])

    def let_go(self) -> None:
        del self.kept
        gc.collect()

    def live(self) -> int:
        gc.collect()
        return int(cd.stats()["live"])

    def forget(self) -> None:
        self.sent.clear()
        gc.collect()


def settles(value: Any, expected: int) -> bool:
    end = time.monotonic() + 20
    while value() != expected and time.monotonic() < end:
        time.sleep(0.2)
    return bool(value() == expected)


def kept_by(other: Any, sent: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = ray.get(other.keep.remote(sent), timeout=60)
    return found


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
    of_class: Any = Actor
    one, other, stranger = of_class.remote(), of_class.remote(), of_class.remote("another key")

    sent = one.make.remote("device")
    ((values, device, strides),) = kept_by(other, sent)
    assert np.array_equal(values, NUMBERS) and device == (2, 0), "it was not ready"
    assert strides == (6, 1), "it is a copy"
    # An alias: what the sender writes later is seen, where the store has a snapshot.
    ray.get(one.write.remote("device"))
    assert ray.get(other.first.remote()) == 0.0
    ((values, _, strides),) = kept_by(stranger, sent)
    assert np.array_equal(values, NUMBERS) and strides == (4, 1), "another key has opened it"

    # The sender keeps the array until the receiver has let go.
    del sent
    ray.get(one.forget.remote())
    time.sleep(1)
    assert ray.get(other.first.remote()) == 0.0
    ray.get([other.let_go.remote(), stranger.let_go.remote()])
    assert settles(lambda: ray.get(one.live.remote()), 0), "the sender keeps what nobody has"

    mixed = kept_by(other, one.make.remote("mixed"))
    assert [device for _, device, _ in mixed] == [(2, 0), (1, 0)]
    assert all(np.array_equal(values, NUMBERS) for values, *_ in mixed)
    assert [strides for *_, strides in mixed] == [(6, 1), (4, 1)]
    # Of a pool: not shared, and so stored.
    ((values, device, _),) = kept_by(other, one.make.remote("pool"))
    assert np.array_equal(values, NUMBERS) and device == (2, 0)
    ray.shutdown()
    print("shared between actors: right")


if __name__ == "__main__":
    main()
