"""Commands: `python -m ci COMMAND`.

Only the one that was asked for is imported: some import torch, and triton must not be imported before it is known
whether its interpreter is wanted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from dataclasses import dataclass

from . import STARTED


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        module: has `add_arguments(parser)` and `run(options)`, which returns the exit status.
        help: what it does, in a line.
    """

    module: str
    help: str


COMMANDS = {
    "codegen": Command(
        module="ci.codegen.command", help="compile the kernels without a GPU and check their machine code"
    ),
    "conformance": Command(module="ci.conformance", help="report how a subject does on every property and dtype"),
    "merge": Command(module="ci.nightly.merge", help="make one report of those of several nightly runs"),
    "mutants": Command(module="ci.mutants.command", help="measure how many wrong kernels the properties catch"),
    "nightly": Command(
        module="ci.nightly.command", help="draw cases for all properties until a time is spent, and report"
    ),
    "probe": Command(module="ci.probe", help="find out what a subject can do and write its declaration"),
    "replay": Command(module="ci.replay", help="check recorded cases again"),
}


def main(arguments: list[str] | None = None, *, began: float | None = None) -> int:
    """Run the command that was asked for.

    Args:
        arguments: of the command line. Default: those of this process.
        began: when its time began, by the monotonic clock. Default: now.
    """
    told = argparse.Namespace(began=time.monotonic() if began is None else began)
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m ci", description="Tools around the properties.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = {name: commands.add_parser(name, help=one.help, description=one.help) for name, one in COMMANDS.items()}
    name = next((argument for argument in arguments if argument in COMMANDS), None)
    if name is None:
        parser.parse_args(arguments)
        parser.error("no command given")
    module = importlib.import_module(COMMANDS[name].module)
    module.add_arguments(asked[name])
    status: int = module.run(parser.parse_args(arguments, told))
    return status


if __name__ == "__main__":
    sys.exit(main(began=STARTED))
