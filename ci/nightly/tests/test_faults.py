"""Faults are told once: by property, dtype cell, output and class, whatever they looked like before."""

from __future__ import annotations

from typing import Any

from ci.nightly.faults import Fault, Faults, grouped, merged
from ci.nightly.tests.test_plan import record

FORWARD = "properties/test_forward.py::test_forward[float32]"
CASE = {"class": "logic fault", "failure": "out: wrong", "recipe": "float32 B1", "case": "/far/failures/x.json"}


def failed(nodeid: str = FORWARD, output: str = "out", kind: str = "logic fault", **fields: Any):
    story = ("out: wrong", "  replay    ci/run replay x.json")
    raised = fields.pop("raised", ((output, kind),))
    one = record(nodeid, outcome="failed", raised=raised, story=story, **fields)
    one.stats["failure"] = dict(CASE)  # type: ignore[index]
    return one


def test_a_fault_has_what_a_reader_needs():
    found = Faults().hear(failed(cases=7), cases=100)
    assert found is not None
    assert found.key == ("properties/test_forward.py::test_forward", "float32", "out", "logic fault")
    assert (found.case, found.replay, found.cases) == ("failures/x.json", "ci/run replay x.json", 107)
    assert Fault.from_dict(found.as_dict()) == found
    assert found.as_dict()["class"] == "logic fault"


def test_the_same_fault_counts_and_another_output_or_class_is_another_one():
    faults = Faults()
    assert faults.hear(failed()) is not None
    assert faults.hear(failed()) is None
    assert faults.hear(failed(output="grad_value")) is not None
    assert faults.hear(failed(kind="precision loss")) is not None
    assert faults.hear(failed(FORWARD.replace("32", "64"))) is not None
    assert [fault.count for fault in faults] == [2, 1, 1, 1]


def test_what_was_seen_beside_it_or_on_the_way_is_known():
    faults = Faults()
    both = (("out", "logic fault"), ("grad_value", "precision loss"))
    faults.hear(failed(raised=both, met=(("out", "precision loss"),)))
    assert faults.known() == {FORWARD: sorted({*both, ("out", "precision loss")})}
    assert len(faults) == 1
    faults.hear(record(FORWARD, seen=(("grad_value", "precision loss", 4), ("out", "precision loss", 2))))
    assert [fault.count for fault in faults] == [7]


def test_a_case_that_could_not_be_made_small_in_time_gives_way():
    faults = Faults()
    faults.hear(failed(whole=False))
    smaller = failed()
    smaller.stats["failure"]["case"] = "/far/failures/smaller.json"
    faults.hear(smaller)
    assert [(fault.case, fault.whole) for fault in faults] == [("failures/smaller.json", True)]


def test_the_corpus_is_one_property_and_its_cases_have_cells():
    faults = Faults()
    for name, cell in (("a", "float32"), ("b", "float32"), ("c", "float64")):
        faults.hear(failed(f"properties/test_corpus.py::test_corpus[{name}]", classes={f"cell: {cell}": 1, "K: 1": 1}))
    assert [(fault.variant, fault.count) for fault in faults] == [("float32", 2), ("float64", 1)]


def test_a_crash_is_a_fault_of_the_process():
    faults = Faults()
    crash = record(FORWARD, outcome="crashed", raised=(("", "crash"),), reason="the process ended")
    assert faults.hear(crash) is not None
    assert faults.hear(crash) is None
    assert [(fault.output, fault.kind, fault.count, fault.first_line) for fault in faults] == [
        ("", "crash", 2, "the process ended")
    ]


def test_groups_show_the_smallest_case_of_what_may_be_one_fault():
    faults = Faults()
    long = failed(FORWARD.replace("32", "64"))
    long.stats["failure"]["recipe"] = "float64 B1 and so on"
    for one in (failed(output="grad_value"), long, failed()):
        faults.hear(one)
    groups = grouped(faults)
    assert [[fault.variant for fault in group] for group in groups] == [["float32", "float64"], ["float32"]]


def test_shards_that_found_the_same_are_named():
    def found(*outputs: str, seconds: float) -> list[Fault]:
        return [Fault(test="t", variant="v", output=output, kind="memory", seconds=seconds) for output in outputs]

    total = merged([(1, found("out", seconds=9.0)), (2, found("out", "grad_value", seconds=3.0))])
    assert [(fault.output, fault.count, fault.seconds, fault.shards) for fault in total] == [
        ("out", 2, 3.0, [1, 2]),
        ("grad_value", 1, 3.0, [2]),
    ]
