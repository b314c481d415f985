"""Tests what `make docs` checks of the site that it has built."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from conformance.tests.interpreter.process import ROOT


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))  # which the script changes
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lacks", [None, "index.html", "docs/python.html", "CHANGELOG.html"])
def test_a_page_that_the_search_does_not_find_fails_the_build(
    lacks: str | None, build: ModuleType, tmp_path: Path
) -> None:
    pages = ["index.html", *(str(page.relative_to(ROOT).with_suffix(".html")) for page in ROOT.glob("docs/*.md"))]
    pages += [f"{name}.html" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
    found = [{"location": f"{page}#a-heading"} for page in pages if page != lacks]
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text(json.dumps({"docs": found}))
    if lacks is None:
        build.check_search(tmp_path)
    else:
        with pytest.raises(SystemExit, match=f"does not find {lacks}$"):
            build.check_search(tmp_path)
