"""What valgrind watches: conversions, refusals, foreign threads and ends, without pytest around them.

valgrind ... python under_valgrind.py            does it
python under_valgrind.py --read LOG              fails where an error or a leak has our code on its stack
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

OURS = re.compile(r"cai_dlpack|_core\.")
LEAK_OR_ERROR = re.compile(r"definitely lost|indirectly lost|Invalid (read|write|free)|uninitialised|Mismatched")


def work() -> None:
    import gc

    import cai_dlpack as cd
    import dlpack_abi as abi
    import native
    from producers import Dlpack, Legacy, cai
    from test_malformed_cai import ROWS
    from test_malformed_dlpack import TENSOR_ROWS
    from waiting import until

    def refused(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except (TypeError, ValueError, BufferError, RuntimeError):
            return
        raise AssertionError("accepted")

    made, producer = abi.make(), cai()
    for _ in range(100):
        view = cd.view(producer, ordinal=0)
        for version in (None, (1, 3)):
            view.__dlpack__(stream=-1, max_version=version)
            cd.from_dlpack(view.__dlpack__(stream=-1, max_version=version))
        cd.from_dlpack(Dlpack(made))
        cd.view(Legacy(abi.make(versioned=False)))
        view.to_cai()
    for row in ROWS:
        refused(lambda row=row: cd.view(cai(**{row.key: row.value}), ordinal=0))
    for malformed in TENSOR_ROWS:
        refused(lambda row=malformed: cd.from_dlpack(Dlpack(abi.make(**row.changes), device=(abi.CPU, 0))))
    tensors = [abi.consume(cd.view(cai(), ordinal=0).__dlpack__(stream=-1, max_version=(1, 3))) for _ in range(200)]
    native.storm(tensors, gil=True, threads=2)
    assert until(lambda: cd.stats()["pending"] == 0)
    chain = cd.view(producer, ordinal=0)
    for _ in range(500):
        chain = cd.from_dlpack(chain.__dlpack__(stream=-1, max_version=(1, 3)))
    del chain, view
    gc.collect()
    assert cd.stats()["live"] == 0, cd.stats()


def read(log: Path) -> int:
    """Valgrind's blocks are parted by empty lines, once its own prefix is gone."""
    text = re.sub(r"^==\d+== ?", "", log.read_text(errors="replace"), flags=re.MULTILINE)
    blocks = [block for block in text.split("\n\n") if LEAK_OR_ERROR.search(block)]
    ours = [block for block in blocks if OURS.search(block)]
    print(f"{len(blocks)} reports, {len(ours)} with our code on their stack")
    print(*ours, sep="\n\n")
    print(text[text.rfind("LEAK SUMMARY") :])
    if "LEAK SUMMARY" not in text and "All heap blocks were freed" not in text:
        return 2
    return 1 if ours else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        raise SystemExit(read(Path(sys.argv[2])))
    work()
