"""The run as JUnit XML: a test for each property and variant, one for each crash, one for the coverage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from . import verdict
from .load import Run, mapping, number, objects
from .verdict import Fault

# What XML 1.0 has no way to write.
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COVERAGE = "coverage"


def document(run: Run) -> str:
    """Return the document.

    Faults are failures, crashes and a run that could not do its work are errors, what was not tested is skipped with
    its reason, input classes below their floors are one failure.
    """
    nightly = run.nightly
    cases = [*_properties(run), *_crashes(run), _coverage(run), *_broken(run)]
    counts = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "error", "skipped")}
    suite = ET.Element(
        "testsuite",
        name=_clean(nightly.get("subject") or "nightly"),
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{number(nightly.get('elapsed_seconds')) or 0.0:.3f}",
        timestamp=_clean(nightly.get("started") or ""),
    )
    facts = ET.SubElement(suite, "properties")
    for name, value in (*verdict.facts(run), *verdict.versions(run)):
        ET.SubElement(facts, "property", name=_clean(name), value=_clean(value))
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _properties(run: Run) -> list[ET.Element]:
    found: dict[tuple[str, str], list[Fault]] = {}
    for fault in verdict.faults(run):
        found.setdefault((fault.test, fault.variant), []).append(fault)
    cases = []
    for item in objects(run.nightly, "items"):
        place = (str(item.get("test", "")), str(item.get("variant") or ""))
        cases.append(_case(*place, seconds=number(item.get("seconds")) or 0.0, faults=found.pop(place, [])))
        if item.get("outcome") == "failed" and not cases[-1].findall("failure"):
            _say(cases[-1], "failure", "logic fault", "failed without a fault of its own", "")
    # A fault of a case of the corpus, or of a property that never came to its end.
    cases += [_case(*place, seconds=0.0, faults=faults) for place, faults in found.items()]
    for nodeid, reason in mapping(run.nightly, "skipped").items():
        test, _, variant = str(nodeid).partition("[")
        case = _case(test, variant.removesuffix("]"), seconds=0.0, faults=[])
        ET.SubElement(case, "skipped", message=_clean(reason))
        cases.append(case)
    return cases


def _case(test: str, variant: str, *, seconds: float, faults: list[Fault]) -> ET.Element:
    file, _, name = test.rpartition("::")
    classname = file.removesuffix(".py").replace("/", ".") or "nightly"
    shown = f"{name}[{variant}]" if variant else name
    case = ET.Element("testcase", classname=_clean(classname), name=_clean(shown), time=f"{seconds:.3f}")
    for fault in faults:
        _say(case, "failure", fault.kind, fault.first_line, "\n".join((*fault.story, "", fault.replay)).strip())
    return case


def _crashes(run: Run) -> list[ET.Element]:
    cases = []
    for nodeid, message in verdict.crashes(run):
        test, _, variant = nodeid.partition("[")
        cases.append(_case(test, variant.removesuffix("]"), seconds=0.0, faults=[]))
        _say(cases[-1], "error", "crash", message, "")
    return cases


def _coverage(run: Run) -> ET.Element:
    case = _case(COVERAGE, "", seconds=0.0, faults=[])
    missed = verdict.below_floor(run.nightly)
    if missed:
        lines = [f"{name}: {cases} cases, floor {floor}" for name, (cases, floor) in missed.items()]
        _say(case, "failure", COVERAGE, f"{len(missed)} input classes below their floors", "\n".join(lines))
    return case


def _broken(run: Run) -> list[ET.Element]:
    head = verdict.verdict(run)
    if head.state != "could not run":
        return []
    case = _case("run", "", seconds=0.0, faults=[])
    _say(case, "error", "could not run", head.sentence, "\n".join(head.reasons))
    return [case]


def _say(case: ET.Element, tag: str, kind: str, message: str, text: str) -> None:
    told: Mapping[str, Any] = {"type": _clean(kind), "message": _clean(message)}
    ET.SubElement(case, tag, dict(told)).text = _clean(text)


def _clean(text: Any) -> str:
    return UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))
