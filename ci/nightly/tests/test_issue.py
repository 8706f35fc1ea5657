"""The text of an issue: what failed and how to see it again, also when there is next to nothing to tell from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ci.nightly import issue
from ci.nightly.tests.test_faults import failed
from ci.nightly.tests.test_merge import FORWARD, part

ROOT = Path(__file__).resolve().parents[3]


def write(folder, nightly=None, **cases):
    (folder / "failures").mkdir()
    if nightly is not None:
        (folder / "nightly.json").write_text(json.dumps(nightly))
    for name, plain in cases.items():
        (folder / "failures" / f"{name}.json").write_text(json.dumps(plain))
    return folder


def test_each_failure_has_a_line_that_replays_it(tmp_path):
    folder = write(tmp_path, part(1, failed()), x={"property": "not told twice"})
    assert issue.text(folder).splitlines() == [
        "**faults**: a:b",
        "",
        f"- `{FORWARD}`, logic fault in out: `python -m ci replay failures/x.json`",
    ]


def test_what_is_no_fault_is_told_too(tmp_path):
    nightly = part(1, failed()) | {"verdict": "could not run"}
    nightly["reasons"].insert(0, "shard 2/2 is missing")
    text = issue.text(write(tmp_path, nightly))
    assert text.startswith("**could not run**: a:b\n")
    assert text.endswith("replay failures/x.json`\n\n- shard 2/2 is missing\n")


def test_a_run_without_a_result_has_its_case_files(tmp_path):
    folder = write(tmp_path, case={"property": FORWARD, "kind": "precision loss"})
    (folder / "failures" / "half.json").write_text('{"prop')
    assert issue.text(folder).splitlines() == [
        "**could not run**: there is no nightly.json",
        "",
        f"- `{FORWARD}`, precision loss: `python -m ci replay failures/case.json`",
        "- `unknown property`, half.json is damaged: `python -m ci replay failures/half.json`",
    ]


def test_there_may_be_nothing_at_all(tmp_path):
    assert issue.text(tmp_path / "none") == "**could not run**: there is no nightly.json\n"
    for content, told in (("[]", "is damaged"), ("{", "is damaged"), ("{}", "is not what a nightly run writes")):
        (tmp_path / "nightly.json").write_text(content)
        assert issue.text(tmp_path) == f"**could not run**: nightly.json {told}\n"


def test_it_fits_into_an_issue_and_has_no_foreign_markup(tmp_path):
    fault = {"property": "p`q" * 500, "class": "@somebody <b>" * 500, "case": "failures/a b.json"}
    nightly = {"kind": "nightly", "verdict": "faults", "subject": "a:b", "faults": [fault] * 500, "reasons": [None]}
    (tmp_path / "nightly.json").write_text(json.dumps(nightly))
    text = issue.text(tmp_path)
    assert 40000 < len(text.encode()) < 65000
    assert text.endswith("more is in the report\n")
    assert "@somebody" not in text
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "replay 'failures/a b.json'" in text


def test_it_needs_no_package(tmp_path):
    # -S: no packages but those of the standard library.
    command = [sys.executable, "-S", "-m", "ci.nightly.issue", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == issue.text(tmp_path)
