"""Case files: what is known of a case survives writing and reading; what cannot be read is one clear line."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from properties import casefile, recipe
from properties.casefile import CaseFile
from properties.cells import cell_named
from properties.kinds import kind_of
from properties.recipe import Recipe
from properties.subject import Subject
from properties.verdict import Evidence, PropertyFailed, judge
from reference.expect import expect
from reference.model import Arithmetic

EVIDENCE = Evidence(
    output="out",
    failure="out of bound",
    expected=0.1,
    got=math.nan,
    index=(0, 1, 2),
    bound=1e-7,
    parts={"arithmetic": 1e-7},
    ratio=math.inf,
    wrong=1,
    elements=6,
)
CASE = CaseFile(
    recipe=Recipe(cell=cell_named("float32"), queries=2, channels=3, seed=9),
    property="properties/test_forward.py::test_forward_within_bound[float32]",
    subject="a:b",
    device="cuda",
    gpu="some GPU",
    failure="out: outside its error bound",
    kind="logic fault",
    evidence=(casefile.evidence_to_dict(EVIDENCE),),
    versions={"torch": "2.13.0"},
    seed=5,
    origin="a report",
    right=({"output": "out", "index": [0, 0, 0], "value": "0x1p+0"},),
)


def test_everything_is_read_again(tmp_path):
    path = CASE.write(tmp_path)
    assert casefile.read(path) == CASE
    assert float.fromhex(casefile.read(path).evidence[0]["expected"]) == 0.1


def test_one_field_a_line_and_no_long_lines(tmp_path):
    lines = CASE.write(tmp_path).read_text().splitlines()
    assert '  "kind": "logic fault",' in lines
    assert max(map(len, lines)) <= casefile.WIDTH


def test_a_bare_recipe_is_a_case(tmp_path):
    (tmp_path / "bare.json").write_text(CASE.recipe.to_json())
    assert casefile.read(tmp_path / "bare.json") == CaseFile(recipe=CASE.recipe)


def test_the_first_format_is_still_read(tmp_path):
    old = {"format": 1, "property": "p", "subject": "s", "device": "cpu", "failure": "f"}
    recipe = {key: value for key, value in CASE.recipe.to_dict().items() if key != "explicit"} | {"version": 1}
    (tmp_path / "old.json").write_text(json.dumps({**old, "recipe": recipe}))
    expected = CaseFile(recipe=CASE.recipe, property="p", subject="s", device="cpu", failure="f")
    assert casefile.read(tmp_path / "old.json") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CASE.to_json()[:200], "is damaged, it is not JSON"),
        ("[]", "cannot be read: recipe is a list"),
        (json.dumps(CASE.to_dict() | {"format": 3}), "its format is 3, expected at most 2: a newer version"),
        (json.dumps(CASE.to_dict() | {"format": None}), "its format is None, expected 1 to 2"),
        (json.dumps(CASE.to_dict() | {"colour": 1}), "unknown fields 'colour'"),
        (json.dumps(CASE.to_dict() | {"evidence": [1]}), "its evidence is no list of objects"),
        (json.dumps(CASE.to_dict() | {"seed": "x"}), "its seed is 'x'"),
        (json.dumps(CASE.to_dict() | {"versions": 3}), "cannot be read"),
        (json.dumps(CASE.to_dict() | {"recipe": 3}), "recipe is a int"),
        ("\udcff", "is damaged"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, text, message):
    path = tmp_path / "case.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"case\.json") as raised:
        casefile.read(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"got": 0.3}, "logic fault"),
        ({"got": 0.1001}, "precision loss"),
        ({"got": math.inf, "failure": "not finite"}, "logic fault"),
        ({"failure": "not repeatable"}, "determinism"),
        ({"failure": "written", "expected": "left alone", "got": "overwritten"}, "memory"),
        ({"failure": "shape", "expected": "(1,)", "got": "(2,)"}, "logic fault"),
    ],
)
def test_class_of_a_failure(change, kind):
    assert kind_of(PropertyFailed("", evidence=[dataclasses.replace(EVIDENCE, **change)])) == kind


def test_class_of_what_a_subject_raises():
    assert kind_of(RuntimeError("no kernel image")) == "refused wrongly"
    assert kind_of(MemoryError()) == "memory"
    assert kind_of(PropertyFailed("", kind="accepted wrongly")) == "accepted wrongly"
    assert kind_of(AssertionError()) == "logic fault"


def test_a_file_of_this_version_is_replayed_by_the_next_one(tmp_path, monkeypatch):
    path = CASE.write(tmp_path)
    before = CASE.recipe.build()

    passed = []

    def migrate(plain):
        passed.append(plain["version"])
        return plain

    monkeypatch.setitem(recipe.MIGRATIONS, recipe.VERSION, migrate)
    monkeypatch.setitem(casefile.MIGRATIONS, casefile.FORMAT, lambda plain: {**plain, "kind": plain["kind"].upper()})
    monkeypatch.setattr(recipe, "VERSION", recipe.VERSION + 1)
    monkeypatch.setattr(casefile, "FORMAT", casefile.FORMAT + 1)
    again = casefile.read(path)
    assert again == dataclasses.replace(CASE, kind="LOGIC FAULT")
    assert passed == [recipe.VERSION - 1]
    after = again.recipe.build()
    assert torch.equal(before.value, after.value)
    assert torch.equal(before.locations, after.locations)
    observed = Subject(name="zeros", call=zeros).observe(after, gradients=False)
    assert not judge(observed, expect(after, Arithmetic(), gradients=False)).passed


def zeros(value, _shapes, _starts, locations, _weights):
    return value.new_zeros(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])
