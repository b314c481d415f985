"""`python -m cai_dlpack`: what the bridge does, and what it finds here."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

import cai_dlpack as cd


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cai_dlpack", description="Arrays that change hands on a GPU.")
    parser.add_argument("--version", action="version", version=cd.__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    demo = commands.add_parser("demo", help="hand-overs between real libraries, without the bridge and with it")
    demo.add_argument("--svg", type=Path, metavar="FILE", help="draws the streams of one hand-over")

    doctor = commands.add_parser("doctor", help="the driver, the libraries that are here, and what each speaks")
    doctor.add_argument("--pairs", action="store_true", help="hands a small array from each to each")
    doctor.add_argument("--json", action="store_true", help="prints data")

    explain = commands.add_parser("explain", help="what a conversion would do, and why")
    explain.add_argument("array", metavar="MODULE:EXPRESSION", help="an array, such as 'numpy:zeros(3)'")
    explain.add_argument("--to", metavar="LIBRARY", help="the consumer")
    explain.add_argument("--stream", type=int, help="the consumer's stream, as a number")

    chosen = parser.parse_args(arguments)
    if chosen.command == "explain":
        return explained(parser, chosen)
    from cai_dlpack import demo as demo_command
    from cai_dlpack import doctor as doctor_command

    if chosen.command == "doctor":
        return doctor_command.main(as_json=chosen.json, try_pairs=chosen.pairs)
    return demo_command.main(chosen.svg)


def explained(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> int:
    """Prints what `explain` says; returns 1 if the array would be refused."""
    module, colon, expression = chosen.array.partition(":")
    if not colon:
        parser.error(f"{chosen.array!r} has no colon: MODULE:EXPRESSION, such as numpy:zeros(3)")
    sys.path.insert(0, "")
    try:
        array = eval(expression, dict(vars(importlib.import_module(module))))
    except Exception as error:
        parser.error(f"{chosen.array!r}: {type(error).__name__}: {error}")
    try:
        found = cd.explain(array, to=chosen.to, stream=chosen.stream)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    print(found)
    return 0 if found.refused is None else 1


def piped() -> int:
    """Runs the command; ends quietly, with 1, if the reader of its output has gone, as `head` does."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(piped())
