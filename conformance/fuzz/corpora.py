"""Reads and writes what is kept for the Rust targets: conformance/rust/fuzz/corpora/TARGET.txt, a line each, in hex.

python -m conformance.fuzz.corpora unpack TARGET FOLDER     writes each input as a file, as libFuzzer wants it
python -m conformance.fuzz.corpora keep TARGET FOLDER       keeps the files of the folder, and no others
"""

from __future__ import annotations

import sys
from hashlib import sha1
from pathlib import Path

CORPORA = Path(__file__).parents[1] / "rust" / "fuzz" / "corpora"


def main() -> None:
    action, target, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    kept = CORPORA / f"{target}.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if action == "unpack":
        for line in kept.read_text().split():
            data = bytes.fromhex(line)
            (folder / sha1(data).hexdigest()).write_bytes(data)
    else:
        inputs = {path.read_bytes() for path in folder.iterdir()} - {b""}
        kept.write_text("".join(f"{data.hex()}\n" for data in sorted(inputs, key=lambda data: (len(data), data))))


if __name__ == "__main__":
    main()
