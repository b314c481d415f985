"""The address of the repository, which is one line of Cargo.toml, and what is made of it for the package index.

The index shows README.md away from the files that it links to: the links are made absolute, to the tag of the version.
While there is no address, nothing is changed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

# Code, which is left as it is, or a link to a file: mark, words, target.
CODE_OR_LINK = re.compile(r"```.*?```|`[^`]*`|(!?)\[([^]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)", re.DOTALL)


def _in_workspace(root: Path, key: str) -> str:
    """The value of a key of `[workspace.package]`."""
    manifest = (root / "Cargo.toml").read_text(encoding="utf-8")
    table = manifest.partition("[workspace.package]\n")[2].partition("\n[")[0]
    found = re.search(rf'^{key} = "(.*)"$', table, re.MULTILINE)
    return found[1] if found else ""


def repository(root: Path) -> str:
    """The address, without a slash at the end; "" as long as there is none."""
    return _in_workspace(root, "repository").rstrip("/")


def version(root: Path) -> str:
    """The version of the package."""
    return _in_workspace(root, "version")


def absolute(text: str, address: str, tag: str) -> str:
    """A page of the repository's root, with links that lead to its files from anywhere; pictures as such."""

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if target is None:
            return found[0]
        return f"{mark}[{words}]({address}/{'raw' if mark else 'blob'}/{tag}/{target})"

    return CODE_OR_LINK.sub(link, text)


@contextlib.contextmanager
def published(root: Path, project: Path) -> Iterator[None]:
    """Has a Python project, which lies in the repository at `root`, know the address while it is built."""
    address = repository(root)
    if not address:
        yield
        return
    readme, settings = project / "README.md", project / "pyproject.toml"
    to, told = readme.readlink() if readme.is_symlink() else None, settings.read_text(encoding="utf-8")
    text = readme.read_text(encoding="utf-8")
    pages = f"{address}/blob/v{version(root)}"
    urls = f'\n[project.urls]\n"Source Code" = "{address}"\nDocumentation = "{pages}/README.md"\n'
    urls += f'Changelog = "{pages}/CHANGELOG.md"\nIssues = "{address}/issues"\n'
    try:
        readme.unlink()
        readme.write_text(absolute(text, address, f"v{version(root)}"), encoding="utf-8")
        settings.write_text(f"{told.rstrip()}\n{urls}", encoding="utf-8")
        yield
    finally:
        settings.write_text(told, encoding="utf-8")
        readme.unlink()
        if to is None:
            readme.write_text(text, encoding="utf-8")
        else:
            readme.symlink_to(to)
