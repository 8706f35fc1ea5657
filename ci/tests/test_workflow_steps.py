"""Each step of the workflows that runs a script is run here; what is long, or changes the world, is a stub.

A stub notes its arguments, and those of our commands are read as the commands would read them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ci.__main__ import COMMANDS
from ci.tests.workflows import FOLDER, ROOT, RUNS, WORKFLOWS, Step, load, steps_of

# Commands of `ci/run` that are no commands of `python -m ci`; they pass what follows on to pytest, or take nothing.
OWN = ("test", "lint", "setup")
# Stands in for what is long, or changes the machine or the world: notes what it was asked for, a line for each call.
STUB = """#!/bin/bash
{ printf '%s\\n' "${0##*/}" "$@" | tr '\\n' '\\037'; echo; } >> "$CALLS"
"""


class Workplace:
    """A folder in which steps are run: the repository's `ci/run` and the machine's tools are stubs.

    Attributes:
        root: where the steps start.
        status: how the last one ended.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "work"
        self.tools = root / "tools"
        self.calls_file = root / "calls"
        self.summary_file = root / "summary"
        self.status = 0
        for path in (self.root / "ci" / "run", *(self.tools / name for name in ("sudo", "gh"))):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(STUB)
            path.chmod(0o755)

    def has(self, *names: str) -> None:
        """Put stubs of further tools on the path."""
        for name in names:
            (self.tools / name).write_text(STUB)
            (self.tools / name).chmod(0o755)

    def write(self, name: str, content: str = "") -> None:
        """Put a file where the steps start."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def run(self, step: Step, **environ: str) -> list[list[str]]:
        """Run a step; return what the stubs were asked for."""
        wanted = RUNS[step].get("env", {})
        assert set(wanted) == set(environ), f"expected a value for each of {sorted(wanted)}"
        given = {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "CALLS": str(self.calls_file),
            "GITHUB_STEP_SUMMARY": str(self.summary_file),
            "GITHUB_REPOSITORY": "owner/repository",
            **environ,
        }
        self.calls_file.unlink(missing_ok=True)
        self.summary_file.unlink(missing_ok=True)
        script = self.root.parent / "script.sh"
        script.write_text(RUNS[step]["run"])
        # As GitHub does for "shell: bash"; -u besides, so that a name which is misspelt does not pass as empty.
        command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", str(script)]
        done = subprocess.run(
            command, cwd=self.root, env=given, capture_output=True, text=True, check=False, timeout=60
        )
        self.status = done.returncode
        if not self.calls_file.exists():
            return []
        return [line.rstrip("\x1f").split("\x1f") for line in self.calls_file.read_text().split("\n")[:-1]]

    @property
    def summary(self) -> str:
        """What the last step has added to the summary of the job."""
        return self.summary_file.read_text() if self.summary_file.exists() else ""


def options_of(call: list[str]) -> argparse.Namespace:
    """Read the arguments of `ci/run` as the command reads them; a wrong one ends the test."""
    program, command, *arguments = call
    assert program == "run"
    if command in OWN:
        # Checked against the script itself: the stub would take any word.
        assert re.search(rf"^{command} \| |\| {command}( \||\))", (ROOT / "ci" / "run").read_text(), re.MULTILINE)
        assert arguments == []
        return argparse.Namespace()
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


PR = "pull-request"


def packages(place: Workplace, step: Step) -> None:
    if shutil.which("chromium", path="/usr/bin:/bin") is None:
        place.run(step)
        assert place.status != 0, "the browser is missing, and nobody minds"
    place.has("chromium", "chromedriver")
    calls = place.run(step)
    assert place.status == 0
    assert [call[:3] for call in calls] == [["sudo", "apt-get", "update"], ["sudo", "apt-get", "install"]]
    wanted = [argument for argument in calls[1][3:] if not argument.startswith("-")]
    # The rest of what .ci/run installs is what `command -v` asks for.
    script = (ROOT / ".ci" / "run").read_text()
    listed = re.search(r"^packages=\((.*)\)$", script, re.MULTILINE)
    assert listed is not None
    assert {*wanted, "chromium", "chromium-driver"} == set(listed.group(1).split())


def plain_command(place: Workplace, step: Step) -> None:
    (call,) = place.run(step)
    assert place.status == 0
    options_of(call)
    assert call[1] == {"Tests": "test", "Machine code": "codegen", "Linters": "lint"}[step.name]


def quick(place: Workplace, step: Step) -> None:
    (call,) = place.run(step)
    options = options_of(call)
    assert (call[1], options.budget, options.quick, options.device) == ("nightly", 600.0, True, "cpu")
    # Where the next steps look for it.
    assert options.report == Path("report")
    assert uploaded(step.workflow, step.job, "report") == "report"


def summary(place: Workplace, step: Step) -> None:
    folder = {"cpu": "report", "merge": "merged"}[step.job]
    assert place.run(step) == []
    assert (place.status, place.summary) == (0, "No report was written.\n")
    place.write(f"{folder}/summary.md", "# clean\n")
    place.run(step)
    assert (place.status, place.summary) == (0, "# clean\n")


def fuzz(place: Workplace, step: Step) -> None:
    (call,) = place.run(step, BUDGET="45m", SHARD="2", GITHUB_TOKEN="t")
    options = options_of(call)
    assert (call[1], options.budget, options.shard, options.device) == ("nightly", 2700.0, (2, 2), "cuda")
    assert options.database == ["database", "github://owner/repository"]
    assert options.report == Path("report")
    job = load(FOLDER / "nightly.yml")["jobs"]["fuzz"]
    # Every shard of the n that the command speaks of.
    assert job["strategy"]["matrix"]["shard"] == list(range(1, options.shard[1] + 1))
    assert uploaded("nightly", "fuzz", "report-${{ matrix.shard }}") == "report"
    assert uploaded("nightly", "fuzz", "examples-${{ matrix.shard }}") == "database"
    # A budget from a person is a value, whatever is in it.
    (call,) = place.run(step, BUDGET='1m"; touch planted; $(touch planted)', SHARD="1", GITHUB_TOKEN="t")
    assert not (place.root / "planted").exists()
    with pytest.raises(argparse.ArgumentError):
        options_of(call)


def earlier_nights(place: Workplace, step: Step) -> None:
    # Two runs are listed; the report of the first one has expired.
    place.write("gh.sh", STUB + 'case "$*" in run\\ list*) printf "%s\\n" 71 70;; *download\\ 71*) exit 1;; esac\n')
    (place.root / "gh.sh").chmod(0o755)
    (place.root / "gh.sh").rename(place.tools / "gh")
    listed, *downloads = place.run(step, GH_TOKEN="t", GH_REPO="owner/repository")
    assert place.status == 0
    assert listed[:3] == ["gh", "run", "list"]
    assert listed[listed.index("--workflow") + 1] == f"{step.workflow}.yml"
    assert [(call[3], call[-1]) for call in downloads] == [("71", "earlier/71"), ("70", "earlier/70")]
    # Under the name of the merged report.
    assert uploaded("nightly", "merge", downloads[0][downloads[0].index("--name") + 1]) == "merged"


def merge(place: Workplace, step: Step) -> None:
    place.write("parts/report-1/nightly.json")
    place.write("parts/report-2/state/run.json")
    place.write("parts/report 3/nightly.json")
    (call,) = place.run(step)
    options = options_of(call)
    assert (call[1], options.report) == ("merge", Path("merged"))
    assert sorted(options.folders) == [Path("parts/report 3"), Path("parts/report-1")]
    assert options.trend == []
    assert uploaded("nightly", "merge", "merged") == "merged"
    place.write("earlier/70/nightly.json")
    place.write("earlier/69/nightly.json")
    (call,) = place.run(step)
    assert options_of(call).trend == [Path("earlier/69/nightly.json"), Path("earlier/70/nightly.json")]
    shutil.rmtree(place.root / "parts")
    (call,) = place.run(step)
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        options_of(call)


def open_issue(place: Workplace, step: Step) -> None:
    given = {
        "GH_TOKEN": "t",
        "GH_REPO": "owner/repository",
        "TITLE": "Nightly run 7 failed",
        "RUN": "https://host/run/7",
    }
    first = "Report and case files are artifacts of https://host/run/7\n\n"
    (call,) = place.run(step, **given)
    assert place.status == 0
    assert call == ["gh", "issue", "create", "--title", "Nightly run 7 failed", "--body-file", "issue.md"]
    assert (place.root / "issue.md").read_text() == first + "No report was written.\n"
    # The summary tells each fault with the line that replays it; a long one is cut to what GitHub takes.
    place.write("merged/summary.md", "# faults\n" + "x" * 70000)
    place.run(step, **given)
    text = (place.root / "issue.md").read_text()
    assert text.startswith(first + "# faults\n")
    assert 60000 < len(text) < 65536


EXECUTED = {
    Step(PR, "cpu", "Packages"): packages,
    Step(PR, "cpu", "Tests"): plain_command,
    Step(PR, "cpu", "Machine code"): plain_command,
    Step(PR, "cpu", "Ten minutes of a nightly run"): quick,
    Step(PR, "cpu", "Linters"): plain_command,
    Step(PR, "cpu", "Summary"): summary,
    Step("nightly", "fuzz", "Fuzz"): fuzz,
    Step("nightly", "merge", "Earlier nights"): earlier_nights,
    Step("nightly", "merge", "Merge"): merge,
    Step("nightly", "merge", "Summary"): summary,
    Step("nightly", "issue", "Open the issue"): open_issue,
}


def uploaded(workflow: str, job: str, name: str) -> str:
    """The folder that a job uploads under a name; it does so whatever became of the steps before."""
    found = [
        plain
        for step, plain in steps_of(FOLDER / f"{workflow}.yml")
        if step.job == job and plain.get("with", {}).get("name") == name and "upload" in plain["uses"]
    ]
    assert len(found) == 1
    assert found[0]["if"] == "always()"
    return str(found[0]["with"]["path"])


def test_every_step_is_executed():
    assert EXECUTED.keys() == RUNS.keys()
    # No step hides behind another one of its name.
    assert sum("run" in plain for path in WORKFLOWS for _, plain in steps_of(path)) == len(RUNS)


@pytest.mark.parametrize("step", EXECUTED, ids=lambda step: step.label)
def test_step(step, place):
    EXECUTED[step](place, step)


def test_a_misspelt_option_is_found():
    for call in (["run", "nightly", "--report", "r", "--budgets", "1m"], ["run", "codegen", "--quickly"]):
        with pytest.raises((argparse.ArgumentError, SystemExit)):
            options_of(call)
    for call in (["run", "tests"], ["run", "lint", "--fix"]):
        with pytest.raises((AssertionError, KeyError)):
            options_of(call)


def test_examples_are_where_the_database_looks_for_them():
    from properties.database import ARTIFACT  # noqa: PLC0415 - imports hypothesis

    steps = [plain for step, plain in steps_of(FOLDER / "nightly.yml") if step.job == "merge"]
    down, up = (
        next(s["with"] for s in steps if s["name"] == f"{verb} the examples") for verb in ("Download", "Upload")
    )
    assert (up["name"], up["path"]) == (ARTIFACT, down["path"])
    assert (down["pattern"], down["merge-multiple"]) == ("examples-*", True)


def test_who_may_write():
    """Nobody but the job that opens the issue."""
    found = {
        (path.stem, name): {scope for scope, level in job["permissions"].items() if level != "read"}
        for path in WORKFLOWS
        for name, job in load(path)["jobs"].items()
    }
    assert {job: scopes for job, scopes in found.items() if scopes} == {("nightly", "issue"): {"issues"}}
