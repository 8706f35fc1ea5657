"""Replay recorded cases, each in a process of its own, and tell what became of them.

Exit status 0: every case passes. 1: one still fails. 2: one could not be run, or what was asked for could not be made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from rich.console import Console

from properties import casefile, devices
from properties.casefile import SHIPPED
from properties.failures import FAILURES, started_in

HOME = Path(casefile.__file__).resolve().parent.parent
TIMEOUT_SECONDS = 120.0
# What a case without a property is checked by.
DEFAULT_PROPERTY = "properties/test_gradients.py::test_gradients_within_bound[{cell}]"
# pytest and xdist tell their children by these; a replay inside a test run is nobody's child.
OUTER = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST", "PYTEST_ADDOPTS")

Outcome = Literal["pass", "fail", "not run"]
STYLES: dict[Outcome, str] = {"pass": "green", "fail": "red", "not run": "yellow"}
STATUS: dict[Outcome, int] = {"pass": 0, "fail": 1, "not run": 2}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What became of one case.

    Attributes:
        outcome: whether it passes, still fails, or could not be run.
        headline: that in one line.
        text: the story of the failure, or why it could not be run.
    """

    outcome: Outcome
    headline: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one case is run.

    Attributes:
        path: the case file.
        nodeid: the property, its file absolute.
        root: rootdir of pytest, which is started there.
        subject: "package.module:callable".
        device: device type.
        told: what the reader should know about these choices.
    """

    path: Path
    nodeid: str
    root: Path
    subject: str
    device: str
    told: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="case files, or files with a recipe alone")
    parser.add_argument("--subject", metavar="MODULE:CALLABLE", help=f"default: that of the case, else {SHIPPED}")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="default: that of the case, if it is here")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help="per case: %(default)s"
    )
    parser.add_argument("--explain", action="store_true", help="explain the worst element step by step")
    parser.add_argument("--picture", metavar="FILE", help="draw the worst element, as PNG or SVG (needs matplotlib)")
    parser.add_argument("--emit", choices=("pytest",), help="write a test that needs torch and the subject alone")
    parser.add_argument("--output", metavar="FILE", help="where --emit writes; default: standard output")


def run(options: argparse.Namespace) -> int:
    """Replay the cases and return the exit status."""
    if len(options.files) > 1 and (options.picture or options.emit):
        sys.stderr.write("replay: error: --picture and --emit take one case\n")
        return 2
    if options.output and not options.emit:
        sys.stderr.write("replay: error: --output goes with --emit\n")
        return 2
    if options.picture and Path(options.picture).suffix.lower() not in (".png", ".svg"):
        sys.stderr.write(
            f"replay: error: --picture is {options.picture!r}, expected a name that ends in .png or .svg\n"
        )
        return 2
    to_stdout = bool(options.emit and not options.output)
    # Without a terminal rich would break lines at 80 columns.
    console = Console(stderr=to_stdout, highlight=False, markup=False, soft_wrap=True)
    outcomes: list[Outcome] = []
    status = 0
    for file in options.files:
        console.print(f"== {file}", style="bold")
        plan = make_plan(file, subject=options.subject, device=options.device)
        replay = plan if isinstance(plan, Replay) else replay_one(plan, timeout=options.timeout)
        if isinstance(plan, Plan):
            console.print(plan.told)
        console.print(replay.headline, style=STYLES[replay.outcome])
        if replay.text:
            console.print(replay.text)
        outcomes.append(replay.outcome)
        if isinstance(plan, Plan) and (options.explain or options.picture or options.emit):
            status = max(status, examine(plan, options, console))
        console.print()
    counts = {outcome: outcomes.count(outcome) for outcome in STYLES}
    worst = max(outcomes, key=STATUS.__getitem__)
    cases = "1 case" if len(outcomes) == 1 else f"{len(outcomes)} cases"
    line = f"{cases}: {counts['pass']} pass, {counts['fail']} fail, {counts['not run']} could not be run"
    console.print(line, style=STYLES[worst])
    return max(status, STATUS[worst])


def user_folder() -> Path:
    """Where the user is."""
    return started_in(Path.cwd())


def make_plan(file: str, *, subject: str | None, device: str | None) -> Plan | Replay:
    """Read a case and decide how to run it, or say why it cannot be."""
    path = user_folder() / file
    try:
        case = casefile.read(path)
    except (OSError, ValueError) as error:
        return Replay(outcome="not run", headline=f"could not be run: {error}")
    try:
        found, note = _device(device, case.device)
    except ValueError as error:
        return Replay(outcome="not run", headline=f"could not be run: {error}")
    property_ = case.property or DEFAULT_PROPERTY.format(cell=case.recipe.cell.name)
    test, colons, function = property_.partition("::")
    root = next((folder for folder in _roots(path) if (folder / test).is_file()), None)
    if root is None or not colons:
        return Replay(outcome="not run", headline=f"could not be run: its property {property_!r} is not known here")
    chosen = subject or case.subject or SHIPPED
    # Where the properties are installed, pytest must write its notes elsewhere.
    installed = root == HOME and not (HOME / "ci" / "run").exists()
    return Plan(
        path=path.resolve(),
        nodeid=f"{(root / test).resolve()}::{function}",
        root=user_folder() if installed else root.resolve(),
        subject=chosen,
        device=found.type,
        told=f"{property_}, {chosen} on {found}{note}",
    )


def _device(asked: str | None, recorded: str) -> tuple[devices.Device, str]:
    if asked is not None or recorded not in ("cpu", "cuda"):
        return devices.choose(asked or "auto"), ""
    try:
        return devices.choose(recorded), ""
    except ValueError:
        return devices.choose("auto"), f"; it was recorded on {recorded}, which is not usable here"


def _roots(path: Path) -> list[Path]:
    """Folders that the node id of a case may start from: where it was recorded, this project, where the user is."""
    folder = path.resolve().parent
    own = [folder.parent.parent] if folder.parts[-2:] == FAILURES.parts else []
    return [*own, HOME, user_folder()]


def environment() -> dict[str, str]:
    """The environment of a process that runs a case."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    paths = [str(HOME), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "MSDA_FROM": str(user_folder().resolve())}


def replay_one(plan: Plan, *, timeout: float) -> Replay:
    """Run one case under its property."""
    with TemporaryDirectory(prefix="msda-replay-") as folder:
        summary = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "pytest", plan.nodeid, "-n", "0", "--msda-case", str(plan.path)]
        command += ["--msda-device", plan.device, "--msda-subject", plan.subject, "--msda-json", str(summary)]
        command += ["-p", "properties.plugin", "-p", "no:cacheprovider", "--color=no", "--rootdir", str(plan.root)]
        # The watchdog of the run would know another limit than this one.
        command += ["--import-mode=importlib", "--msda-timeout", "0"]
        done = finish(command, cwd=plan.root, timeout=timeout)
        text = summary.read_text() if summary.exists() else ""
    (plan.root / ".msda" / "journal" / f"{done.process}-main.json").unlink(missing_ok=True)
    return judge(done, json.loads(text) if text else None, timeout=timeout)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A process that has ended.

    Attributes:
        status: exit status, negative for a signal, None when it was ended because it took too long.
        out: standard output.
        err: standard error.
        process: its number.
    """

    status: int | None
    out: str
    err: str
    process: int


def finish(command: list[str], *, cwd: Path, timeout: float) -> Done:
    """Run a command to its end, or until its time is over; nothing that it started is left."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    status: int | None = None
    try:
        out, err = process.communicate(timeout=timeout)
        status = process.returncode
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()
    except BaseException:
        _end(process)
        raise
    return Done(status=status, out=out, err=err, process=process.pid)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        # Its own session, so this reaches its children and nobody else.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def judge(done: Done, summary: dict[str, object] | None, *, timeout: float) -> Replay:
    """Say what an ended process means for its case.

    A process that wrote no summary did not come to its end, whatever it returned: the subject may have ended it.

    Args:
        done: the process.
        summary: what pytest's plugin wrote at the end.
        timeout: seconds that it had.
    """
    if done.status is None or "\nTimeout (" in f"\n{done.err}":
        return Replay(outcome="fail", headline="still fails: hung", text=f"It did not end within {timeout:g} s.")
    if summary is None:
        if "test session starts" not in done.out:
            return Replay(outcome="not run", headline=f"could not be run: {_reason(done)}")
        return Replay(outcome="fail", headline="still fails: crash", text="\n".join([ended(done.status), *_tail(done)]))
    counts = summary.get("counts")
    assert isinstance(counts, dict)
    if done.status == 0 and counts.get("passed"):
        return Replay(outcome="pass", headline="passes: the property holds for this case")
    if done.status == 1 and counts.get("failed"):
        told = story(done.out)
        if "UnsatisfiedAssumption" in told:
            return Replay(outcome="not run", headline="could not be run: the property makes no statement on this case")
        return Replay(outcome="fail", headline="still fails", text=told)
    skipped = summary.get("skipped")
    if isinstance(skipped, dict) and skipped:
        return Replay(outcome="not run", headline=f"could not be run: skipped, {next(iter(skipped.values()))}")
    return Replay(outcome="not run", headline=f"could not be run: {_reason(done)}", text=story(done.out))


def story(output: str) -> str:
    """What pytest shows of failures and errors, without its headings."""
    found = re.search(r"^=+ (?:FAILURES|ERRORS) =+\n(.*?)(?=^=+ .*=+$|\Z)", output, re.DOTALL | re.MULTILINE)
    if found is None:
        return ""
    lines = [line for line in found[1].splitlines() if not re.fullmatch(r"_{2,} .* _{2,}", line)]
    return "\n".join(lines).strip("\n")


def ended(status: int | None) -> str:
    """Say how a process ended."""
    if status is not None and status < 0:
        return f"The process was ended by {signal.Signals(-status).name}."
    return f"The process ended with status {status} before the case was judged."


def _reason(done: Done) -> str:
    found = re.findall(r"^ERROR: (.*)$", done.err + done.out, re.MULTILINE)
    lines = [line for line in (done.err or done.out).splitlines() if line.strip()]
    return found[0] if found else (lines[-1] if lines else ended(done.status))


def _tail(done: Done) -> list[str]:
    """The first lines of what the process said last, where it said anything."""
    return [f"  {line}" for line in done.err.strip().splitlines()[:8]]


def examine(plan: Plan, options: argparse.Namespace, console: Console) -> int:
    """Explain, draw and write down one case in another process; return 2 when something asked for was not made."""
    with TemporaryDirectory(prefix="msda-replay-") as folder:
        test = Path(folder) / "test_case.py"
        command = [sys.executable, "-m", "ci.examine", str(plan.path), "--device", plan.device]
        command += ["--subject", plan.subject, "--root", str(plan.root)]
        if options.explain:
            command.append("--explain")
        if options.picture:
            command += ["--picture", str(user_folder() / options.picture)]
        if options.emit:
            command += ["--emit", str(test)]
        done = finish(command, cwd=plan.root, timeout=options.timeout)
        if done.out.strip():
            console.print()
            console.print(done.out.rstrip("\n"))
        if done.status != 0:
            why = done.err.strip() if done.status == 2 else _died(done, options.timeout)
            console.print(why, style="yellow")
        if options.emit and test.exists():
            if options.output:
                output = user_folder() / options.output
                try:
                    output.parent.mkdir(parents=True, exist_ok=True)
                    output.write_text(test.read_text())
                except OSError as error:
                    console.print(f"emit: {error}", style="yellow")
                    return 2
                console.print(f"test written to {options.output}")
            else:
                sys.stdout.write(test.read_text())
        # A subject that takes the process with it has failed already; a test of it was written before.
        made = not options.picture and (not options.emit or test.exists())
    return 2 if done.status == 2 or (done.status != 0 and not made) else 0


def _died(done: Done, timeout: float) -> str:
    if done.status is None:
        return f"nothing to explain: the subject did not end within {timeout:g} s"
    return "\n".join([f"nothing to explain. {ended(done.status)}", *_tail(done)])
