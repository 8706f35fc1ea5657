"""A run as a nightly writes it, small and made up, with everything that a report has to show."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from properties.casefile import CaseFile, evidence_to_dict
from properties.recipe import Recipe
from properties.verdict import Evidence

FORWARD = "properties/test_forward.py::test_forward_within_bound"
GRADIENTS = "properties/test_gradients.py::test_gradients_within_bound"
OUTPUTS = ("out", "grad_value", "grad_sampling_locations", "grad_attention_weights")
DTYPES = ("float64", "float32", "float16", "bfloat16")
# What a subject or a path may be called, and what a page must not take for its own.
HOSTILE = '<script>alert(1)</script> | `x` \x07 & "quoted" https://example.invalid/a.png'


def recipe() -> Recipe:
    """One sample between four pixels."""
    return Recipe.from_dict({"version": 2, "cell": "float32", "levels": [[2, 2]]})


def case_file(folder: Path, found: Recipe) -> str:
    """Write the case file of a fault; return its path below the folder."""
    element = Evidence(
        output="out",
        failure="out of bound",
        index=(0, 0, 0),
        expected=0.5,
        got=0.75,
        bound=1e-7,
        parts={"arithmetic": 1e-7},
        ratio=2.5e6,
        wrong=1,
        elements=1,
    )
    case = CaseFile(recipe=found, property=f"{FORWARD}[float32]", evidence=(evidence_to_dict(element),))
    return str(case.write(folder / "failures").relative_to(folder))


def item(test: str, variant: str, *, outcome: str = "passed", worst: float = 0.4) -> dict[str, Any]:
    """The figures of one property and variant."""
    outputs = OUTPUTS[:1] if test == FORWARD else OUTPUTS[1:]
    return {
        "test": test,
        "variant": variant,
        "outcome": outcome,
        "cases": 1000,
        "judged": 1000,
        "seconds": 20.0,
        "compile_seconds": 1.0,
        "compile_waited": 0.0,
        "compiles": 3,
        "collisions": 12,
        "ratio": dict.fromkeys(outputs, worst),
        "classes": {f"cell: {variant}": 1000},
    }


def nightly(*, verdict: str, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of `nightly.json`."""
    items = [item(test, dtype) for test in (FORWARD, GRADIENTS) for dtype in DTYPES]
    if faults:
        items[1] |= {"outcome": "failed", "ratio": {"out": "inf"}}
    return {
        "format": 1,
        "kind": "nightly",
        "subject": "kernels:operator",
        "device": {"type": "cuda", "gpus": ["H200", "H200"]},
        "versions": {"torch": "2.11.0"},
        "seed": 7,
        "workers": 8,
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "shard": None,
        "merged": None,
        "quick": False,
        "profile": "nightly",
        "started": "2026-12-04T02:00:00+00:00",
        "budget_seconds": 600.0,
        "elapsed_seconds": 598.0,
        "resumed": 1,
        "verdict": verdict,
        "reasons": [f"reason of {verdict}"] if verdict != "clean" else [],
        "corpus": {"cases": 100, "failed": 0},
        "items": items,
        "totals": {"cases": 8000, "judged": 8000, "wall": 590.0, "rate": 310.5, "worst": [FORWARD, "out", 0.4]},
        "classes": {"K: 1": 500, "K: 10": 20, "K: 9": 20, "location: border": 2, "level: 1 row": 900},
        "floors": {"K: 1": 50, "location: border": 50 if faults else 1},
        "determinism": {"float16, float16": {"cases": 5, "runs": 50, "unequal_runs": 9, "elements": 800, "unequal": 31,
                                             "spread": 0.01, "ratio": 0.2, "collisions": 64}},
        "lossy": {"float16, float16": {"cases": 2, "collisions": 4096}},
        "facts": {"float32 atomics": "round to nearest"},
        "skipped": {f"{GRADIENTS}[mixed]": "not declared: mixed dtypes"},
        "faults": faults,
        "crashes": [{"nodeid": f"{GRADIENTS}[float16]", "message": "worker gw1 ended by signal 6"}] if faults else [],
        "compiles": [{"kernel": "_forward", "count": 31, "seconds": 40.0, "slowest": 3.5}],
        "bandit": [{"test": FORWARD, "variant": "float32", "turns": 4, "cases": 800, "seconds": 60.0, "share": 0.1,
                    "new_classes": 5, "ratio": 0.4}],
    }  # fmt: skip


def write_run(folder: Path, *, verdict: str = "clean", hostile: bool = False) -> Path:
    """Write a run into a folder; return the folder.

    Args:
        folder: to write into.
        verdict: "clean", "faults" or "could not run".
        hostile: whether texts of the subject try to be part of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    faults: list[dict[str, Any]] = []
    if verdict == "faults":
        found = recipe()
        case = case_file(folder, found)
        text = HOSTILE if hostile else "out: outside its error bound"
        faults = [
            {
                "property": FORWARD,
                "variant": "float32",
                "output": "out",
                "class": "logic fault",
                "count": 17,
                "first_line": text,
                "story": [text, "  worst     element (0, 0, 0)", f"  case      {case}"],
                "recipe": found.describe(),
                "case": case,
                "replay": f"ci/run replay report/{case}",
                "seconds": 3.0,
                "cases": 4,
            }
        ]
    plain = nightly(verdict=verdict, faults=faults)
    if hostile:
        plain |= {"subject": HOSTILE, "skipped": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    (folder / "nightly.json").write_text(json.dumps(plain))
    draw = random.Random(0)
    with (folder / "cases.jsonl").open("w") as lines:
        for number in range(1600):
            dtype = DTYPES[number % 4]
            magnitude = 10.0 ** draw.uniform(-6, 6)
            ratio = draw.random() ** 2
            bound = magnitude * {"float64": 1e-15, "float32": 1e-6, "float16": 1e-2, "bfloat16": 1e-1}[dtype]
            parts = {"r": ratio, "e": ratio * bound, "m": magnitude, "b": bound, "q": bound / 3}
            told = {key: dict.fromkeys(OUTPUTS, value) for key, value in parts.items()}
            case_line = {"p": GRADIENTS, "v": dtype, "w": "gw0", "t": 1.0, "c": draw.randint(1, 64), **told}
            lines.write(json.dumps(case_line) + "\n")
        lines.write('{"p": "cut sho')
    return folder


def write_mutants(path: Path) -> Path:
    """Write a result of the mutants with a survivor and an alarm."""
    rows = [
        {"name": "swap-xy", "family": "geometry", "standing": "killed"},
        {"name": "no-mask", "family": "geometry", "standing": "survived", "attempts": [{"examples": 304}]},
    ]
    controls = [
        {"name": "lerp", "standing": "survived"},
        {"name": "fma-off", "standing": "killed", "properties": ["p"]},
    ]
    score = {"median_examples": 3}
    path.write_text(json.dumps({"header": {"device": "cpu"}, "mutants": rows, "controls": controls, "score": score}))
    return path


def write_earlier(folder: Path, nights: int) -> list[Path]:
    """Write the summaries of earlier runs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for night in range(1, nights + 1):
        plain = nightly(verdict="clean", faults=[]) | {"started": f"2026-11-{night:02d}T02:00:00+00:00", "seed": night}
        plain["totals"] = plain["totals"] | {"rate": 250.0 + 10 * math.sin(night)}
        paths.append(folder / f"{night}.json")
        paths[-1].write_text(json.dumps(plain))
    return paths
