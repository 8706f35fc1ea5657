"""Replays as their users meet them: case files in a folder of their own, each run in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ci import emit, examine, picture, replay
from ci.__main__ import main
from properties import devices
from properties.casefile import CaseFile
from properties.cells import cell_named
from properties.explain import walk_case
from properties.explicit import MAX_NUMBERS
from properties.recipe import Hot, Recipe
from properties.subject import from_callable

ROOT = Path(__file__).resolve().parents[2]
FORWARD = "properties/test_forward.py::test_forward_within_bound[float32]"
GRADIENTS = "properties/test_gradients.py::test_gradients_within_bound[float32]"
CPU = torch.device("cpu")

# The operator on grid_sample, for locations inside the map; `wrong` mixes up height and width.
SUBJECT = """
import os
import time

import torch


def right(value, shapes, starts, locations, weights, swapped=False):
    B, _, M, D = value.shape
    Q, K = locations.shape[1], locations.shape[4]
    out = 0
    for level, (H, W) in enumerate(shapes.tolist()):
        start = int(starts[level])
        H, W = (W, H) if swapped else (H, W)
        image = value[:, start:start + H * W].permute(0, 2, 3, 1).reshape(B * M, D, H, W)
        grid = 2 * locations[:, :, :, level].transpose(1, 2).reshape(B * M, Q, K, 2) - 1
        read = torch.nn.functional.grid_sample(image, grid, align_corners=False)
        weight = weights[:, :, :, level].transpose(1, 2).reshape(B * M, 1, Q, K)
        out = out + (read * weight).sum(-1).reshape(B, M * D, Q).transpose(1, 2)
    return out


def wrong(*operands):
    return right(*operands, swapped=True)


def abort(*operands):
    os.abort()


def leave(*operands):
    os._exit(0)


def hang(*operands):
    time.sleep(600)


for one in (right, wrong, abort, leave, hang):
    one.dtypes = ("float32",)
    one.coordinates = "grid"
"""
RECIPE = Recipe(
    cell=cell_named("float32"), levels=((2, 3),), queries=2, channels=2, locations=("away",), hot=(Hot(0, 0.25, 0.75),)
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "kernels_of_replay.py").write_text(SUBJECT)
    monkeypatch.setenv("MSDA_FROM", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    # On a GPU this process runs no interpreter, and these subjects need none.
    monkeypatch.setattr(devices, "prepare_interpreter", lambda: None)
    return tmp_path


def write(folder, name, *, property_=GRADIENTS, recipe=RECIPE, subject=None, device="cpu"):
    subject = f"kernels_of_replay:{subject or name}"
    case = CaseFile(recipe=recipe, property=property_, subject=subject, device=device)
    (folder / f"{name}.json").write_text(case.to_json())
    return f"{name}.json"


def operators():
    names: dict = {}
    exec(SUBJECT, names)
    return names


def test_a_case_that_takes_its_process_with_it_does_not_stop_the_next(folder, capsys):
    files = [write(folder, name, property_=FORWARD) for name in ("abort", "leave", "wrong", "right")]
    assert main(["replay", *files]) == 1
    output = capsys.readouterr().out
    abort, leave, wrong, right = output.split("== ")[1:]
    assert "still fails: crash\nThe process was ended by SIGABRT." in abort
    assert "still fails: crash\nThe process ended with status 0 before the case was judged." in leave
    assert "still fails\nout: outside its error bound\n  worst     element (batch 0" in wrong
    assert "  class     logic fault" in wrong
    assert "====" not in output
    assert "kernels_of_replay:right on CPU" in right
    assert "passes: the property holds for this case" in right
    assert output.splitlines()[-1] == "4 cases: 1 pass, 3 fail, 0 could not be run"
    journal = ROOT / ".msda" / "journal"
    assert not [path for path in journal.glob("*-main.json") if "kernels_of_replay" in path.read_text()]


def test_a_bare_recipe_passes_from_the_command_line(folder):
    (folder / "bare.json").write_text(RECIPE.to_json())
    clean = {name: value for name, value in os.environ.items() if name != "MSDA_FROM"}
    command = [sys.executable, "-m", "ci", "replay", "bare.json", "--subject", "kernels_of_replay:right"]
    done = subprocess.run(
        [*command, "--device", "cpu", "--explain"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert GRADIENTS in done.stdout
    assert "passes: the property holds for this case" in done.stdout
    assert "Every element is within its bound" in done.stdout
    assert "\x1b" not in done.stdout


def test_what_cannot_be_run_wins(folder, capsys):
    (folder / "damaged.json").write_text(json.dumps(CaseFile(recipe=RECIPE).to_dict())[:100])
    (folder / "newer.json").write_text(json.dumps({**CaseFile(recipe=RECIPE).to_dict(), "format": 99}))
    unknown = write(folder, "unknown", property_="properties/test_nothing.py::test_it[float32]")
    nowhere = write(folder, "nowhere", subject="right", property_="properties/test_forward.py::test_it[float32]")
    assert main(["replay", "damaged.json", "newer.json", "missing.json", unknown, nowhere]) == 2
    output = capsys.readouterr().out
    for message in (
        "is damaged, it is not JSON",
        "its format is 99, expected at most",
        "No such file",
        "its property 'properties/test_nothing.py::test_it[float32]' is not known here",
        "could not be run: not found: ",
        "5 cases: 0 pass, 0 fail, 5 could not be run",
    ):
        assert message in output


def test_a_wrong_subject_and_a_refused_cell_could_not_be_run(folder, capsys):
    right = write(folder, "right")
    assert main(["replay", right, "--subject", "nowhere.at_all:operator"]) == 2
    assert "could not be run: subject: cannot import 'nowhere.at_all'" in capsys.readouterr().out
    half = Recipe(cell=cell_named("float16"))
    other = write(folder, "half", subject="right", recipe=half, property_=GRADIENTS.replace("float32", "float16"))
    assert main(["replay", other]) == 2
    assert "skipped, kernels_of_replay:right does not declare float16" in capsys.readouterr().out


def test_no_gpu_is_told_or_another_device_is_taken(folder, capsys, monkeypatch):
    def choose(asked):
        if asked == "cuda":
            raise ValueError("device: 'cuda' asked for, but torch finds no usable GPU")
        return devices.Device(type="cpu")

    monkeypatch.setattr(devices, "choose", choose)
    file = write(folder, "right", device="cuda")
    assert main(["replay", file, "--device", "cuda"]) == 2
    assert "torch finds no usable GPU" in capsys.readouterr().out
    plan = replay.make_plan(file, subject=None, device=None)
    assert isinstance(plan, replay.Plan)
    assert plan.device == "cpu"
    assert "it was recorded on cuda, which is not usable here" in plan.told


def test_a_case_that_hangs_is_ended(folder, capsys):
    assert main(["replay", write(folder, "hang", property_=FORWARD), "--timeout", "4"]) == 1
    assert "still fails: hung\nIt did not end within 4 s." in capsys.readouterr().out


def test_the_case_of_another_project_is_run_where_it_was_recorded(folder):
    failures = folder / "project" / ".msda" / "failures"
    failures.mkdir(parents=True)
    (folder / "project" / "test_own.py").write_text("")
    write(failures, "own", property_="test_own.py::test_it")
    plan = replay.make_plan(str(failures / "own.json"), subject=None, device="cpu")
    assert isinstance(plan, replay.Plan)
    assert plan.root == (folder / "project").resolve()


@pytest.mark.parametrize(
    "arguments", [["a", "b", "--emit", "pytest"], ["a", "--output", "x.py"], ["a", "--picture", "x.gif"]]
)
def test_options_that_do_not_go_together(arguments, capsys):
    assert main(["replay", *arguments]) == 2
    assert "replay: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "summary", "outcome", "headline"),
    [
        ({"status": None}, None, "fail", "still fails: hung"),
        ({"err": "Timeout (0:03:00)!"}, None, "fail", "still fails: hung"),
        ({"status": -11}, None, "fail", "still fails: crash"),
        ({"status": 4, "out": "", "err": "ERROR: no"}, None, "not run", "could not be run: no"),
        ({"status": 0}, {"counts": {"passed": 1}}, "pass", "passes: the property holds for this case"),
        ({"status": 1}, {"counts": {"failed": 1}}, "fail", "still fails"),
        ({"status": 1}, {"counts": {"failed": 0, "error": 1}}, "not run", "could not be run: E   ValueError: x"),
        ({"status": 5}, {"counts": {}, "skipped": {"a": "why"}}, "not run", "could not be run: skipped, why"),
    ],
)
def test_what_an_ended_process_means(changes, summary, outcome, headline):
    output = "==== test session starts ====\n==== ERRORS ====\n____ test ____\nE   ValueError: x\n"
    done = replay.Done(**{"status": 0, "out": output, "err": "", "process": 1, **changes})
    judged = replay.judge(done, summary, timeout=1.0)
    assert (judged.outcome, judged.headline) == (outcome, headline)


def test_an_emitted_test_fails_for_the_wrong_subject_and_passes_for_the_right_one(folder, capsys):
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    file = write(folder, "wrong")
    clean = folder / "clean"
    assert main(["replay", file, "--emit", "pytest", "--output", "clean/test_case.py", "--picture", "p.svg"]) == 1
    assert "test written to clean/test_case.py" in capsys.readouterr().out
    assert (folder / "p.svg").read_text().startswith("<?xml")
    text = (clean / "test_case.py").read_text()
    assert "out: outside its error bound" in text
    fixed = text.replace("from kernels_of_replay import wrong as", "from kernels_of_replay import right as")
    (clean / "test_fixed.py").write_text(fixed)
    (clean / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:properties.plugin", "-rA"],
        cwd=clean,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FAILED test_case.py::test_case" in done.stdout
    assert "PASSED test_fixed.py::test_case" in done.stdout
    assert ", expected " in done.stdout


def test_standard_output_is_the_test_alone(folder, capsys):
    arguments = [str(folder / write(folder, "right")), "--device", "cpu", "--subject", "kernels_of_replay:right"]
    assert examine.main([*arguments, "--root", str(folder), "--emit", str(folder / "t.py"), "--explain"]) == 0
    assert "x_im = x * W - 0.5 = " in capsys.readouterr().out
    assert (folder / "t.py").read_text().startswith('"""A case of multi-scale')


def run_emitted(text, operator, monkeypatch, tmp_path):
    """Run the test function of an emitted file with another operator; return what it complains of."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = tmp_path / "emitted.py"
    path.write_text(text)
    names: dict = {}
    exec(compile(text, str(path), "exec"), names)
    names["operator"] = operator
    try:
        names["test_case"]()
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded", "offset"])
def test_operands_keep_their_layout_and_bits(layout, monkeypatch, tmp_path):
    layouts = {f"{name}_layout": layout for name in ("value", "locations", "weights")}
    recipe = Recipe(cell=cell_named("float32"), queries=3, channels=3, points=2, **layouts)
    case = CaseFile(recipe=recipe, property=FORWARD)
    text = emit.pytest_source(case, from_callable(operators()["right"], name="x"), CPU, spec="math:cos")
    given: list[torch.Tensor] = []

    def operator(*operands):
        given.extend(operands)
        return operands[0]

    run_emitted(text, operator, monkeypatch, tmp_path)
    inputs = case.recipe.build()
    for ours, theirs in zip((inputs.value, inputs.locations, inputs.weights), (given[0], *given[3:]), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_infinities_and_either_side_of_an_edge_are_admissible_in_an_emitted_test(monkeypatch, tmp_path):
    recipe = Recipe(cell=cell_named("float32"), levels=((2, 2),), value="huge", hot=(Hot(0, 0.75, 0.5),))
    case = CaseFile(recipe=recipe)
    right = operators()["right"]
    text = emit.pytest_source(case, from_callable(right, name="x"), CPU, spec="math:cos")
    assert run_emitted(text, right, monkeypatch, tmp_path) == ""


def test_the_shipped_kernels_are_interpreted_where_no_gpu_is():
    subject = from_callable(operators()["right"], name="x")
    text = emit.pytest_source(CaseFile(recipe=RECIPE), subject, CPU, spec="msda:multi_scale_deformable_attention")
    assert 'DEVICE = "cuda" if torch.cuda.is_available() else "cpu"' in text
    assert text.index('os.environ["TRITON_INTERPRET"] = "1"') < text.index("from msda import")


def test_a_large_case_is_not_written_out(folder, capsys):
    large = Recipe(cell=cell_named("float32"), levels=((MAX_NUMBERS, 1),))
    file = folder / write(folder, "large", recipe=large)
    arguments = [str(file), "--device", "cpu", "--subject", "kernels_of_replay:right", "--root", str(folder)]
    assert examine.main([*arguments, "--emit", str(folder / "t.py")]) == 2
    assert f"expected at most {MAX_NUMBERS}" in capsys.readouterr().err


def test_a_subject_that_raises_is_told(folder, capsys):
    (folder / "raises_in_replay.py").write_text("def operator(*operands):\n    raise RuntimeError('no kernel image')\n")
    file = folder / write(folder, "right")
    arguments = [str(file), "--device", "cpu", "--subject", "raises_in_replay:operator", "--root", str(folder)]
    assert examine.main([*arguments, "--explain"]) == 0
    assert "The subject raised RuntimeError: no kernel image" in capsys.readouterr().out
    assert examine.main([*arguments, "--picture", "x.png"]) == 2


@pytest.mark.parametrize("property_", [FORWARD, GRADIENTS])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures_are_written(property_, kind, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    case = CaseFile(recipe=RECIPE, property=property_)
    walked = walk_case(case, from_callable(operators()["wrong"], name="wrong"), CPU)
    assert not walked.verdict.passed
    path = tmp_path / "new" / f"picture.{kind}"
    picture.draw(case, walked, path)
    assert path.read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    if kind == "svg":
        assert "query 0, point 0" in path.read_text()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    case = CaseFile(recipe=RECIPE, property=FORWARD)
    walked = walk_case(case, from_callable(operators()["right"], name="right"), CPU)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'msda-verify\[report\]'"):
        picture.draw(case, walked, tmp_path / "x.png")
