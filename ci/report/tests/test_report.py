"""What is in the report, in each of its forms; what a damaged or hostile run does to it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ci import report

from .sample import write_earlier, write_mutants, write_run

SECTIONS = ["faults", "crashes", "properties", "histograms", "magnitude", "collisions", "coverage", "determinism"]
SECTIONS += ["mutants", "compiles", "time", "trend", "skipped", "versions"]


class Page(HTMLParser):
    """Collects tags, identifiers and addresses; complains of tags that do not match."""

    VOID = frozenset(["meta", "link", "br", "img", "path", "use", "rect", "hr", "circle", "line", "image", "polygon"])

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that has no content."""
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Close a tag."""
        if tag not in self.VOID:
            assert self.open, f"{tag} ends, nothing is open"
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.text += data


def page(folder: Path) -> Page:
    parsed = Page()
    parsed.feed((folder / "report.html").read_text())
    parsed.close()
    assert not parsed.open
    assert len(set(parsed.ids)) == len(parsed.ids)
    return parsed


def everything(tmp_path: Path, **how: object) -> Path:
    folder = write_run(tmp_path / "run", **how)  # type: ignore[arg-type]
    trend = write_earlier(tmp_path / "earlier", 5)
    report.render(folder, mutants=write_mutants(tmp_path / "mutants.json"), trend=trend)
    return folder


def test_a_run_with_faults_shows_all_that_there_is(tmp_path: Path):
    folder = everything(tmp_path, verdict="faults")
    found = page(folder)
    assert [one for one in found.ids if one in SECTIONS] == SECTIONS
    # The verdict comes before everything else, the faults next.
    assert found.text.index("Faults") < found.text.index("310") < found.text.index("out: outside its error bound")
    assert "1 fault, 1 crash and 1 input class below the floor, in 8,000 cases." in found.text
    assert "1 of 2 mutants killed (50.0 %)" in found.text
    assert "not seen in 304 cases" in found.text
    assert "not declared: mixed dtypes" in found.text
    assert "cases.jsonl: 1 line could not be read" in found.text
    assert found.tags.count("img") == 1
    assert sum(tag == "svg" for tag in found.tags) == 4 + 4 * 4 + 4 + 4
    assert not list(folder.glob(".*unfinished"))


def test_a_clean_run_says_so_and_has_no_fault(tmp_path: Path):
    found = page(everything(tmp_path))
    assert "No fault in 8,000 cases; every error is within its bound." in found.text
    assert not {"faults", "crashes"} & set(found.ids)


def test_the_page_needs_nothing_else(tmp_path: Path):
    folder = everything(tmp_path, verdict="faults", hostile=True)
    found = page(folder)
    assert "script" not in found.tags
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    style = re.search(r"<style>(.*?)</style>", (folder / "report.html").read_text(), re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import|https?:", style[1])
    assert "<script>alert(1)</script>" in found.text


def test_markdown_stays_markdown_whatever_a_subject_is_called(tmp_path: Path):
    text = (everything(tmp_path, verdict="faults", hostile=True) / "summary.md").read_text()
    outside = "".join(text.split("```")[0::2])
    assert "<script>" not in outside
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    for one, other, width, next_width in zip(tables, tables[1:], widths, widths[1:], strict=False):
        if set(other) <= set("| -:"):
            assert width == next_width, (one, other)


def test_the_summary_tells_the_story_and_how_to_replay_it(tmp_path: Path):
    text = (everything(tmp_path, verdict="faults") / "summary.md").read_text()
    assert text.startswith("# Faults: kernels:operator\n\n1 fault, 1 crash and 1 input class")
    assert "ci/run replay report/failures/" in text
    assert "| location: border | 2 | 50 |" in text
    assert "| forward within bound | 0.400 (1,000) | **failed** (1,000) |" in text
    assert not re.search(r"\n{4,}", text)


def test_junit_counts_faults_crashes_and_what_was_skipped(tmp_path: Path):
    suite = ET.parse(everything(tmp_path, verdict="faults") / "junit.xml").getroot()[0]
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    # Eight items, a crash, a skip and the coverage.
    assert counts == {"tests": 11, "failures": 2, "errors": 1, "skipped": 1}
    failed = next(case for case in suite.iter("testcase") if case.get("name") == "test_forward_within_bound[float32]")
    failure = failed.find("failure")
    assert failure is not None
    assert failure.get("message") == "out: outside its error bound"
    assert "ci/run replay" in (failure.text or "")


@pytest.mark.parametrize("verdict", ["clean", "faults", "could not run"])
def test_junit_fails_when_the_run_does(tmp_path: Path, verdict: str):
    suite = ET.parse(everything(tmp_path, verdict=verdict, hostile=True) / "junit.xml").getroot()[0]
    bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    assert bool(bad) == (verdict != "clean")


def test_a_run_that_could_not_run_gives_its_reason(tmp_path: Path):
    folder = everything(tmp_path, verdict="could not run")
    assert "reason of could not run" in page(folder).text
    assert "reason of could not run" in (folder / "summary.md").read_text()


def test_a_run_of_nothing_but_its_header_is_reported(tmp_path: Path):
    (tmp_path / "nightly.json").write_text('{"format": 1, "kind": "nightly"}')
    report.render(tmp_path)
    assert "verdict is None, expected one of" in page(tmp_path).text
    assert "cases.jsonl is missing" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, [None, 3, {}], {"a": None, "b": {"c": []}}])
def test_a_damaged_part_does_not_take_the_rest_with_it(tmp_path: Path, value: object):
    folder = write_run(tmp_path, verdict="faults")
    (folder / "cases.jsonl").unlink()
    plain = json.loads((folder / "nightly.json").read_text())
    for key in sorted(set(plain) - {"format", "kind", "subject"}):
        (folder / "nightly.json").write_text(json.dumps(plain | {key: value}))
        report.render(folder)
        assert "kernels:operator" in page(folder).text, key
        ET.parse(folder / "junit.xml")


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "other"}', '{"kind": "nightly", "format": 99}'])
def test_what_is_no_run_is_refused_with_its_path(tmp_path: Path, content: str):
    (tmp_path / "nightly.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "nightly.json"))):
        report.render(tmp_path)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("", "no case file was written"),
        ("failures/missing.json", "No such file"),
        ("../outside.json", "expected a path below the run's folder"),
        ("nightly.json", "cannot be read"),
    ],
)
def test_a_fault_without_a_readable_case_has_no_picture_and_says_why(tmp_path: Path, case: str, reason: str):
    folder = write_run(tmp_path, verdict="faults")
    plain = json.loads((folder / "nightly.json").read_text())
    plain["faults"][0]["case"] = case
    (folder / "nightly.json").write_text(json.dumps(plain))
    report.render(folder)
    found = page(folder)
    assert "img" not in found.tags
    assert reason in found.text


def test_the_same_run_gives_the_same_page(tmp_path: Path):
    one, two = (write_run(tmp_path / name, verdict="faults") for name in ("one", "two"))
    for folder in (one, two):
        report.render(folder)
    assert (one / "report.html").read_text() == (two / "report.html").read_text()
