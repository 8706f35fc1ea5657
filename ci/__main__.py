"""Commands: `python -m ci COMMAND`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import STARTED, conformance, probe, replay
from .codegen import command as codegen
from .mutants import command as mutants
from .nightly import command as nightly
from .nightly import merge


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        help: what it does, in a line.
        add_arguments: adds its options to a parser.
        run: runs it and returns the exit status.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "codegen": Command(
        help="compile the kernels without a GPU and check their machine code",
        add_arguments=codegen.add_arguments,
        run=codegen.run,
    ),
    "conformance": Command(
        help="report how a subject does on every property and dtype",
        add_arguments=conformance.add_arguments,
        run=conformance.run,
    ),
    "merge": Command(
        help="make one report of those of several nightly runs", add_arguments=merge.add_arguments, run=merge.run
    ),
    "mutants": Command(
        help="measure how many wrong kernels the properties catch", add_arguments=mutants.add_arguments, run=mutants.run
    ),
    "nightly": Command(
        help="draw cases for all properties until a time is spent, and report",
        add_arguments=nightly.add_arguments,
        run=nightly.run,
    ),
    "probe": Command(
        help="find out what a subject can do and write its declaration",
        add_arguments=probe.add_arguments,
        run=probe.run,
    ),
    "replay": Command(help="check recorded cases again", add_arguments=replay.add_arguments, run=replay.run),
}


def main(arguments: list[str] | None = None, *, began: float | None = None) -> int:
    """Run the command that was asked for.

    Args:
        arguments: of the command line. Default: those of this process.
        began: when its time began, by the monotonic clock. Default: now.
    """
    told = argparse.Namespace(began=time.monotonic() if began is None else began)
    parser = argparse.ArgumentParser(prog="python -m ci", description="Tools around the properties.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.help, description=command.help))
    options = parser.parse_args(arguments, told)
    return COMMANDS[options.command].run(options)


if __name__ == "__main__":
    sys.exit(main(began=STARTED))
