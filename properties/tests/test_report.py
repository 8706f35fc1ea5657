"""The summary adds up, reads well without a terminal, and survives its journey between processes."""

from __future__ import annotations

import json

import pytest

from properties.report import ItemStats, Summary, fold, merge, render


def item(**fields):
    return ItemStats(**{"test": "properties/test_forward.py::test_within_bound", "variant": "float32", **fields})


def summary(*items, **fields):
    return Summary(**{"header": {"seed": 7}, "items": items, **fields})


def test_record_survives_a_journey_as_json():
    stats = item(cases=3, ratio={"out": 0.5}, slowest_compile=("kernel", 1.5), classes={"empty": 2})
    assert ItemStats.from_dict(json.loads(json.dumps(stats.as_dict()))) == stats


def test_rate_excludes_compiling_averaged_over_workers():
    first = item(worker="gw0", cases=30, started=100.0, ended=110.0, compile_seconds=6.0)
    second = item(worker="gw1", cases=20, started=101.0, ended=109.0, compile_waited=4.0)
    totals = summary(first, second).totals()
    assert totals.wall == 10.0
    assert totals.rate == 50 / (10.0 - 5.0)


def test_totals_of_nothing():
    totals = summary().totals()
    assert (totals.cases, totals.rate, totals.wall, totals.worst, totals.slowest_property) == (0, 0.0, 0.0, None, None)


def test_slowest_property_adds_its_variants():
    items = [item(variant="a", seconds=2.0), item(variant="b", seconds=2.0), item(test="t.py::test_other", seconds=3.0)]
    assert summary(*items).totals().slowest_property == ("properties/test_forward.py::test_within_bound", 4.0)


def test_nan_is_the_worst_ratio():
    totals = summary(item(ratio={"out": float("nan")}), item(ratio={"out": 1e300})).totals()
    assert totals.worst is not None
    assert totals.worst[2] != totals.worst[2]


def test_json_has_no_numbers_that_json_lacks():
    text = summary(item(ratio={"out": float("inf"), "grad_value": float("nan")})).as_json()
    plain = json.loads(text, parse_constant=pytest.fail)
    assert plain["items"][0]["ratio"] == {"out": "inf", "grad_value": "nan"}
    assert plain["seed"] == 7


def test_classes_list_the_empty_ones():
    required = ["empty", "queries: 1", "queries: 2", "rare"]
    run = summary(item(cases=1, classes={"empty": 1, "other": 1}), required=required)
    assert run.classes == {"empty": 1, "queries: 1": 0, "queries: 2": 0, "rare": 0, "other": 1}
    text = render(run)
    assert "1 of 4 input classes reached" in text
    assert "empty: queries: 1, 2; rare" in text


def test_order_is_by_property_then_variant():
    items = [item(test="b", variant="y"), item(test="a", variant="z"), item(test="b", variant="x")]
    assert [(one.test, one.variant) for one in merge(items)] == [("a", "z"), ("b", "x"), ("b", "y")]


def test_plain_text_has_no_codes_and_fits():
    items = [
        item(variant=name, cases=10, judged=10, seconds=1.0, ratio={"out": 0.25}) for name in ("float32", "float64")
    ]
    text = render(summary(*items, item(variant="float16", outcome="failed", ratio={"out": 3.5})), width=120)
    assert text.isascii()
    assert text.isprintable() or set(text) - {"\n"} <= set(map(chr, range(32, 127)))
    assert max(map(len, text.splitlines())) <= 120
    rows = [line for line in text.splitlines() if "float" in line]
    assert len({line.index("out") for line in rows}) == 1
    assert [line.endswith("FAILED") for line in rows] == [True, False, False]


def test_terminal_gets_color():
    assert "\x1b[" in render(summary(item(outcome="failed")), color=True)


def test_seconds_without_compiling():
    stats = item(seconds=5.0, compile_seconds=2.0, compile_waited=1.0)
    assert stats.running == 2.0
    assert item(seconds=1.0, compile_seconds=2.0).running == 0.0


def test_many_variants_are_one_row_and_what_failed_another():
    many = [
        item(variant=f"case_{number:03d}", cases=1, seconds=0.5, ratio={"out": number / 100}) for number in range(40)
    ]
    many[7].outcome = "failed"
    rows = fold(merge(many))
    assert [(row.variant, row.cases) for row in rows] == [("40 variants", 39), ("case_007", 1)]
    assert rows[0].ratio == {"out": 0.39}
    assert rows[0].seconds == 19.5
    few = [item(variant=name) for name in "abc"]
    assert fold(few) == few
