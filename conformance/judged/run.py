"""Judges every installed library, keeps the results, and writes docs/conformance.md.

    python -m conformance.judged.run          the table, and the page
    python -m conformance.judged.run --check  whether the page is that of the kept results

On the simulated driver, by the kit's own command, each library in processes of its own. What is not installed keeps its
results, which have their own versions and dates.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cai_conformance.checks import CHECKS

from benches.dlpark.build import build
from conformance.judged.targets import NOT_JUDGED, TARGETS, Judged
from conformance.matrix.calls import PARTNERS
from conformance.matrix.installed import ABSENT, ELSEWHERE

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "conformance" / "results" / "judged.json"
PAGE = ROOT / "docs" / "conformance.md"
FINDINGS = ROOT / "docs" / "findings"
#: Crates of which a module of Python's is built, and where that is.
CRATES = {"dlpark": ROOT / "benches" / "dlpark"}
#: Where a violation or a crash is reported by anybody, by library and check, or when it was searched for in vain.
KNOWN: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "known.json").read_text())


def judged(target: Judged) -> dict[str, Any] | None:
    """The kit's report on a target; None if its library is not installed."""
    number = installed(target.library)
    if number is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "report.json"
        if target.library in CRATES:
            build(Path(name))
        command = [sys.executable, "-m", "cai_conformance", target.kind, target.target, "--json", str(out)]
        for profile in target.profiles:
            command += ["--profile", f"{profile}-{target.kind}"]
        if target.read:
            command += ["--read", target.read]
        for rule in target.only:
            command += ["--only", rule]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        if not out.exists():
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        report: dict[str, Any] = json.loads(out.read_text())
    report["library"] = f"{target.library} {number}"
    kept = ("id", "says", "severity", "evidence", "program")
    ran = {row["id"] for row in report["results"] if row["outcome"] != "not run"}
    profiles = [f"{profile}-{target.kind}" for profile in target.profiles]
    report["not run"] = [check.id for profile in profiles for check in CHECKS.of(profile) if check.id not in ran]
    report["failed"] = [
        {key: row[key] for key in kept if key in row} for row in report.pop("results") if row["outcome"] == "failed"
    ]
    report.pop("needless")
    return report


def installed(library: str) -> str | None:
    """Returns the version of a library; None if it is not installed, or is a crate and there is no cargo."""
    if library in CRATES:
        lock = re.search(rf'name = "{library}"\nversion = "(.*)"', (CRATES[library] / "Cargo.lock").read_text())
        return lock[1] if lock and shutil.which("cargo") else None
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def page(reports: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the page."""
    yield from HEAD.splitlines()
    yield ""
    yield "| library | | judged | checks run | violations | deviations | recommendations |"
    yield "|---|---|---|---|---|---|---|"
    for report in reports:
        counts = report["counts"]
        ran = counts["checks"] - counts["not run"]
        shown = report["target"].replace("conformance.judged.targets:", "").replace("conformance.tests.kit.", "")
        numbers = f"{counts['violations']} | {counts['deviations']} | {counts['recommendations']}"
        yield f"| {report['library']} | {report['kind']} | `{shown}` | {ran} | {numbers} |"
    yield ""
    yield "Not judged:"
    yield ""
    for what, why in not_judged().items():
        yield f"- {what}: {why}"
    yield ""
    yield from BETWEEN.splitlines()
    for report in reports:
        failed = [row for row in report["failed"] if row["severity"] == "violation"]
        if failed:
            yield ""
            yield f"### {report['library']}, {report['kind']} `{report['target'].rpartition(':')[2]}`"
            yield ""
            for row in failed:
                yield line(report, row)
    yield ""
    yield from CRASHES.splitlines()
    yield ""
    for report in reports:
        for row in report["failed"]:
            if row["severity"] != "violation" and crashed(row):
                subject = f"{report['kind']} `{report['target'].rpartition(':')[2]}`"
                yield f"- {report['library']}, {subject}: {line(report, row)[2:]}"
    yield ""
    yield from TOLERATED.splitlines()
    yield ""
    for report in reports:
        if rules := list(tolerated(report)):
            subject = f"{report['kind']} `{report['target'].rpartition(':')[2]}`"
            yield f"- {report['library']}, {subject}: {'; '.join(rules)}"
    yield ""


def tolerated(report: dict[str, Any]) -> Iterator[str]:
    """The ids of the checks that failed without a violation, by severity and profile."""
    for severity in ("deviation", "recommendation"):
        ids = [row["id"].partition(".") for row in report["failed"] if row["severity"] == severity]
        for profile in dict.fromkeys(profile for profile, _, _ in ids):
            rules = ", ".join(f"`{rule}`" for of, _, rule in ids if of == profile)
            yield f"{severity}s of `{profile}`: {rules}"


def line(report: dict[str, Any], row: dict[str, Any]) -> str:
    """A finding in one line, with what is known of it."""
    also = f". {linked(known(report, row))}" if known(report, row).startswith("https:") else ""
    return f"- `{row['id']}`, {row['says']}. Found: {plain(row['evidence'])}{also}"


def crashed(row: dict[str, Any]) -> bool:
    """Whether a failed check ended its process, or the one that ran its program."""
    return bool(re.search(r"\bcrashed: |\bprocess ended by SIG|\bhung: ", row["evidence"]))


def not_judged() -> dict[str, str]:
    """What has no target, with the reason: rows of the table of partners, and what `targets.py` names."""
    judged = {target.library for target in TARGETS}
    rows = {row["title"]: {**ELSEWHERE, **ABSENT}[name] for name, row in PARTNERS.items() if name not in judged}
    return {**rows, **NOT_JUDGED}


def known(report: dict[str, Any], row: dict[str, Any]) -> str:
    """What is known of a finding: the issue about it, or when none was found; "" if nobody has looked."""
    return KNOWN.get(report["library"].split()[0], {}).get(row["id"], "")


def linked(text: str) -> str:
    """What is known, with addresses as links."""
    return re.sub(r"https://github.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", r"[\1#\2](\g<0>)", text)


def findings(report: dict[str, Any]) -> Iterator[str]:
    """The violations and the crashes of one target as texts to send to its project."""
    for row in report["failed"]:
        if row["severity"] == "violation" or crashed(row):
            source = CHECKS[row["id"]].source
            subject = "it " if report["kind"] == "consumer" else ""
            yield f"## `{report['target'].rpartition(':')[2]}`, expected: {subject}{row['says']}"
            yield ""
            yield "```python"
            yield row.get("program") or "# Any array."
            yield "```"
            yield ""
            yield f"[{source.spec} {source.since}]({source.url}): {source.sentence}"
            yield ""
            yield f"Found with {report['library']}: {plain(row['evidence'])}."
            if row["severity"] != "violation":
                yield ""
                yield f"A {row['severity']}: {SEVERITIES[row['severity']]}"
            if found := known(report, row):
                yield ""
                yield f"Known: {found}" if found.startswith("https:") else f"Issues: {found}."
            yield ""


def findings_pages(reports: list[dict[str, Any]]) -> dict[str, str]:
    """By library, the file of its findings, if it has any."""
    texts: dict[str, list[str]] = {}
    for report in reports:
        if found := list(findings(report)):
            texts.setdefault(report["library"].split()[0], []).extend(found)
    head = HOW.splitlines()
    return {
        library: "\n".join([f"# {library}", "", *head, *needed(library), "", *lines]).rstrip() + "\n"
        for library, lines in texts.items()
    }


def needed(library: str) -> list[str]:
    """The lines about what the programs of a crate need; none for a library that pip installs."""
    return ["", BUILT[library]] if library in BUILT else []


def write_findings(reports: list[dict[str, Any]]) -> None:
    FINDINGS.mkdir(exist_ok=True)
    for old in FINDINGS.glob("*.md"):
        old.unlink()
    for library, text in findings_pages(reports).items():
        (FINDINGS / f"{library}.md").write_text(text)


def plain(text: str) -> str:
    """Evidence for a line of Markdown: without addresses, which differ from run to run."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    short = text if len(text) <= 200 else text[:200].rsplit(" ", 1)[0] + " ..."
    return "`" + " ".join(short.replace("`", "'").split()) + "`"


HEAD = """# The verdict on libraries

`cai-conformance` ([its README](../conformance/kit/README.md)) judges producers and consumers by the sentences of the
specifications. This page is what it says of the libraries that install on a machine without a GPU, on the simulated
driver; `make judged` writes it. The reports have the programs and the sources: `cai-conformance producer numpy:asarray
--html report.html`. What it says of arrays in the memory of a GPU, with race trials by kernels, is
[kept as it was printed](../conformance/results/gpu/judged.txt).

A check that a library has nothing for is not run: a library of the host has no streams. A consumer is given arrays that
the specification forbids, too: to take one, or to crash on it, is a deviation. The functions without a module
stand in `conformance/judged/targets.py`."""

BETWEEN = """## Violations

Some are decisions of the library, which has its reasons; some are known to it. Each stands with its program in
[docs/findings](findings/numba-cuda.md), a file for each library. `make judged` has run each program; `make test`
compares these files, and this page, with the kept results."""


CRASHES = """## Crashes on what is forbidden

A process that ends on an array that no producer may make, or after the interpreter has ended, is no violation. It is a
bug all the same, and stands with its program in [docs/findings](findings/numpy.md), too."""

TOLERATED = """## Deviations and recommendations

What the counts of the table are, by the rules of each profile: `cai-conformance checks` tells what a rule says, and
`cai-conformance consumer numpy:from_dlpack --only shape-null` what it finds."""

SEVERITIES = {
    "deviation": "the array is one that the specification forbids, of which it demands nothing.",
    "recommendation": "the specification only advises otherwise, or says nothing.",
}

#: What the programs of a crate need.
BUILT = {
    "dlpark": "`dlpark_path` is in `benches/dlpark` of this repository: it calls `ImportRequest` and `validate`.",
}

HOW = """Found by `cai-conformance`; written by `make judged`. Not sent.

The programs need the kit (`pip install cai-conformance`; in this repository `pip install conformance/kit`). Those with
memory of a device were found on its simulated driver: `python -m cai_conformance simulate -- python program.py`."""


def main() -> int:
    """Judges, or compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="", help="part of a library's name or target")
    options = parser.parse_args()
    kept = {row["target"]: row for row in json.loads(KEPT.read_text())} if KEPT.exists() else {}
    if not options.check:
        for target in TARGETS:
            if options.only in f"{target.library} {target.target}" and (report := judged(target)):
                kept[target.target] = report
                print(report["library"], report["kind"], report["target"], report["counts"], flush=True)
    reports = [kept[target.target] for target in TARGETS if target.target in kept]
    text = "\n".join(page(reports)) + "\n"
    if options.check:
        return 0 if PAGE.read_text() == text else 1
    KEPT.write_text(json.dumps(reports, indent=1) + "\n")
    PAGE.write_text(text)
    write_findings(reports)
    return 0


if __name__ == "__main__":
    sys.exit(main())
