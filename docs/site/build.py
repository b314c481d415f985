"""Builds the site: `make docs`.

    python docs/site/build.py FOLDER

The pages are those of the repository. What they link to is copied along, so that each link is right on a forge and on
the site. mkdocs refuses links and anchors that lead nowhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings/python/wheels"))
import address  # noqa: E402

LINK = re.compile(r"\[([^]]+)\]\(([^)#\s]+)(#[^)]*)?\)")
RUST = re.compile(r"^```rust[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Below the guides in the results of a search, since their readers are few.
LATER = ["docs/design.md", "CHANGELOG.md", "docs/safety.md"]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def visible(block: re.Match[str]) -> str:
    """A Rust block as rustdoc shows it: without the lines that are there for the compiler alone."""
    return "```rust\n" + re.sub(r"^#( .*)?\n", "", block[1], flags=re.MULTILINE) + "```"


def copy(pages: Path) -> None:
    """Copies the pages, and what they link to, to where they lie in the repository."""
    left, done = list(PAGES), set()

    def followed(link: re.Match[str]) -> str:
        target = (path.parent / link[2]).resolve()
        if link[2].startswith(("http:", "https:")) or not target.exists():
            return link[0]  # mkdocs tells of what is not there
        if target.is_dir():
            return link[1]  # a folder has no page
        left.append(target)
        return link[0]

    while left:
        path = left.pop()
        if path in done:
            continue
        done.add(path)
        to = pages / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = RUST.sub(visible, path.read_text(encoding="utf-8"))
            head = "---\nsearch:\n  boost: 0.5\n---\n" if str(path.relative_to(ROOT)) in LATER else ""
            to.write_text(head + LINK.sub(followed, text), encoding="utf-8")
        else:
            shutil.copy(path, to)


def check_search(html: Path) -> None:
    """Fails if the index of the search lacks a page."""
    index = json.loads((html / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    wanted = {str(page.relative_to(ROOT).with_suffix(".html")) for page in PAGES}
    wanted = {"index.html" if name == "README.html" else name for name in wanted}
    if missing := wanted - found:
        sys.exit(f"the search does not find {', '.join(sorted(missing))}")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    copy(pages)
    shutil.copy(ROOT / "docs" / "site" / "wide.css", pages)
    settings = (ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    if repository := address.repository(ROOT):
        settings += f"repo_url: {repository}\n"
    (folder / "mkdocs.yml").write_text(f"docs_dir: {pages}\nsite_dir: {folder / 'html'}\n{settings}", encoding="utf-8")
    options = ["--quiet", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([sys.executable, "-m", "mkdocs", "build", *options], check=True, env=quiet)
    html = folder / "html"
    check_search(html)
    print(f"{html}/index.html; a browser searches it if it is served: python -m http.server -d {os.path.relpath(html)}")


if __name__ == "__main__":
    main()
