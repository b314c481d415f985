"""Writes what the extension says of itself into `_core.pyi`: docstrings, and the lines of declared functions.

    python bindings/python/stub.py            rewrites the stub
    python bindings/python/stub.py --check    exit code 1 if it is not as it would be written

The types of PyO3's methods and attributes stand in the stub by hand; mypy.stubtest compares their names and
defaults with the extension. What is declared in Rust by `signature!` comes from there whole.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

from cai_dlpack import _core

STUB = Path(__file__).resolve().parent / "python" / "cai_dlpack" / "_core.pyi"


def documented(node: ast.FunctionDef | ast.ClassDef, text: str | None) -> None:
    """Puts a docstring in place of the one that stands there, and of `...`."""
    body = [line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    if text:
        depth = node.col_offset + 4
        lines = inspect.cleandoc(text).splitlines()
        text = "\n".join([lines[0], *(" " * depth + line if line else "" for line in lines[1:])])
        if len(lines) > 1:
            text += "\n" + " " * depth
        body.insert(0, ast.Expr(ast.Constant(text)))
    node.body = body or [ast.Expr(ast.Constant(...))]


def declared(name: str, node: ast.FunctionDef) -> ast.FunctionDef:
    """The function as Rust declares it, if it does."""
    line = _core._stub.get(name)
    if line is None:
        return node
    function = ast.parse(line).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.col_offset = node.col_offset
    return function


def written(text: str) -> str:
    """The stub `text`, with what the extension says of itself."""
    module = ast.parse(text)
    for at, node in enumerate(module.body):
        if isinstance(node, ast.FunctionDef):
            node = module.body[at] = declared(node.name, node)
            documented(node, getattr(_core, node.name).__doc__)
        elif isinstance(node, ast.ClassDef) and hasattr(_core, node.name):
            kind = getattr(_core, node.name)
            documented(node, kind.__doc__)
            for inner, method in enumerate(node.body):
                if isinstance(method, ast.FunctionDef):
                    method = node.body[inner] = declared(f"{node.name}.{method.name}", method)
                    own = kind.__dict__.get(method.name)
                    is_ours = not (method.name.startswith("__") and inspect.ismethodwrapper(own))
                    is_slot = type(own).__name__ == "wrapper_descriptor"
                    documented(method, None if is_slot or not is_ours else getattr(own, "__doc__", None))
    text = ast.unparse(module)
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    before = STUB.read_text()
    after = written(before)
    if "--check" in sys.argv:
        if after != before:
            print(f"{STUB.name} is not as the extension says: run `make stub`", file=sys.stderr)
        return int(after != before)
    STUB.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
