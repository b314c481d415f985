"""The table's functions that need no GIL, called without it in the midst of each call that PyO3 counts.

PyO3 takes such a thread for attached. Code of others may have let go of the GIL by then: a `nogil` block of Cython, a
`gil_scoped_release` of pybind11, ctypes.
"""

from __future__ import annotations

import sys
import textwrap

import pytest

from conformance.tests.ownership.subprocesses import run

BEFORE = """
    import contextlib, ctypes, gc, logging, sys, time, warnings
    import cai_dlpack as cd
    import numpy as np
    from cai_conformance import abi, exchange
    from conformance.tests.ownership import native

    table = exchange.table_of(cd.CaiView)
    told = []

    def ask(prototype):
        address, place = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        work_stream = prototype(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, place)
        allocator = prototype(ctypes.c_int, address, place, address, address)
        out = ctypes.c_void_p()
        code = work_stream(table.work_stream)(2, 0, ctypes.byref(out))
        tensor, shape = abi.DLTensor(), (ctypes.c_int64 * 1)(4)
        tensor.ndim, tensor.shape = 1, ctypes.addressof(shape)
        tensor.dtype, tensor.device = abi.DLDataType(2, 32, 1), abi.DLDevice(1, 0)
        made = ctypes.c_void_p()
        allocated = allocator(table.allocator)(ctypes.addressof(tensor), ctypes.byref(made), None, None)
        if made.value:
            managed = abi.DLManagedTensorVersioned.from_address(made.value)
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(made.value)
        told.append((code, out.value, allocated))

    def ask_both(*_, **__):
        ask(ctypes.PYFUNCTYPE)
        ask(ctypes.CFUNCTYPE)

    CAI = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": None}

    class Producer:
        @property
        def __cuda_array_interface__(self):
            ask_both()
            return CAI

    class Quiet:
        __cuda_array_interface__ = CAI

    view = cd.view(Quiet(), device_id=0)
"""

AFTER = """
    assert told, "nothing has asked"
    assert set(told) == {(0, STREAM, told[0][2])}, told
    print("right")
"""

#: Each runs code of others in a call that PyO3 counts.
CALLS = {
    "explain": "cd.explain(Producer(), to='torch', device_id=0)",
    "share": """
        try:
            cd.share(Producer())
        except (cd.Refusal, cd.DriverError):
            pass
    """,
    "a warning": """
        warnings.showwarning = ask_both
        warnings.simplefilter("always")
        block = view.consume(7)
        block.__enter__()
        del block
    """,
    "a logger": """
        class Handler(logging.Handler):
            def emit(self, record):
                ask_both()

        logger = logging.getLogger("cai_dlpack")
        logger.addHandler(Handler())
        logger.propagate = False
        with cd.policy(trace=True):
            cd.view(view)
    """,
    "a producer's table": """
        made = abi.make(device=(2, 0))
        producer = exchange.Producer(made)

        def work(device_type, device_id, out):
            ask_both()
            out[0] = 0
            return 0

        asked = exchange.table(producer, work_stream=exchange.WorkStream(work))
        cd.view(exchange.make_type(exchange.capsule(asked), producer)()).producer_stream
    """,
    "a dtype": """
        class Described:
            @property
            def dtype(self):
                ask_both()
                return np.dtype("f8")

        cd.from_dlpack(np.arange(4.0)).__array__(Described())
    """,
}

#: On the thread that ends owners, all of whose life PyO3 counts as one call.
FINALISER = """
    class Ends(Quiet):
        def __del__(self):
            ask_both()

    def deleted():
        return abi.consume(cd.view(Ends(), device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))

    with contextlib.suppress(cd.Refusal):
        cd.view(Quiet())  # the driver is asked, so that the main thread ends nothing from here on
    with cd.use_stream(7, device_id=0):
        native.storm([deleted()], gil=True)
        ctypes.CDLL(None).usleep(300_000)  # in C, and without the GIL
    STREAM = None  # The thread is in no block.
"""


@pytest.mark.parametrize("where", [*CALLS, "a finaliser"])
def test_the_functions_take_the_gil(where: str) -> None:
    if where == "a finaliser":
        code = FINALISER
    else:
        call = textwrap.indent(textwrap.dedent(CALLS[where]).strip(), "        ")
        code = f"\n    STREAM = 7\n    with cd.use_stream(7, device_id=0):\n{call}\n"
    assert run([sys.executable], textwrap.dedent(BEFORE + code + AFTER)) == (0, "right\n")
