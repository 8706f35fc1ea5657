"""The README's walk of a user with a kernel of their own, run as it is written there."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WALK = (ROOT / "README.md").read_text().partition("### Your own kernel")[2].partition("\n### ")[0].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    # Between the fences, every other piece; its first line is the language.
    fenced = [block.partition("\n") for block in WALK.split("```")[1::2]]
    return [text for name, _, text in fenced if name == language]


def test_the_kernel_is_ten_lines():
    kernel = blocks("python")[0]
    body = kernel.partition("def operator")[2].partition("operator.")[0].strip().splitlines()
    assert len(body) <= 10


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the README shows what the CPU prints")
def test_the_walk_ends_as_the_readme_says(tmp_path: Path):
    kernel = blocks("python")[0]
    (tmp_path / "wrong.py").write_text(kernel)
    shown = blocks("")[0].splitlines()
    command = shlex.split(shown[0].removeprefix("$ "))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MSDA_"))}
    # `ci/run` finds the environment by itself; here it is the one that runs the tests.
    command = [str(ROOT / command[0]), *command[1:], "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    story = done.stdout.partition(" FAILURES ")[2].splitlines()
    for line in shown[1:]:
        assert line in story, f"the README shows {line!r}, the run:\n" + "\n".join(story)
