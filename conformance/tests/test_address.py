"""The address of the repository: one line of Cargo.toml, from which the rest follows at build time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT

sys.path.insert(0, str(ROOT / "bindings/python/wheels"))
import address

MADE_UP = "https://forge.example/arrays/cai-dlpack"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the step reads of the repository, with a made-up address."""
    manifest = (ROOT / "Cargo.toml").read_text("utf-8")
    changed = re.sub(r'^repository = ".*"$', f'repository = "{MADE_UP}/"', manifest, flags=re.MULTILINE)
    assert changed.count(MADE_UP) == 1
    (tmp_path / "Cargo.toml").write_text(changed, "utf-8")
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8"), "utf-8")
    project = tmp_path / "bindings" / "python"
    project.mkdir(parents=True)
    (project / "README.md").symlink_to("../../README.md")
    (project / "pyproject.toml").write_text((ROOT / "bindings/python/pyproject.toml").read_text("utf-8"), "utf-8")
    return tmp_path


def test_links_and_metadata_follow_from_the_address(tree: Path) -> None:
    project = tree / "bindings" / "python"
    before = [(project / name).read_text("utf-8") for name in ("README.md", "pyproject.toml")]
    with address.published(tree, project):
        readme = (project / "README.md").read_text("utf-8")
        settings = (project / "pyproject.toml").read_text("utf-8")
    pages = f"{MADE_UP}/blob/v{address.version(tree)}"
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```|`[^`]*`(?!\])", "", readme, flags=re.DOTALL))
    assert "`kernel[1, 1, s](v)`" in readme, "code is no link"
    assert links and all(re.match("https?:|#", link) for link in links)
    ours = [link for link in links if link.startswith(MADE_UP)]
    assert f"{pages}/docs/need.md" in ours and len(ours) > 10
    assert f"{MADE_UP}/raw/v{address.version(tree)}/docs/hand-over.svg" in ours
    for link in ours:
        path = re.sub(r"^.*?/(blob|raw)/[^/]+/", "", link).partition("#")[0]
        assert (ROOT / path).exists(), link
    assert f'"Source Code" = "{MADE_UP}"' in settings
    # Afterwards the files are as they were.
    assert (project / "README.md").is_symlink()
    assert before == [(project / name).read_text("utf-8") for name in ("README.md", "pyproject.toml")]


def test_without_an_address_nothing_is_changed(tree: Path) -> None:
    manifest = (tree / "Cargo.toml").read_text("utf-8").replace(f"{MADE_UP}/", "")
    (tree / "Cargo.toml").write_text(manifest, "utf-8")
    project = tree / "bindings" / "python"
    with address.published(tree, project):
        assert (project / "README.md").is_symlink() and "[project.urls]" not in (project / "pyproject.toml").read_text()


def test_the_address_stands_in_one_place() -> None:
    """Nowhere else is there a line to fill in, and none names another address of this repository."""
    given = address.repository(ROOT)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        if name.endswith((".toml", ".yml", ".md", ".py")) and name not in ("Cargo.toml", "CONTRIBUTING.md"):
            text = (ROOT / name).read_text("utf-8")
            assert not re.search(r'^(repository|repo_url|homepage)\s*[=:]\s*"?https?:', text, re.MULTILINE), name
            assert not given or given not in text, name
