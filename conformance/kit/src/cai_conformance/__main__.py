"""`python -m cai_conformance`: start commands on the simulated driver, or print its folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from cai_conformance.library import library_folder
from cai_conformance.simulate import Settings, start


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="cai-conformance", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    simulate = commands.add_parser("simulate", help="start a command on the simulated CUDA driver")
    simulate.add_argument("--devices", type=int, default=2, help="number of devices (default: 2)")
    simulate.add_argument(
        "--schedule",
        choices=["threaded", "lazy"],
        default="threaded",
        help="threaded: work runs as soon as it may; lazy: only when somebody synchronises",
    )
    simulate.add_argument("--protect", action="store_true", help="a host access to device memory is a SIGSEGV")
    simulate.add_argument("--reuse", action="store_true", help="destroyed handles are given out again at once")
    simulate.add_argument("--queue", type=int, help="pieces of work that a stream holds before enqueuing blocks")
    simulate.add_argument("--driver-version", type=int, help="what the driver says it is, such as 12020")
    simulate.add_argument("--memory", type=int, help="bytes of each device")
    simulate.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="[DEVICE:]NUMBER=VALUE",
        help="a device attribute, of one device or of all; may be given several times",
    )
    simulate.add_argument("rest", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    commands.add_parser("library-path", help="the folder to put into LD_LIBRARY_PATH")
    if find_spec("numpy") is not None:
        from cai_conformance.judge import command

        command.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; `simulate` does not return."""
    options = parser().parse_args(arguments)
    if hasattr(options, "run"):
        return judged(options)
    if options.command == "library-path":
        print(library_folder())
        return 0
    command = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    if not command:
        parser().error("simulate: no command; put it after --")
    settings = Settings(
        devices=options.devices,
        schedule=options.schedule,
        protect=options.protect,
        reuse=options.reuse,
        queue=options.queue,
        driver_version=options.driver_version,
        memory=options.memory,
        attributes=tuple(options.attribute),
    )
    try:
        start(settings, command)
    except OSError as error:
        print(f"cai-conformance: {error}", file=sys.stderr)
    return 2


def judged(options: argparse.Namespace) -> int:
    """Runs a command that judges; 2 if it was used wrongly."""
    from cai_conformance.judge.target import Usage

    try:
        return int(options.run(options))
    except Usage as error:
        print(f"cai-conformance: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
