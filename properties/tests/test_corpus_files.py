"""The files of the regression corpus, what covers each public report, and how the corpus comes first."""

import dataclasses
import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from properties import casefile, database, profiles, test_corpus
from properties.casefile import CaseFile
from properties.corpus_order import CORPUS, COVERAGE, TEST, case_files, corpus_first
from properties.explicit import to_hex
from properties.harness import Harness
from properties.limits import Limits
from properties.report import ItemStats
from properties.subject import Subject, from_callable, load
from properties.verdict import INDICES, PropertyFailed

ROOT = Path(__file__).resolve().parents[2]
REPORTS = 72
ID = re.compile(r"\b[MGTX]\d\d\b")
FILES = case_files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_canonical_and_says_what_is_right(path: Path):
    case = casefile.read(path)
    assert case.to_json() == path.read_text()
    assert re.match(r"([MGTX]\d\d(, [MGTX]\d\d)*: \S.*; .*|own: .*)", case.origin), case.origin
    assert not case.failure
    assert case.right
    elements = [(row["output"], tuple(row["index"])) for row in case.right]
    assert len(set(elements)) == len(elements)
    shapes = {
        "out": case.recipe.shape("grad_output"),
        "grad_value": case.recipe.shape("value"),
        "grad_sampling_locations": case.recipe.shape("locations"),
        "grad_attention_weights": case.recipe.shape("weights"),
    }
    for row in case.right:
        assert set(row) == {"output", "index", "value"}
        shape = shapes[row["output"]]
        assert len(row["index"]) == len(shape)
        assert all(0 <= one < size for one, size in zip(row["index"], shape, strict=True))
        assert to_hex(float.fromhex(row["value"])) == row["value"]


def test_names_are_words_and_no_input_is_there_twice():
    assert all(re.fullmatch(r"([mgtx]\d\d|own)(_[a-z0-9]+)+", path.stem) for path in FILES)
    assert len({path.stem.lower() for path in FILES}) == len(FILES)
    recipes = {casefile.read(path).recipe: path.stem for path in FILES}
    assert len(recipes) == len(FILES)
    assert not [path for path in CORPUS.iterdir() if path.suffix != ".json"]


def test_few_cases_are_for_a_gpu_alone():
    large = [path.stem for path in FILES if test_corpus.too_large(casefile.read(path).recipe, Limits.cpu())]
    assert large == [path.stem for path in FILES if path.stem.endswith("_gpu")]
    assert len(large) <= len(FILES) // 10


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(COVERAGE.read_text())["rows"]
    return found


def files_of(row: dict[str, Any]) -> set[str]:
    patterns = [one.removeprefix("corpus:") for one in row.get("covered_by", ()) if one.startswith("corpus:")]
    names = [path.name for path in FILES]
    matches = {pattern: fnmatch.filter(names, pattern) for pattern in patterns}
    assert all(matches.values()), matches
    return {name for found in matches.values() for name in found}


def test_every_report_is_covered_or_says_why_not():
    plain = rows()
    assert COVERAGE.read_text() == casefile.dump({"rows": plain}) + "\n"
    ids = [row["id"] for row in plain]
    assert len(set(ids)) == len(ids) == REPORTS
    assert ids == sorted(ids, key=lambda one: ("MGTX".index(one[0]), one))
    for row in plain:
        assert set(row) in ({"id", "report", "covered_by"}, {"id", "report", "not_covered"}), row["id"]
        assert row["report"]
        assert row.get("covered_by") or row.get("not_covered"), row["id"]


def test_every_test_that_is_named_exists():
    named = {one for row in rows() for one in row.get("covered_by", ()) if not one.startswith("corpus:")}
    for one in sorted(named):
        file, _, function = one.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), one


def test_reports_and_files_name_each_other():
    covering = {row["id"]: files_of(row) for row in rows()}
    for path in FILES:
        named = set(ID.findall(casefile.read(path).origin.partition(":")[0]))
        assert named == {one for one, files in covering.items() if path.name in files}, path.name


def harness_of(subject: Subject) -> Harness:
    return Harness(
        subject=subject, device=torch.device("cpu"), limits=Limits.cpu(), stats=ItemStats(test="test_corpus")
    )


def zeros(value: Tensor, _shapes: Tensor, _starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    # Attached to its operands, so that all gradients are zeros too.
    nothing = value.sum(dim=(1, 3)) * 0 + (locations.sum() + weights.sum()) * 0
    out = nothing[:, None, :, None].expand(value.shape[0], locations.shape[1], -1, value.shape[3])
    return out.flatten(2).to(value.dtype).nan_to_num(nan=0.0)


@pytest.mark.parametrize("name", ["m01_float64_30_channels", "m36_one_query", "g16_a_million_pixels"])
def test_zeros_fail_wherever_a_result_is_not_zero(name: str):
    case = casefile.read(CORPUS / f"{name}.json")
    with pytest.raises(PropertyFailed) as failed:
        test_corpus.check_case(harness_of(from_callable(zeros, name="zeros")), case)
    assert {one.output for one in failed.value.evidence} == set(INDICES)
    assert all(one.got == 0.0 for one in failed.value.evidence)


def with_right(case: CaseFile, step: float) -> CaseFile:
    """The same case with another number for the first element that is not 0."""
    rows = list(case.right)
    number = next(i for i, row in enumerate(rows) if float.fromhex(row["value"]))
    changed = float.fromhex(rows[number]["value"]) * (1.0 + step)
    rows[number] = rows[number] | {"value": to_hex(changed)}
    return dataclasses.replace(case, right=tuple(rows))


@pytest.mark.parametrize(("name", "step"), [("m14_x_offset", 2.0**-38), ("m01_float64_30_channels", 2.0**-44)])
def test_a_reference_that_is_a_little_off_is_told(name: str, step: float, msda_device: str):
    # The bounds of a kernel are some 2^-21 and 2^-50 of these results; the reference is given much less, or half.
    case = casefile.read(CORPUS / f"{name}.json")
    harness = dataclasses.replace(harness_of(load(device=msda_device)), device=torch.device(msda_device))
    test_corpus.check_case(harness, case)
    with pytest.raises(PropertyFailed, match=r"^reference: wrong where the result is known by other means"):
        test_corpus.check_case(harness, with_right(case, step))


def test_a_subject_is_held_against_what_is_right(msda_device: str):
    case = casefile.read(CORPUS / "m14_x_offset.json")
    harness = dataclasses.replace(harness_of(load(device=msda_device)), device=torch.device(msda_device))
    walked = harness.check(case.recipe)
    test_corpus.check_element(walked.expectation.out, "out", (0, 0, 0), 4.5, walked)
    with pytest.raises(PropertyFailed, match="known     by other means than the reference"):
        test_corpus.check_element(walked.expectation.out, "out", (0, 0, 0), 4.5 + 2.0**-16, walked)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("others", [0, 1, 100])
def test_every_stretch_begins_with_its_part_of_the_corpus(others: int, workers: int):
    items: list[Any] = [SimpleNamespace(path=ROOT / "other.py", name=f"other {number}") for number in range(others)]
    corpus = [SimpleNamespace(path=TEST, name=f"case {number}") for number in range(12)]
    before = {id(item) for item in (*items, *corpus)}
    ordered = [*items[: others // 2], *corpus, *items[others // 2 :]]
    corpus_first(ordered, workers=workers)
    assert {id(item) for item in ordered} == before
    assert [item.name for item in ordered if item.path == TEST] == [item.name for item in corpus]
    assert [item.name for item in ordered if item.path != TEST] == [item.name for item in items]
    # As `--dist worksteal` deals them out.
    start, lengths = 0, []
    for worker in range(workers):
        stretch = ordered[start : start + (len(ordered) - start) // (workers - worker)]
        kinds = [item.path == TEST for item in stretch]
        assert kinds == sorted(kinds, reverse=True)
        lengths.append(sum(kinds))
        start += len(stretch)
    assert max(lengths) - min(lengths) <= 1


def test_no_property_has_a_deadline():
    # The first case compiles: 459 ms, then 2 ms, against Hypothesis's 200.
    assert profiles.item_settings(examples=1, database=None).deadline is None


def test_variants_and_subjects_have_databases_of_their_own():
    names = [("test_it[a]", "x"), ("test_it[b]", "x"), ("test_it[a]", "y"), ("test_it", "x")]
    assert len({database.item_key(*name, "cpu") for name in names}) == len(names)


def test_warnings_are_errors(pytestconfig: pytest.Config):
    # The interpreter warns of integer overflow, and goes on with what is left of the number.
    assert "error" in pytestconfig.getini("filterwarnings")


IMPORT_ALL = """
import importlib, sys, torch
def touched(*_):
    raise AssertionError("an import initialises CUDA")
torch.cuda._lazy_init = touched
for name in sys.argv[1:]:
    importlib.import_module(name)
assert not torch.cuda.is_initialized()
"""


def test_collecting_touches_no_gpu():
    # A process that was forked from one with a CUDA context cannot use the GPU.
    files = [
        path for folder in ("properties", "msda", "reference", "ci") for path in (ROOT / folder).rglob("test_*.py")
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", IMPORT_ALL, *sorted(names)], env=environment, check=True, timeout=300)
