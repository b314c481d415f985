"""What a view shows of itself: `repr`, and the picture of a notebook."""

from __future__ import annotations

import random
import re
from typing import Any
from xml.etree import ElementTree

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.doubles.producers import Cai, interface

ROWS, COLUMNS = 6, 10


def facts(text: str) -> dict[str, str]:
    """The facts of a repr by their names."""
    return dict(re.findall(r"(\w+)=(\([^)]*\)|0x\w+|\d+ \([a-z-]+\)|[\w.]+)", text))


def drawn(rng: random.Random) -> Any:
    shape = tuple(rng.choice([0, 1, 1, 2, 3, 5, 7, 12]) for _ in range(rng.randrange(5)))
    array = np.zeros(shape, rng.choice(["f4", "i2", "?", "c16"]))
    steps: Any = (..., *(slice(None, None, rng.choice([1, 1, 2, -1])) for _ in shape))
    return array[steps].transpose(rng.sample(range(len(shape)), len(shape)))


@pytest.mark.parametrize("seed", range(200))
def test_a_view_shows_what_its_attributes_say(seed: int) -> None:
    array = drawn(random.Random(seed))
    view = cd.view(array)
    told = facts(repr(view))
    assert told["shape"] == str(view.shape) and told["dtype"] == view.dtype.name
    assert told["elem_strides"] == str(view.elem_strides) and told["ptr"] == hex(view.ptr)
    assert (view.size, view.is_c_contiguous) == (array.size, array.flags.c_contiguous)
    assert view.is_f_contiguous == array.flags.f_contiguous
    assert (told["memory"], told["device"], told["stream"]) == (view.memory, str(view.device), "None")


@pytest.mark.parametrize("seed", range(200))
def test_the_picture_has_the_place_of_each_element(seed: int) -> None:
    array = drawn(random.Random(seed))
    view = cd.view(array)
    page = ElementTree.fromstring(view._repr_html_().replace("&", "&amp;"))
    shown = [int(text.text or "") for text in page.iter("{http://www.w3.org/2000/svg}text") if text.text != "..."]
    assert view.elem_strides is not None
    rows, columns = (1, 1, *view.shape)[-2:]
    down, across = (0, 0, *view.elem_strides)[-2:]
    placed = [row * down + column * across for row in range(min(rows, ROWS)) for column in range(min(columns, COLUMNS))]
    assert shown == (placed if view.size else [])
    named = {row[0].text: row[1][0].text for row in page.iter("tr") if row[0].tag == "th"}
    assert named == {name: fact for name, fact in facts(repr(view)).items() if name in named}


def test_streams_and_owner_are_named() -> None:
    producer = Cai(interface(shape=(3,), typestr="<f4", data=(4096, True), stream=2))
    text = repr(cd.view(producer, device_id=0))
    assert "stream=2 (per-thread)" in text and text.endswith(" read-only>")
    assert f"owner={Cai.__module__}.Cai" in text
    moved = repr(cd.view(producer, device_id=0, producer_stream=0x5A30))
    assert "stream=0x5a30" in moved and "producer_stream" not in moved


def test_a_view_that_has_ended_says_so() -> None:
    view = cd.view(Cai(interface(shape=(3,), typestr="<f4", data=(4096, False), stream=1)), device_id=0)
    with view.consume(1) as lent:
        assert not repr(lent).endswith("ended>")
    assert repr(lent).endswith(" ended>") and "CaiView ended" in lent._repr_html_()


def test_the_type_of_an_owner_is_text() -> None:
    odd = type('<b>&"', (Cai,), {})
    view = cd.view(odd(interface(shape=(1,), typestr="<f4", data=(4096, False))), device_id=0, producer_stream=None)
    assert "&lt;b&gt;&amp;&quot;" in view._repr_html_()


def test_a_block_shows_its_view_its_stream_and_whether_it_is_open() -> None:
    producer = Cai(interface(shape=(3,), typestr="<f4", data=(4096, True), stream=None))
    block = cd.view(producer, device_id=0).consume(1)
    told = "<Consume shape=(3,) dtype=float32 device=(2, 0) stream=1 (legacy) "
    assert repr(block) == f"{told}not open>"
    host = cd.view(np.zeros(3)).consume(0x7F00)
    with host as inside:
        assert repr(host) == "<Consume shape=(3,) dtype=float64 device=(1, 0) stream=0x7f00 open>"
        nested = inside.consume(1)
    assert repr(host).endswith("stream=0x7f00 not open>")
    assert repr(nested).endswith("stream=1 (legacy) not open>"), "its view has ended"
