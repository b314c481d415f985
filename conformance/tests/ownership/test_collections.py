"""Collections in the middle of a conversion, whose finalisers empty what is being read.

Before 3.12 CPython collects where an object is allocated, afterwards between two byte codes. So here a collection comes
at each allocation in turn. What is freed is overwritten (`-X dev`), so that its use shows.
"""

from __future__ import annotations

import textwrap

import pytest

from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter, run

BEFORE = """
    import gc
    import cai_dlpack as cd
    from conformance.tests.doubles.producers import Cai, interface

    class Garbage:
        def __init__(self, harm):
            self.harm, self.me = harm, self

        def __del__(self):
            self.harm()
            ended.append(self)

    ended = []

    def fresh(text):
        "A str that nothing else refers to."
        return "".join(list(text))

    def convert(make):
        "Converts with a collection at the first allocation, then at the second, and so on."
        for later in range(1, 60):
            gc.collect()
            shown, harm = make()
            array = Cai(shown)
            Garbage(harm)
            # CPython keeps the memory of small tuples for new ones; this fills that store.
            spare = [tuple([number, number]) for number in range(3000)]
            del spare
            gc.enable()
            gc.set_threshold(gc.get_count()[0] + later)
            try:
                {entry}(array{device})
            except Exception:
                pass
            finally:
                gc.disable()
                gc.set_threshold(0)

    gc.disable()
"""
MAKE = {
    "a descr with a lone surrogate": """
        descr = [tuple(["\\ud800", fresh("<f4")])]
        return interface(descr=descr), descr.clear
    """,
    "a descr whose type is a lone surrogate": """
        descr = [tuple([fresh(""), fresh("<\\ud800")])]
        return interface(descr=descr), descr.clear
    """,
    "a descr of many fields": """
        descr = [tuple([f"x{number}", fresh("<f4")]) for number in range(30)]
        return interface(typestr="|V120", descr=descr), descr.clear
    """,
    "a shape that is a list": """
        shape = [2**20 + number for number in range(30)]
        return interface(shape=shape), shape.clear
    """,
    "strides that are a list": """
        strides = [2**20 + number for number in range(30)]
        return interface(shape=(1,) * 30, strides=strides), strides.clear
    """,
    "the dict of a typestr with a lone surrogate": """
        shown = interface(typestr=fresh("<\\ud800"))
        return shown, shown.clear
    """,
    "the dict of an array that is accepted": """
        shown = interface(typestr=fresh("<f4"), shape=tuple([2**40, 1]), data=tuple([2**45, False]))
        return shown, shown.clear
    """,
    "the dict of an array with a mask": """
        shown = interface(mask=Cai(interface(typestr="|b1")))
        return shown, shown.clear
    """,
}
ENTRIES = {
    "view": ("cd.view", ", device_id=0"),
    "to_dlpack": ("cd.to_dlpack", ", device_id=0"),
    "explain": ("cd.explain", ""),
    "split_masked": ("cd.split_masked", ", device_id=0"),
}


@EACH_INTERPRETER
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("make", MAKE)
def test_what_is_freed_is_not_read(make: str, entry: str, interpreter: Interpreter) -> None:
    function, device = ENTRIES[entry]
    before = textwrap.dedent(BEFORE).replace("{entry}", function).replace("{device}", device)
    body = textwrap.indent(textwrap.dedent(MAKE[make]), "    ")
    after = 'convert(make)\nassert len(ended) > 10, f"only {len(ended)} collections came in time"\n'
    command = [interpreter.executable, "-X", "dev"]
    exit_code, printed = run(command, f"{before}def make():{body}\n{after}", interpreter.package)
    assert (exit_code, printed) == (0, "")
