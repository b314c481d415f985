"""The report as one page of HTML, with nothing beside it: for a maintainer who reads one finding at a time."""

from __future__ import annotations

from html import escape

from cai_conformance.judge.check import Severity
from cai_conformance.judge.report import Report
from cai_conformance.judge.run import Outcome, Result

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .7rem .9rem; border-radius: 6px; overflow-x: auto; }
.facts { color: #888; } .counts { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1.2rem 0; padding: 0; }
.counts li { list-style: none; border: 1px solid var(--line); border-radius: 6px; padding: .35rem .8rem; }
.counts b { font-size: 1.2rem; } .counts .none { opacity: .5; }
.profiles td, .profiles th { text-align: right; font-weight: normal; padding: .2rem .6rem; }
.profiles th { color: #888; } .profiles tr > :first-child { text-align: left; }
article { border: 1px solid var(--line); border-left-width: 6px; border-radius: 6px; }
article { padding: .6rem 1rem; margin: 1rem 0; }
article.violation { border-left-color: #c62828; } article.deviation { border-left-color: #e09000; }
article.recommendation { border-left-color: #1f7ab8; } article.accepted { border-left-color: #888; }
article h3 { font-size: 1rem; margin: .2rem 0; } article p { margin: .4rem 0; } .tag { color: #888; font-size: .85rem; }
blockquote { margin: .6rem 0; padding-left: .8rem; border-left: 3px solid var(--line); }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid var(--line); padding: .3rem .5rem; vertical-align: top; }
td:first-child { font-family: ui-monospace, monospace; font-size: 13px; white-space: nowrap; }
"""

_HEADINGS = {
    Severity.VIOLATION: ("Violations", "The specification demands otherwise, or the process ended on what it allows."),
    Severity.DEVIATION: (
        "Deviations",
        "The specification demands otherwise, and others are known to tolerate it; or what it forbids was taken, or "
        "ended the process.",
    ),
    Severity.RECOMMENDATION: ("Recommendations", "The specification advises otherwise, or says nothing."),
}


def text(report: Report) -> str:
    """The page."""
    counts = report.counts
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(report.target)}: conformance</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.kind)} <code>{escape(report.target)}</code></h1>",
        f'<p class="facts">{escape(report.date)} · {escape(versions)} · CUDA driver: {escape(report.driver)}</p>',
        '<ul class="counts">',
        *(f"<li{'' if count else ' class=none'}><b>{count}</b> {escape(name)}</li>" for name, count in counts.items()),
        "</ul>",
        _profiles(report),
    ]
    for severity, (heading, meaning) in _HEADINGS.items():
        failed = report.failed(severity)
        if failed:
            parts.append(f"<h2>{heading}</h2><p>{meaning}</p>")
            parts += [_article(result, severity.value) for result in failed]
    accepted = [result for result in report.results if report.is_accepted(result)]
    if accepted:
        parts.append("<h2>Accepted</h2>")
        parts += [_article(result, "accepted", report.accepted[result.check.id]) for result in accepted]
    parts.append(_rest(report, Outcome.NOT_RUN, "Not run"))
    parts.append(_rest(report, Outcome.PASSED, "Passed"))
    parts.append("</body></html>\n")
    return "\n".join(part for part in parts if part)


def _profiles(report: Report) -> str:
    """The counts of each profile, if there are several."""
    found = report.by_profile
    if len(found) < 2:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("profile", *report.counts))
    rows = [[escape(profile), *(str(count or "") for count in counts.values())] for profile, counts in found.items()]
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="profiles"><tr>{head}</tr>{body}</table>'


#: Specifications by the names that a reader knows.
_SPECS = {"CAI": "CUDA Array Interface", "array API": "Python array API"}


def _expected(result: Result) -> str:
    """The claim that does not hold, as a sentence."""
    subject = "it " if result.check.profile.endswith("consumer") else ""
    return f"Expected: {subject}{result.check.says}"


def _marked(text: str) -> str:
    """Text with code between backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _article(result: Result, kind: str, reason: str = "") -> str:
    check, source = result.check, result.check.source
    lines = [
        f'<article class="{kind}" id="{escape(check.id)}"><h3>{_marked(_expected(result))}</h3>',
        f'<p class="tag"><code>{escape(check.id)}</code>, {escape(check.group)}</p>',
        f"<p>Found: {escape(result.evidence)}</p>",
        f'<blockquote>{escape(source.sentence)}<br><span class="tag">',
        f'<a href="{escape(source.url)}">{escape(_SPECS.get(source.spec, source.spec))}, since version '
        f"{escape(source.since)}</a></span></blockquote>",
    ]
    if reason:
        lines.append(f"<p>Accepted: {escape(reason)}</p>")
    if result.program:
        lines.append(f"<pre>{escape(result.program)}</pre>")
    return "".join([*lines, "</article>"])


def _rest(report: Report, outcome: Outcome, heading: str) -> str:
    rows = [result for result in report.results if result.outcome is outcome]
    if not rows:
        return ""
    cells = [
        f"<tr><td>{escape(r.check.id)}</td><td>{_marked(r.check.says)}"
        + (f'<br><span class="tag">{escape(r.evidence[:300])}</span>' if r.evidence else "")
        + "</td></tr>"
        for r in rows
    ]
    return f"<h2>{heading}</h2><details><summary>{len(rows)} checks</summary><table>{''.join(cells)}</table></details>"
