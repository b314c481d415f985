"""Code of others that a call runs: of stream objects, of producers, and of libraries' tables, with a hook in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Dlpack, OwningStream, StreamObject, interface


class Hook:
    """What is to happen once, at some point of the code of others."""

    def __init__(self) -> None:
        self.then: Callable[[], object] | None = None

    def __call__(self) -> None:
        then, self.then = self.then, None
        if then:
            then()


class HookedStream(StreamObject):
    """A stream object that calls a hook as it is read."""

    def __init__(self, handle: int, hook: Callable[[], object]) -> None:
        super().__init__(handle)
        self.hook = hook

    def __cuda_stream__(self) -> tuple[int, int]:
        self.hook()
        return super().__cuda_stream__()


class HookedOwningStream(OwningStream):
    """The same, which ends its stream, too."""

    def __init__(self, handle: int, end: Callable[[int], None], hook: Callable[[], object]) -> None:
        super().__init__(handle, end)
        self.hook = hook

    def __cuda_stream__(self) -> tuple[int, int]:
        self.hook()
        return super().__cuda_stream__()


class HookedCai:
    """An array that keeps the object of its stream, and calls a hook as its interface is read."""

    def __init__(self, data: int, stream: StreamObject, hook: Callable[[], object]) -> None:
        self.data, self.stream, self.hook = data, stream, hook

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.hook()
        return interface(data=(self.data, False), stream=self.stream.handle)


class HookedDlpack(Dlpack):
    """An array that calls a hook before its device is told, and before and after it is exported.

    `wait` makes a stream wait for the data, a default stream of the context that was `current` at the call. Without
    a stream it is the host that waits.
    """

    def __init__(
        self,
        made: abi.Made,
        current: Callable[[], int],
        wait: Callable[[int | None, int], object],
        hook: Callable[[], object],
    ) -> None:
        super().__init__(made)
        self.current, self.wait, self.hook = current, wait, hook

    def __dlpack_device__(self) -> Any:
        self.hook()
        return super().__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        context = self.current()
        self.hook()
        if keywords.get("stream") != -1:
            self.wait(keywords.get("stream"), context)
        capsule = super().__dlpack__(**keywords)
        self.hook()
        return capsule


def exchanger(
    hook: Callable[[], object],
    stream: int,
    device: tuple[int, int],
    data: int,
    wait: Callable[[int | None, int], object] | None = None,
    current: Callable[[], int] = int,
    **functions: Any,
) -> Any:
    """An object of a class with an exchange table, whose work stream calls the hook.

    With `wait` its `__dlpack__` is that of `HookedDlpack`, too, which some calls prefer.
    """

    def work_stream(_device_type: int, _device_id: int, out: Any) -> int:
        hook()
        out[0] = stream
        return 0

    producer = exchange.Producer(abi.make(device=device, data=data))
    table = exchange.table(producer, work_stream=exchange.WorkStream(work_stream), **functions)
    members: dict[str, Any] = {}
    if wait is not None:
        array = HookedDlpack(producer.made, current, wait, hook)
        members["__dlpack__"] = lambda _self, **keywords: array.__dlpack__(**keywords)
    return exchange.make_type(exchange.capsule(table), producer, **members)()
