"""The file of expectations: what it admits, and that nothing in it is idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.codegen import expectations
from ci.codegen.catalogue import ARCHITECTURES, entries
from ci.codegen.command import _everything

ROWS = [
    {"arch": arch, "kernel": kernel, "dtype": dtype}
    for arch in ("sm_80", "sm_90")
    for kernel in ("forward", "backward")
    for dtype in ("fp32", "fp16")
]
CLEAN: dict[str, Any] = {
    "spills": 0,
    "cas_loops": 0,
    "fences": 0,
    "loads_16_byte": 0,
    "stores_16_byte": 0,
    "atomics": {},
}
BACKWARD = {"arch": "sm_90", "kernel": "backward", "dtype": "fp32"}


def entry(**changes: str) -> str:
    fields = {"arch": '["sm_90"]', "kernel": '["backward"]', "dtype": '["*"]', "reason": '"so it is"'} | changes
    return "[[expectation]]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items() if value)


def load(tmp_path: Path, *parts: str, triton: str = "3.6.0") -> list[expectations.Expectation]:
    path = tmp_path / "expectations.toml"
    path.write_text("schema = 1\n" + "\n".join(parts))
    return expectations.load(ROWS, triton=triton, path=path)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"spills": 1}, "spilled registers: 1, expected none"),
        ({"cas_loops": 2}, "compare-and-swap loops: 2, expected none"),
        ({"fences": 3}, "fences: 3, expected none"),
        ({"atomics": {"f32": 4}}, "atomics: f32, expected none"),
    ],
)
def test_what_nothing_admits_is_a_problem(found: dict[str, Any], told: str):
    assert expectations.problems(BACKWARD, CLEAN, []) == []
    assert expectations.problems(BACKWARD, CLEAN | found, []) == [told]


@pytest.mark.parametrize(
    ("amount", "good", "bad"),
    [
        ("{ exactly = 4 }", (4,), (0, 3, 5)),
        ("{ multiple_of = 4 }", (4, 8), (0, 6)),
        ("{ between = [2, 4] }", (2, 4), (0, 1, 5)),
    ],
)
def test_amounts_are_required_and_not_only_admitted(
    tmp_path: Path, amount: str, good: tuple[int, ...], bad: tuple[int, ...]
):
    for subject in expectations.NUMBERS:
        expected = load(tmp_path, entry(**{subject: amount}))
        for count in good:
            assert expectations.problems(BACKWARD, CLEAN | {subject: count}, expected) == []
        for count in bad:
            (told,) = expectations.problems(BACKWARD, CLEAN | {subject: count}, expected)
            assert f": {count}, expected " in told
            assert told.endswith("(so it is)")


def test_atomics_are_these_and_no_others(tmp_path: Path):
    expected = load(tmp_path, entry(atomics='["f32x4"]'))
    for kinds in ({}, {"f32": 1}, {"f32x4": 1, "f32": 1}):
        (told,) = expectations.problems(BACKWARD, CLEAN | {"atomics": kinds}, expected)
        assert "expected f32x4 (so it is)" in told
    assert expectations.problems(BACKWARD, CLEAN | {"atomics": {"f32x4": 9}}, expected) == []
    assert expectations.problems(BACKWARD | {"kernel": "forward"}, CLEAN, expected) == []


def test_versions_of_triton(tmp_path: Path):
    part = entry(triton='"==3.6.*"', spills="{ exactly = 2 }")
    assert len(load(tmp_path, part)) == 1
    assert load(tmp_path, part, triton="3.9.0") == []
    other = entry(triton='">3.6"', spills="{ exactly = 3 }")
    assert [str(one.triton) for one in load(tmp_path, part, other, triton="3.9.0+git1")] == [">3.6"]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([entry(dtype='["fp32", "fp64"]', spills="{ exactly = 1 }")], "1: dtype 'fp64' fits nothing"),
        ([entry(arch='["sm_100"]', spills="{ exactly = 1 }")], "arch 'sm_100' fits nothing"),
        ([entry(kernel='["b*", "c*"]', spills="{ exactly = 1 }")], r"kernel 'c\*' fits nothing"),
        # What is about another version must be about kernels that there are, all the same.
        ([entry(kernel='["b*", "c*"]', triton='"==3.4.*"', spills="{ exactly = 1 }")], r"kernel 'c\*' fits"),
        (
            [entry(spills="{ exactly = 1 }"), entry(dtype='["fp16"]', spills="{ exactly = 1 }")],
            "1 and 2 both tell spills of sm_90 backward fp16",
        ),
        ([entry(reason="", fences="{ exactly = 1 }")], "reason is None"),
        ([entry(reason='" "', fences="{ exactly = 1 }")], "reason is ' '"),
        ([entry()], "expects nothing"),
        ([entry(fence="{ exactly = 1 }")], "'fence' given"),
        ([entry(fences="{ exactly = 0 }")], "numbers from 1"),
        ([entry(fences="{ at_most = 3 }")], "fences is {'at_most': 3}"),
        ([entry(fences="{ between = [4, 2] }")], "between"),
        ([entry(fences="{ between = [4] }")], "between"),
        ([entry(fences="2")], "fences is 2"),
        ([entry(atomics="[]")], r"atomics is \[\]"),
        ([entry(arch='"sm_90"', fences="{ exactly = 1 }")], "arch is 'sm_90', expected a list"),
        ([entry(triton='"new"', fences="{ exactly = 1 }")], "triton is 'new'"),
        (["expectation = 3 ="], "expectations.toml"),
        (["other = 3"], "expected schema = 1"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, parts: list[str], told: str):
    with pytest.raises(ValueError, match=told):
        load(tmp_path, *parts)


@pytest.mark.parametrize("triton", ["3.4.0", "3.6.0", "3.9.0"])
def test_the_shipped_file_is_sound(triton: str):
    expected = expectations.load(_everything(), triton=triton)
    assert all(len(one.reason.split()) >= 3 for one in expected)
    # Kernels that scatter must say with what; the rest must not scatter.
    for arch in ARCHITECTURES:
        for one in entries().values():
            where = {"arch": arch, "kernel": one.kernel, "dtype": one.dtype}
            told = set().union(*(e.subjects for e in expected if e.fits(where)))
            scatters = one.kernel.startswith(("backward", "count"))
            assert bool({"atomics", "cas_loops"} & told) == scatters, where
