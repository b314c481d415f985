"""`cai-conformance producer`, `consumer`, `pair` and `checks`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cai_conformance.checks import CHECKS
from cai_conformance.judge import isolate, judge, pair
from cai_conformance.judge.check import PROFILES
from cai_conformance.judge.config import accepted
from cai_conformance.judge.groups import GROUPS
from cai_conformance.judge.report import Report
from cai_conformance.judge.run import Result
from cai_conformance.judge.target import Target, Usage
from cai_conformance.judge.versions import NAMES, limits
from cai_conformance.report import badge, html, junit, rich_terminal, terminal


def add(commands: Any) -> None:
    """Adds the commands to those of a parser."""
    for kind, what in {
        "producer": "a function that takes a NumPy array and returns the library's own, such as numba.cuda:to_device",
        "consumer": "a function that takes an array of somebody's, such as cupy:asarray",
    }.items():
        parser = commands.add_parser(kind, help=f"judge {what.partition(',')[0]}")
        parser.add_argument("target", metavar="MODULE:FUNCTION", help=what)
        profiles = [profile for profile in PROFILES if profile != "pair"]
        parser.add_argument("--profile", action="append", choices=profiles, help="default: what it offers or takes")
        groups(parser)
        parser.add_argument(
            "--spec",
            action="append",
            default=[],
            metavar="SPEC=VERSION",
            help="leave out what is newer: cai=2, dlpack=1.0, array-api=2023.12",
        )
        if kind == "consumer":
            parser.add_argument("--read", metavar="MODULE:FUNCTION", help="makes a NumPy array of what it returns")
        parser.add_argument(
            "--only", action="append", help="one check by its id, or by its rule; the checks that it needs too"
        )
        parser.add_argument(
            "--in-process", action="store_true", help="run the checks here: for a debugger; a crash ends it"
        )
        reports(parser)
        parser.set_defaults(run=run_one)
    parser = commands.add_parser("pair", help="judge a producer and a consumer together")
    parser.add_argument("producer", metavar="MODULE:FUNCTION")
    parser.add_argument("consumer", metavar="MODULE:FUNCTION")
    parser.add_argument("--read", metavar="MODULE:FUNCTION", help="makes a NumPy array of what the consumer returns")
    reports(parser)
    parser.set_defaults(run=run_pair)
    parser = commands.add_parser("checks", help="list the checks")
    parser.add_argument("--profile", action="append", choices=PROFILES)
    groups(parser)
    parser.set_defaults(run=run_checks)


def groups(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses checks by what they are about."""
    meaning = "; ".join(f"{name}: {what}" for name, what in GROUPS.items())
    parser.add_argument("--group", action="append", choices=GROUPS, help=f"the checks of a group ({meaning})")


def seconds(text: str) -> float:
    """A number of seconds."""
    found = float(text)
    if not 0 < found < 86400:
        raise ValueError(text)
    return found


def reports(parser: argparse.ArgumentParser) -> None:
    """The options that are the same for every judgement."""
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", default=isolate.LIMIT, help="what a check may take (60)"
    )
    for name, what in {
        "json": "every result, with a stable schema",
        "junit": "JUnit's XML",
        "html": "one page to read and to send",
        "badge": "a badge as shields.io's endpoint reads it",
    }.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: cai-conformance.toml, if there is one")
    parser.add_argument("--plain", action="store_true", help="lines of text, also where rich could draw a table")
    parser.add_argument("--verbose", action="store_true", help="list what was not run, with the reasons")


def run_one(options: argparse.Namespace) -> int:
    """Judges a producer or a consumer; 0 without a violation, 1 with one."""
    isolate.LIMIT = options.timeout
    reasons, upto = accepted(options.config), versions(options.spec)
    can_write(options)
    known(options.only)
    target = Target(options.target)
    function = target.load()
    read = Target(options.read).load() if getattr(options, "read", None) else None
    is_producer = options.command == "producer"
    found_in = judge.profiles_of_producer if is_producer else judge.profiles_of_consumer
    profiles = options.profile or found_in(function)
    wrong = [profile for profile in profiles if not profile.endswith(options.command)]
    if wrong:
        raise Usage(f"--profile {wrong[0]}: a profile of a {options.command}")
    results: list[Result] = []
    for profile in dict.fromkeys(profiles):
        checks = selected(judge.chosen(profile, upto), options.only, options.group)
        if is_producer:
            found = list(judge.producer(target, function, checks, in_process=options.in_process))
        else:
            found = list(judge.consumer(target, function, read, checks, in_process=options.in_process))
        judge.need_one(profile, found)
        results += found
    if not results:
        raise Usage("no check is left to run")
    return write(Report(options.command, options.target, results, judge.driver_name(), reasons), options)


def run_pair(options: argparse.Namespace) -> int:
    """Judges two together."""
    isolate.LIMIT = options.timeout
    make, take = Target(options.producer), Target(options.consumer)
    read = Target(options.read) if options.read else None
    reasons = accepted(options.config)
    can_write(options)
    results = list(pair.judge(make, take, read))
    judge.need_one("pair", results)
    report = Report("pair", f"{options.producer} {options.consumer}", results, judge.driver_name(), reasons)
    if not report.counts["passed"] and not report.exit_code:
        raise Usage(f"nothing to judge: no array arrived; {results[0].evidence}")
    return write(report, options)


def run_checks(options: argparse.Namespace) -> int:
    """Lists the checks, each with the sentence that it comes from."""
    show(
        f"{check.id}  ({check.severity.value}, {check.group})  {check.says}\n    {check.source}"
        for check in CHECKS
        if not options.profile or check.profile in options.profile
        if not options.group or check.group in options.group
    )
    return 0


def versions(given: Iterable[str]) -> dict[str, str]:
    """The versions of specifications that were asked for."""
    found = {}
    for text in given:
        name, sign, number = text.partition("=")
        if not sign:
            raise Usage(f"--spec {text}: write one of {', '.join(f'{name}=VERSION' for name in NAMES)}")
        try:
            found.update(limits({name: number}))
        except ValueError as why:
            raise Usage(f"--spec {text}: {why}") from None
    return found


def known(only: list[str] | None) -> None:
    """Raises Usage for a check that does not exist."""
    names = {name for check in CHECKS for name in (check.id, check.rule)}
    for name in only or ():
        if name not in names:
            raise Usage(f"--only {name}: no such check; `cai-conformance checks` lists them")


def can_write(options: argparse.Namespace) -> None:
    """Raises Usage if a report cannot be written, before anything is judged."""
    for path in (options.json, options.junit, options.html, options.badge):
        if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise Usage(f"{path}: cannot be written")
        if path is not None and path.is_dir():
            raise Usage(f"{path} is a folder")


def selected(checks: list[Any], only: list[str] | None, group: list[str] | None = None) -> list[Any]:
    """Returns the checks that were asked for, with those that they need. One may be asked for by either way."""
    if not only and not group:
        return checks
    only, group = only or [], group or []
    by_rule = {check.rule: check for check in checks}
    wanted: set[str] = set()
    left = [check.rule for check in checks if {check.id, check.rule} & {*only} or check.group in group]
    while left:
        rule = left.pop()
        if rule not in wanted and rule in by_rule:
            wanted.add(rule)
            left += by_rule[rule].after
    return [check for check in checks if check.rule in wanted]


def write(report: Report, options: argparse.Namespace) -> int:
    """Writes the reports that were asked for, and prints one."""
    writers: list[tuple[Path | None, Callable[[], str]]] = [
        (options.json, lambda: json.dumps(report.as_json(), indent=1) + "\n"),
        (options.junit, lambda: junit.text(report)),
        (options.html, lambda: html.text(report)),
        (options.badge, lambda: json.dumps(badge.of(report)) + "\n"),
    ]
    for path, text in writers:
        if path is not None:
            path.write_text(text(), encoding="utf-8")
    if not options.plain and sys.stdout.isatty() and rich_terminal.is_there():
        rich_terminal.show(report)
        lines = []
    else:
        lines = list(terminal.lines(report, colour=sys.stdout.isatty()))
    if options.verbose:
        lines += ["", *terminal.not_run(report)]
    show(lines)
    return report.exit_code


def show(lines: Iterable[str]) -> None:
    """Prints lines to whatever reads them, if only their beginning."""
    lines = list(lines)
    if not lines:
        return
    encoding = sys.stdout.encoding or "ascii"
    try:
        print("\n".join(lines).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
