"""The plugin as its users meet it: whole pytest runs in a folder of their own, each in its own process."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUBJECT = '''
"""A subject that nobody calls."""
def operator(value, shapes, starts, locations, weights):
    raise NotImplementedError
'''

# Draws integers instead of recipes: the plugin does not look at what is drawn.
DRAWING = """
import os
import pytest
from hypothesis import strategies as st

@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_draws(harness, variant):
    drawn = []
    harness.for_all(st.integers(0, 2**40), drawn.append)
    with open(f"drawn-{os.environ['DRAWN']}-{variant}", "w") as file:
        file.write(repr(drawn))

def test_alone(harness):
    def check(number):
        with harness.clock("subject"):
            pass
        harness.record(ratio={"out": 0.25, "grad_value": 0.5}, collisions=7)
    harness.for_all(st.integers(0, 2**40), check)
"""

FAILING = """
from hypothesis import strategies as st

class PropertyFailed(AssertionError):
    pass

def test_fails(harness):
    def check(number):
        harness.record(ratio={"out": 2.0 if number > 10 else 0.5})
        if number > 10:
            raise PropertyFailed(f"out: wrong for {number}\\n  expected  less\\n  got       {number}")
    harness.for_all(st.integers(0, 2**40), check)
"""


# As in this project: a shared GPU image may carry pytest-benchmark, which warns that xdist is active.
SETTINGS = """
[pytest]
addopts = -p properties.plugin
filterwarnings =
    error
    ignore:Benchmarks are automatically disabled
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in {"subject.py": SUBJECT, "test_drawing.py": DRAWING, "conftest.py": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    return tmp_path


def run(folder, *arguments, workers=0, status=0, **environ):
    """Run pytest in the folder as a user would, with nothing of the outer run in its environment."""
    outer = ("PYTEST_", "CI", "TRITON_INTERPRET", "HYPOTHESIS", "COLUMNS", "MSDA_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    command = [sys.executable, "-m", "pytest", "--msda-device", "cpu", "--msda-subject", "subject:operator"]
    if workers is not None:
        command += ["-n", str(workers)]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), "DRAWN": "x", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def drawn(folder, name="x"):
    return [(folder / f"drawn-{name}-{cell}").read_text() for cell in "abc"]


def test_same_seed_draws_the_same_with_any_workers(folder):
    run(folder, "--msda-seed", "3", DRAWN="x")
    run(folder, "--msda-seed", "3", workers=2, DRAWN="y")
    run(folder, "--msda-seed", "3", "test_drawing.py::test_draws", workers=None, DRAWN="z")
    run(folder, "--msda-seed", "4", DRAWN="other")
    assert drawn(folder, "x") == drawn(folder, "y") == drawn(folder, "z")
    assert len({*drawn(folder, "x"), *drawn(folder, "other")}) == 6  # and each variant draws its own


def test_draws_do_not_depend_on_what_is_imported(folder):
    (folder / "constants.py").write_text("NUMBERS = [" + ", ".join(str(2**30 + 7 * n) for n in range(400)) + "]\n")
    run(folder, "--msda-seed", "3", "--msda-examples", "300", DRAWN="x")
    with (folder / "conftest.py").open("a") as conftest:
        conftest.write("import constants\n")
    run(folder, "--msda-seed", "3", "--msda-examples", "300", DRAWN="y")
    assert drawn(folder, "x") == drawn(folder, "y")


def test_fresh_seed_is_printed_and_repeats_the_run(folder):
    first = run(folder)
    seed = re.findall(r"seed (\d+)", first)[0]
    before = drawn(folder)
    run(folder)
    assert drawn(folder) != before
    run(folder, "--msda-seed", seed)
    assert drawn(folder) == before


def test_ci_is_the_same_every_time(folder):
    assert "profile ci, seed 0" in run(folder, CI="true", DRAWN="x")
    assert "profile ci, seed 0" in run(folder, "--msda-profile", "ci", workers=2, DRAWN="y")
    assert drawn(folder, "x") == drawn(folder, "y")
    assert not (folder / ".hypothesis" / "msda").exists()
    assert "profile default, seed 5" in run(folder, "--msda-profile", "default", "--msda-seed", "5", CI="true")


def test_examples_are_split_and_rounded_up(folder):
    output = run(folder, "--msda-examples", "10", "--msda-json", "out/summary.json")
    assert "10 cases per property" in output
    items = json.loads((folder / "out" / "summary.json").read_text())["items"]
    assert [(item["variant"], item["cases"]) for item in items] == [("", 10), ("a", 4), ("b", 4), ("c", 4)]
    # One variant alone gets no more than its share, or its draws would be others.
    run(folder, "--msda-examples", "10", "--msda-json", "one.json", "test_drawing.py::test_draws[b]")
    assert [item["cases"] for item in json.loads((folder / "one.json").read_text())["items"]] == [4]


@pytest.mark.parametrize("workers", [0, 2])
def test_summary_has_what_the_items_recorded(folder, workers):
    output = run(folder, "--msda-report", "report", "--msda-seed", "9", workers=workers)
    summary = json.loads((folder / "report" / "summary.json").read_text())
    assert summary["subject"] == "subject:operator"
    assert summary["device"] == "cpu"
    assert summary["seed"] == 9
    assert summary["workers"] == max(1, workers)
    assert summary["exit"] == 0
    assert summary["counts"]["passed"] == 4
    assert set(summary["versions"]) == {"python", "torch", "triton", "numpy", "hypothesis"}
    alone = next(item for item in summary["items"] if item["test"].endswith("test_alone"))
    assert alone["ratio"] == {"out": 0.25, "grad_value": 0.5}
    assert (alone["collisions"], alone["judged"], alone["outcome"]) == (7, alone["cases"], "passed")
    assert set(alone["stages"]) == {"draw", "subject"}
    assert summary["totals"]["cases"] == sum(item["cases"] for item in summary["items"])
    assert summary["totals"]["worst"] == ["test_drawing.py::test_alone", "grad_value", 0.5]
    assert "drawing: alone" in output
    assert f"cases       {summary['totals']['cases']} " in output
    assert "\x1b" not in output


@pytest.mark.parametrize("workers", [0, 2])
def test_failure_tells_its_story_and_nothing_else(folder, workers):
    (folder / "test_failing.py").write_text(FAILING)
    output = run(folder, "--msda-json", "s.json", workers=workers, status=1)
    failure = output[output.index("= FAILURES") : output.index("= properties")]
    assert "out: wrong for 11\n  expected  less\n  got       11\n" in failure
    assert "harness.py" not in failure
    assert "Traceback" not in failure
    assert "test_failing.py:" not in failure
    assert "FAILED test_failing.py::test_fails - out: wrong for 11" in output
    summary = json.loads((folder / "s.json").read_text())
    item = next(item for item in summary["items"] if item["outcome"] == "failed")
    assert summary["counts"]["failed"] == 1
    # What Hypothesis ran to shrink the case is no evidence about the kernel.
    assert item["cases"] == item["judged"]
    assert item["shrinks"] > 0


def test_a_failure_is_kept_and_tried_first(folder):
    (folder / "test_failing.py").write_text(FAILING)
    run(folder, "test_failing.py", status=1)
    run(folder, "test_failing.py", "--msda-json", "s.json", status=1)
    assert json.loads((folder / "s.json").read_text())["items"][0]["cases"] == 1


def test_a_case_is_checked_instead_of_drawing(folder):
    from properties.cells import CELLS  # noqa: PLC0415 - the other tests need no torch
    from properties.recipe import Recipe  # noqa: PLC0415

    first, second = CELLS[:2]
    (folder / "case.json").write_text(Recipe(cell=first, seed=1234).to_json())
    (folder / "test_case.py").write_text(
        "import pytest\n"
        "from hypothesis import strategies as st\n"
        "from properties.cells import CELLS\n"
        "@pytest.mark.parametrize('cell', CELLS[:2], ids=lambda cell: cell.name)\n"
        "def test_case(harness, cell):\n"
        "    harness.for_all(st.nothing(), lambda recipe: print('checked', recipe.seed))\n"
    )
    output = run(folder, "test_case.py", "--msda-case", "case.json", "-rA")
    assert output.count("checked 1234") == 1
    assert f"the case in case.json is of {first.name}" in output
    assert "1 passed, 1 skipped" in output
    missing = run(folder, "test_case.py", "--msda-case", "nowhere.json", status=4)
    assert "nowhere.json" in missing
    del second


def test_a_cell_that_the_subject_refuses_is_skipped_with_its_reason(folder):
    (folder / "subject.py").write_text(SUBJECT + "operator.dtypes = ('float32',)\n")
    (folder / "test_case.py").write_text(
        "import pytest\n"
        "from properties.cells import CELLS\n"
        "@pytest.mark.parametrize('cell', CELLS, ids=lambda cell: cell.name)\n"
        "def test_cells(harness, cell):\n"
        "    assert cell.name == 'float32'\n"
    )
    run(folder, "test_case.py", "--msda-json", "s.json")
    summary = json.loads((folder / "s.json").read_text())
    assert summary["counts"]["passed"] == 1
    assert "subject:operator does not declare float64" in summary["skipped"].values()


def test_cpu_means_the_interpreter_even_in_workers(folder):
    (folder / "test_interpreter.py").write_text(
        "import os, torch\n"
        "def test_it(harness):\n"
        "    from triton import knobs\n"
        "    assert knobs.runtime.interpret and os.environ['TRITON_INTERPRET'] == '1'\n"
        "    assert harness.device == torch.device('cpu')\n"
        "    assert harness.limits.max_steps is not None\n"
    )
    assert "CPU (Triton interpreter)" in run(folder, "test_interpreter.py")
    run(folder, "test_interpreter.py", workers=2)


def test_triton_imported_too_early_is_an_error(folder):
    (folder / "early.py").write_text("import triton\n")
    output = run(folder, "-p", "early", status=4)
    assert "triton was imported before TRITON_INTERPRET=1" in output


def test_conftest_may_import_triton(folder):
    with (folder / "conftest.py").open("a") as conftest:
        conftest.write("import triton\nassert triton.knobs.runtime.interpret\n")
    run(folder)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("subject", "expected 'package.module:callable'"),
        ("nowhere.at_all:operator", "cannot import 'nowhere.at_all'"),
        ("subject:missing", "has no callable 'missing'"),
    ],
)
def test_a_wrong_subject_is_one_error(folder, spec, message):
    output = run(folder, "--msda-subject", spec, workers=2, status=4)
    assert message in output
    assert "Traceback" not in output


def test_a_missing_gpu_is_one_error(folder):
    output = run(folder, "--msda-device", "cuda", status=4, CUDA_VISIBLE_DEVICES="")
    assert "torch finds no usable GPU" in output


def test_bad_number_of_examples(folder):
    assert "--msda-examples" in run(folder, "--msda-examples", "0", status=4)


def test_works_without_xdist(folder):
    run(folder, "-p", "no:xdist", "--msda-seed", "3", workers=None, DRAWN="x")
    run(folder, "--msda-seed", "3", workers=2, DRAWN="y")
    assert drawn(folder, "x") == drawn(folder, "y")


def test_auto_workers_follow_the_cores(folder):
    cores = len(os.sched_getaffinity(0))
    assert f"; {cores} worker" in run(folder, "--collect-only", workers="auto")


def test_silent_where_it_is_only_installed(folder):
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text("pytest_plugins = ['properties.plugin']\n")
    (folder / "test_drawing.py").write_text("def test_nothing():\n    pass\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_", "MSDA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    # Where it is installed, pytest itself lists it among its plugins.
    assert not [line for line in done.stdout.splitlines() if line.startswith("msda") or "properties" in line]


WRONG = """
import torch

def operator(value, shapes, starts, locations, weights):
    out = value.sum() + locations.sum() + weights.sum()
    return out.expand(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3]).clone()

operator.dtypes = ("float32",)
"""


def test_a_wrong_kernel_leaves_a_case_that_fails_again(folder):
    (folder / "subject.py").write_text(WRONG)
    (folder / "test_real.py").write_text("from properties.test_forward import test_forward_within_bound\n")
    output = run(folder, "test_real.py", status=1)
    story = re.search(r"^out: outside its error bound\n(.*?)^  replay    (.*?)\n", output, re.DOTALL | re.MULTILINE)
    assert story is not None, output
    assert "  recipe    float32 B1 Q1 M1 D1 K1 levels 1x1" in story[1]
    assert "  property  test_real.py::test_forward_within_bound[float32]" in story[1]
    command = shlex.split(story[2])
    assert command[:4] == ["python", "-m", "ci", "replay"]
    again = subprocess.run(
        [sys.executable, *command[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MSDA_FROM": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert story[1].splitlines()[0] in again.stdout
    case = json.loads((folder / command[4]).read_text())
    assert case["failure"] == "out: outside its error bound"
    assert case["recipe"]["cell"] == "float32"
    assert not list((folder / ".msda" / "journal").iterdir())


def test_a_crash_leaves_its_case_and_takes_no_other_test_with_it(folder):
    (folder / "subject.py").write_text("import os\n" + WRONG.replace("    out =", "    os.abort()\n    out ="))
    (folder / "test_real.py").write_text("from properties.test_forward import test_forward_within_bound\n")
    output = run(folder, workers=2, status=1)
    assert "1 failed, 4 passed" in output
    assert "the process ended while it ran this case" in output
    assert re.search(r"replay +python -m ci replay \.msda/failures/test_forward_within_bound-float32-", output)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lost_device_fails_one_test_with_the_case_that_lost_it(folder, workers):
    (folder / "subject.py").write_text(WRONG)
    (folder / "conftest.py").write_text("from properties import failures\nfailures.cuda_is_lost = lambda: True\n")
    (folder / "test_real.py").write_text("from properties.test_forward import test_forward_within_bound\n")
    output = run(folder, "test_real.py", workers=workers, status=1)
    assert "1 failed, 9 skipped" in output or not workers
    assert "Flaky" not in output
    assert "PropertyFailed: out: outside its error bound" in output
    # The case that lost the device, as it was drawn: nothing could be shrunk after it.
    assert re.search(r"replay +python -m ci replay \.msda/failures/test_forward_within_bound-float32-", output)
    if not workers:
        assert "the GPU no longer works in this process" in output
