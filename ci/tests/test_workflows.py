"""The workflows: their schema, their security, their shell.

What GitHub alone can tell - runners, permissions, artifacts - is not seen here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.tests.workflows import WORKFLOWS, load, steps_of

PINNED = re.compile(r"""^\s*(?:-\s+)?uses:\s*['"]?[\w./-]+@[0-9a-f]{40}['"]?\s+#\s*v\d+\.\d+\.\d+\s*$""")


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        # Where these tests are the ones that count, they must not be left out.
        assert not os.environ.get("CI"), f"{name} not found"
        pytest.skip(f"needs {name}, in the extra dev")
    return found


def asked(*command: str | Path, given: str | None = None) -> str | None:
    """What a tool complains of, None when it is content."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=given, timeout=120)
    return None if done.returncode == 0 else done.stdout + done.stderr


def schema(path: Path) -> list[str]:
    wrong = asked(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", path)
    return [wrong] if wrong else []


def security(path: Path) -> list[str]:
    wrong = asked(tool("zizmor"), "--offline", "--no-progress", path)
    return [wrong] if wrong else []


def shell(path: Path) -> list[str]:
    scripts = [(step.label, plain["run"]) for step, plain in steps_of(path) if "run" in plain]
    wrong = [(label, asked(tool("shellcheck"), "-s", "bash", "-", given=script)) for label, script in scripts]
    return [f"{label}: {told}" for label, told in wrong if told]


def pins(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if re.match(r"\s*(- +)?uses:", line)]
    wrong = [line.strip() for line in lines if not PINNED.match(line)]
    # However it is written: no action may pass because its line was not recognised as one.
    used = [plain["uses"] for _, plain in steps_of(path) if "uses" in plain]
    used += [job["uses"] for job in load(path)["jobs"].values() if "uses" in job]
    return wrong if len(used) == len(lines) else [*wrong, f"{len(used)} actions in {len(lines)} lines"]


def permissions(path: Path) -> list[str]:
    plain = load(path)
    wrong = [] if plain.get("permissions") == {} else [f"permissions: {plain.get('permissions')!r}, expected {{}}"]
    # A job that says nothing has none, which is never enough to check out.
    return wrong + [name for name, job in plain["jobs"].items() if not isinstance(job.get("permissions"), dict)]


def timeouts(path: Path) -> list[str]:
    return [name for name, job in load(path)["jobs"].items() if not isinstance(job.get("timeout-minutes"), int)]


def credentials(path: Path) -> list[str]:
    checkouts = [
        (step, plain) for step, plain in steps_of(path) if plain.get("uses", "").startswith("actions/checkout")
    ]
    return [step.label for step, plain in checkouts if plain.get("with", {}).get("persist-credentials") is not False]


def expressions(path: Path) -> list[str]:
    return [step.label for step, plain in steps_of(path) if "${{" in plain.get("run", "")]


def defaults(path: Path) -> list[str]:
    # "bash" means `set -eo pipefail`; without it GitHub sets no pipefail.
    plain = load(path)
    wrong = [] if plain.get("defaults", {}).get("run", {}).get("shell") == "bash" else ["defaults"]
    return wrong + [step.label for step, plain in steps_of(path) if "shell" in plain]


CHECKS = (schema, security, shell, pins, permissions, timeouts, credentials, expressions, defaults)


def test_there_are_workflows():
    assert [path.name for path in WORKFLOWS] == ["nightly.yml", "pull-request.yml"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(path, check):
    assert check(path) == []


PLANTED = """
name: planted
on: pull_request_target
permissions: write-all
jobs:
  bad:
    runs-on: ubuntu-24.04
    timeout-minute: 10
    steps:
      - uses: actions/checkout@v5
      - name: greet
        run: |
          echo ${{ github.event.pull_request.title }}
          cd $HOME
"""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_bad_workflow_is_refused(tmp_path, check):
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "planted.yml").write_text(PLANTED)
    assert check(folder / "planted.yml")


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("      - uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0", True),
        ("        uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8", False),
        ("        uses: actions/checkout@08c6903 # v5.0.0", False),
        ("        uses: actions/checkout@v5.0.0 # v5.0.0", False),
        ("        uses: actions/checkout@main", False),
    ],
)
def test_pins_are_whole_and_say_their_version(line, good):
    assert bool(PINNED.match(line)) == good
