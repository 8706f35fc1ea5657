"""The command `probe`: see `ci.capabilities`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from properties import devices
from properties.failures import started_in

HEADER = (
    "# What {subject} was seen to do on {device}, {versions}.\n# Confirm or take out: a declaration is a promise.\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("subject", help="package.module:callable, or an installed subject's name")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="where it runs")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the declaration goes (default: printed)")


def run(options: argparse.Namespace) -> int:
    """Probe and write the declaration. Exit status 0, or 2 when the subject cannot be run."""
    folder = str(started_in(Path.cwd()))
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        device = devices.choose(options.device)
        if device.type == "cpu":
            devices.prepare_interpreter()
        import torch  # noqa: PLC0415 - after the interpreter is chosen

        from ci.capabilities import probe  # noqa: PLC0415
        from properties.declaration import to_toml  # noqa: PLC0415
        from properties.gather import versions  # noqa: PLC0415
        from properties.subject import load  # noqa: PLC0415

        found = probe(load(options.subject, device=device.type), torch.device(device.type))
    except ValueError as error:
        sys.stderr.write(f"probe: {error}\n")
        return 2
    told = ", ".join(f"{name} {version}" for name, version in versions().items())
    text = HEADER.format(subject=options.subject, device=device, versions=told) + to_toml(found.declared, found.notes)
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text)
    return 0
