"""The report as rich draws it, for a person at a terminal."""

from __future__ import annotations

from importlib.util import find_spec

from cai_conformance.judge.check import Severity
from cai_conformance.judge.report import Report

_STYLES = {Severity.VIOLATION: "bold red", Severity.DEVIATION: "yellow", Severity.RECOMMENDATION: "cyan"}


def is_there() -> bool:
    """Whether rich is installed: `pip install cai-conformance[rich]`."""
    return find_spec("rich") is not None


def show(report: Report) -> None:
    """Prints what failed, each with its program, and a table of the counts."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.rule import Rule
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, emoji=False, markup=False)
    for severity, style in _STYLES.items():
        for result in report.failed(severity):
            title = Text(f"{severity.value}  {result.check.id} ({result.check.group})", style=style)
            console.print(Rule(title, align="left", style=style))
            console.print(Text(result.check.says, style="bold"))
            console.print(Text(f"found: {result.evidence}"))
            console.print(Text(str(result.check.source), style="dim"))
            if result.program:  # without a frame, to be copied
                program = Syntax(result.program, "python", theme="ansi_dark", background_color="default")
                console.print(Padding(program, (1, 0)))
    for result in report.results:
        if report.is_accepted(result):
            console.print(f"accepted  {result.check.id}: {report.accepted[result.check.id]}")
    for key in report.needless:
        console.print(f"accepted  {key}, which did not fail: take it out of the configuration")
    totals = report.counts
    names = [name for name, count in totals.items() if count]
    table = Table("profile", title=report.title, title_justify="left", title_style="")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    by_profile = report.by_profile
    for profile, counts in by_profile.items():
        table.add_row(profile, *(str(counts[name] or "") for name in names))
    if len(by_profile) > 1:
        table.add_section()
        table.add_row("together", *(str(totals[name]) for name in names))
    console.print(table)
