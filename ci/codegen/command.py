"""`python -m ci codegen`: compile the kernels without a GPU and hold their machine code to `expectations.toml`.

Exit status 0: all as expected. 1: a problem, each in a line. 2: could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from properties import devices, gather
from properties.failures import started_in

from . import expectations, pool, show
from .catalogue import ARCHITECTURES, PRIMARY, entries, selected
from .rows import Row, as_json, make


def _architectures(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in ARCHITECTURES:
            raise argparse.ArgumentTypeError(f"{name!r} given, expected some of {','.join(ARCHITECTURES)}")
    return list(dict.fromkeys(names))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given, expected 1 or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--arch",
        type=_architectures,
        default=list(ARCHITECTURES),
        metavar="NAME,...",
        help=f"default: {','.join(ARCHITECTURES)}; but for {PRIMARY}, the kernels that stand for the others",
    )
    parser.add_argument("--all", action="store_true", help="every kernel for every architecture: minutes")
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="these alone; a glob, may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="print what would be compiled and do nothing")
    parser.add_argument("--workers", type=_positive, metavar="N", help="processes; default: one for each core")
    parser.add_argument("--cache", metavar="DIR", help="keep Triton's cache there; default: a temporary one")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON to this file")


def run(options: argparse.Namespace, *, path: Path = expectations.PATH) -> int:
    """Compile and judge, and return the exit status.

    Args:
        options: of the command line.
        path: of the expectations.
    """
    start = time.monotonic()
    to = show.console()
    try:
        names = {
            arch: [entry.name for entry in selected(arch, everything=options.all, kernels=options.kernel)]
            for arch in options.arch
        }
        if options.list:
            sys.stdout.write("".join(f"{arch} {name}\n" for arch, some in names.items() for name in some))
            return 0
        versions = gather.versions()
        rows = measure(options, names, expectations.load(_everything(), triton=versions["triton"], path=path), to)
        show.tables(to, rows)
        to.print(show.closing(rows, seconds=time.monotonic() - start), style="bold", soft_wrap=True)
        if options.json:
            target = started_in(Path.cwd()) / options.json
            target.write_text(json.dumps(as_json(rows, versions), indent=1) + "\n", encoding="utf-8")
    except (OSError, ValueError, pool.CouldNotRun) as error:
        sys.stderr.write(f"codegen: error: {error}\n")
        return 2
    return int(any(row.problems for row in rows))


def _everything() -> list[dict[str, str]]:
    return [
        {"arch": arch, "kernel": entry.kernel, "dtype": entry.dtype}
        for arch in ARCHITECTURES
        for entry in entries().values()
    ]


def measure(
    options: argparse.Namespace,
    names: Mapping[str, Sequence[str]],
    expected: Sequence[expectations.Expectation],
    to: Any,
) -> list[Row]:
    """Compile what is named and return a row for each, in that order.

    Args:
        options: of the command line.
        names: of specialisations, by architecture.
        expected: what they are held to.
        to: console.
    """
    found: dict[tuple[str, str], Row] = {}
    total = sum(map(len, names.values()))
    workers = options.workers or devices.cores()
    to.print(f"codegen: {total} kernels, {workers} worker{'s' if workers > 1 else ''}", soft_wrap=True)
    with TemporaryDirectory(prefix="msda-codegen-") as temporary, show.Watch(to, total) as watch:
        cache = started_in(Path.cwd()) / options.cache if options.cache else Path(temporary)

        def done(job: pool.Job, results: Sequence[Mapping[str, Any]]) -> None:
            rows = [
                make(job.architecture, entries()[name], result, expected)
                for name, result in zip(job.names, results, strict=True)
            ]
            found.update(zip(((job.architecture, name) for name in job.names), rows, strict=True))
            watch.finished(rows)

        pool.run(pool.jobs(names, workers=workers), done, workers=workers, cache=cache)
    return [found[arch, name] for arch, some in names.items() for name in some]
