"""The sentences that the checks quote: those of DLPack's header stand in it, and all have the addresses of versions."""

from __future__ import annotations

import re
from pathlib import Path

import tvm_ffi
from cai_conformance.checks import CHECKS
from cai_conformance.judge import sources
from cai_conformance.judge.check import Source
from cai_conformance.judge.versions import VERSIONS

SOURCES = {name: value for name, value in vars(sources).items() if isinstance(value, Source)}
HEADER = Path(tvm_ffi.__file__).parent / "include" / "dlpack" / "dlpack.h"


def words(text: str) -> str:
    """The words of a comment of C, without what marks it as one."""
    text = re.sub(r"^\s*(/\*!?\*?|\*/|\*|//)?\s?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\\(brief|note|param|return|sa)\s*", "", text)
    return re.sub(r"\s+", " ", text.replace("`", "").replace("*/", " "))


def stands_in(sentence: str, text: str) -> bool:
    """Whether the parts of a sentence stand in a text, one after the other."""
    place = 0
    for part in sentence.split("[...]"):
        place = text.find(words(part).strip(), place)
        if place < 0:
            return False
    return True


def version_of(text: str) -> tuple[int, int]:
    found = dict(re.findall(r"define DLPACK_(MAJOR|MINOR)_VERSION (\d+)", text))
    return int(found["MAJOR"]), int(found["MINOR"])


def test_each_sentence_of_the_header_stands_in_it() -> None:
    text = HEADER.read_text()
    version = version_of(text)
    quoted = [source for source in SOURCES.values() if source.url.endswith("/dlpack.h")]
    today = [
        source
        for source in quoted
        if tuple(map(int, source.since.split("."))) <= version
        and (not source.until or tuple(map(int, source.until.split("."))) >= version)
    ]
    assert len(today) > 40 and len(quoted) - len(today) <= 2
    assert [source.sentence for source in today if not stands_in(source.sentence, words(text))] == []


def test_a_sentence_that_is_changed_is_found() -> None:
    text = words(HEADER.read_text())
    assert stands_in("strides of the tensor (in number of elements, not bytes)", text)
    assert not stands_in("strides of the tensor (in number of bytes)", text)
    assert not stands_in("It is not safe [...] the consumer must call the deleter", text)


def test_an_address_is_that_of_a_version() -> None:
    for name, source in SOURCES.items():
        main = source.spec == "DLPack" and source.since in ("1.2", "1.3")  # without a tag
        assert "/latest/" not in source.url and ("/main/" in source.url) == main, name
        assert source.spec != "array API" or source.since in source.url, name


def test_each_version_of_a_source_can_be_asked_for() -> None:
    for source in SOURCES.values():
        assert {source.since, source.until or source.since} <= set(VERSIONS[source.spec]), source


def test_each_sentence_is_quoted_by_a_check() -> None:
    used = {check.source.sentence for check in CHECKS}
    unused = {name for name, source in SOURCES.items() if source.sentence not in used}
    assert not unused
