"""Judges valgrind's report on a Python process: python -m conformance.soak.valgrind_log LOG

What the interpreter and other libraries leave behind at their end is their own affair. An error, or a block
that nothing leads to any more, counts where a function of ours is on its stack: that is a failure. One kind
is told apart, and said: what PyO3 gives CPython to copy as it makes a class, once for each class.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

OURS = re.compile(r"cai_dlpack|pyo3|\b_core\.")
WRONG = re.compile(r"definitely lost|indirectly lost|Invalid |uninitialised|Mismatched|overlap")
OF_PYO3 = re.compile(r"pyo3::pyclass::create_type_object")


def main(log: Path) -> int:
    text = re.sub(r"^==\d+== ?", "", log.read_text(errors="replace"), flags=re.MULTILINE)
    summary = text.rfind("LEAK SUMMARY")
    if summary < 0:
        print("no summary: valgrind did not come to its end")
        return 2
    blocks = [block for block in text[:summary].split("\n\n") if WRONG.search(block)]
    ours = [block for block in blocks if OURS.search(block)]
    classes = [block for block in ours if OF_PYO3.search(block)]
    wrong = [block for block in ours if block not in classes]
    print(
        f"{len(blocks)} reports; {len(ours)} with our library on their stack, of these {len(classes)} classes of PyO3"
    )
    for block in classes:
        print(block.splitlines()[0])
    print(*wrong, sep="\n\n")
    print(text[summary:])
    print(f"{len(wrong)} of ours")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
