"""Explain, draw and write down one case. `ci.replay` runs it as a process of its own: the subject may end it.

Exit status 0, or 2 with the reason on standard error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from properties import casefile, devices
from properties.failures import started_in


def examine(options: argparse.Namespace) -> None:
    """Make what was asked for.

    Raises:
        ValueError: something cannot be made of this case.
    """
    import torch  # noqa: PLC0415 - after the device is settled

    from ci import emit, picture  # noqa: PLC0415
    from properties.explain import explain_walked, walk_case  # noqa: PLC0415
    from properties.subject import load  # noqa: PLC0415

    case = casefile.read(Path(options.file))
    device = torch.device(options.device)
    subject = load(options.subject, device=options.device)
    if options.emit:
        # First from the reference alone: the subject may not survive.
        text = emit.pytest_source(case, subject, device, spec=options.subject)
        Path(options.emit).write_text(text)
    try:
        walked = walk_case(case, subject, device)
    except Exception as error:
        # Whatever a stranger's operator raises.
        sys.stdout.write(f"The subject raised {type(error).__name__}: {error}\n")
        if options.picture:
            raise ValueError("picture: the subject returned nothing to draw") from None
        return
    if options.emit:
        text = emit.pytest_source(case, subject, device, spec=options.subject, walked=walked)
        Path(options.emit).write_text(text)
    if options.explain:
        sys.stdout.write(explain_walked(walked) + "\n")
        sys.stdout.flush()
    if options.picture:
        picture.draw(case, walked, Path(options.picture))
        sys.stdout.write(f"picture written to {options.picture}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run it; see the module's text."""
    parser = argparse.ArgumentParser(description="Explain, draw and write down one case.")
    parser.add_argument("file")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--picture")
    parser.add_argument("--emit")
    options = parser.parse_args(arguments)
    # As in the plugin: a subject next to the user, or to the properties, needs no installation.
    sys.path += [str(started_in(Path(options.root))), options.root]
    try:
        if options.device == "cpu":
            devices.prepare_interpreter()
        examine(options)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
