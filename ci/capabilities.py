"""Find out what a subject can do, by trying, and write the declaration that the harness then holds it to.

    python -m ci probe package.module:callable > mine.toml
    ./ci/run --msda-subject package.module:callable@mine.toml

A declaration is a promise: what was only seen to work on a few cases is what its author should confirm or take out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from properties.cells import CELLS, DtypeCell
from properties.declaration import OPERANDS, Operand
from properties.recipe import LAYOUTS, Recipe
from properties.subject import Observation, Subject
from properties.test_arguments import BAD_CALLS
from properties.verdict import judge
from properties.walk import declared_outputs
from reference.expect import expect
from reference.inputs import Inputs
from reference.model import Arithmetic, UnboundedError

# Several levels, heads and points, sizes of no power of two, and samples everywhere that is finite and near.
ORDINARY: dict[str, Any] = {
    "batch": 2,
    "queries": 5,
    "heads": 2,
    "channels": 8,
    "points": 3,
    "levels": ((50, 70), (3, 2)),
    "locations": ("inside", "border", "edge", "outside", "far"),
}
SEEDS = range(12)
RUNS = 6
# What a declaration of each may be, the strictest first.
CHOICES: dict[str, tuple[str, ...]] = {
    "coordinates": ("pixel", "grid"),
    "interpolation": ("weights", "difference", "lerp"),
    "corner_sum": ("nested", "flat"),
    "accumulate": ("float32", "native"),
}


@dataclass(kw_only=True)
class Findings:
    """What was found.

    Attributes:
        declared: by name.
        notes: how each was found.
    """

    declared: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Any, note: str = "") -> None:
        """Note one declaration."""
        self.declared[name] = value
        if note:
            self.notes[name] = note


@dataclass(frozen=True, kw_only=True)
class Prober:
    """Tries one subject on one device.

    Attributes:
        subject: with nothing declared that is not sure.
        device: where it runs.
    """

    subject: Subject
    device: torch.device

    def recipe(self, cell: DtypeCell, **changes: Any) -> Recipe:
        """Return the ordinary case of a dtype cell, with changes."""
        return Recipe(cell=cell, **(ORDINARY | changes))

    def attempt(self, inputs: Inputs, *, gradients: bool) -> Observation | Exception:
        """Call it, and return what it raised, whatever that is."""
        try:
            found = self.subject.observe(inputs, gradients=gradients)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except Exception as error:  # a stranger's
            return error
        return found

    def runs(self, recipe: Recipe, *, gradients: bool) -> bool:
        """Whether a case raises nothing."""
        return not isinstance(self.attempt(recipe.build(self.device), gradients=gradients), Exception)

    def dtypes(self, found: Findings) -> tuple[DtypeCell, ...]:
        """Which dtype cells it takes; returns those that it will be said to take."""
        taken = [cell for cell in CELLS if self.runs(self.recipe(cell), gradients=False)]
        plain = [cell for cell in taken if cell.value == cell.locations == cell.weights]
        names = tuple(cell.name for cell in plain)
        mixed = [cell for cell in CELLS if cell.name not in names and str(cell.value)[6:] in names]
        all_mixed = bool(mixed) and set(mixed) <= set(taken)
        some = [cell.name for cell in mixed if cell in taken]
        note = "" if all_mixed or not some else f"of the mixed ones it takes only {', '.join(some)}"
        found.add("dtypes", names, "it raised nothing for these")
        found.add("mixed_dtypes", all_mixed, note)
        return tuple(plain) + (tuple(mixed) if all_mixed else ())

    def gradients(self, cells: tuple[DtypeCell, ...], found: Findings) -> tuple[Operand, ...]:
        """Which operands get a gradient in every dtype."""
        names = set(OPERANDS)
        for cell in cells:
            inputs = self.recipe(cell).build(self.device)
            seen = self.attempt(inputs, gradients=True)
            if isinstance(seen, Exception):
                # Some operators refuse to be asked for a gradient that they do not have.
                names &= {operand for operand in OPERANDS if self._gradient_alone(inputs, operand)}
            else:
                names &= {operand for operand in OPERANDS if getattr(seen, f"grad_{operand}") is not None}
        given = tuple(operand for operand in OPERANDS if operand in names)
        found.add("gradients", given)
        return given

    def _gradient_alone(self, inputs: Inputs, operand: str) -> bool:
        wanted = tuple(one == operand for one in OPERANDS)
        try:
            seen = self.subject.observe(inputs, wanted=wanted)  # type: ignore[arg-type]
        except Exception:
            return False
        return getattr(seen, f"grad_{operand}") is not None

    def forms(self, cell: DtypeCell, found: Findings, *, gradients: bool) -> None:
        """Strides and empty operands."""
        refused = [
            layout
            for layout in LAYOUTS
            if not self.runs(
                self.recipe(cell, value_layout=layout, locations_layout=layout, weights_layout=layout),
                gradients=gradients,
            )
        ]
        found.add(
            "layouts",
            "contiguous" if refused else "any",
            f"it raised for {', '.join(refused)} operands" if refused else "",
        )
        sizes: dict[str, Any] = dict.fromkeys(("queries", "batch", "points", "heads", "channels"), 0)
        sizes["levels"] = ()
        refused = [
            name
            for name, size in sizes.items()
            if not self.runs(self.recipe(cell, **{name: size}), gradients=gradients)
        ]
        found.add("empty", not refused, f"it raised for {', '.join(refused)} of 0" if refused else "")

    def nonfinite(self, cell: DtypeCell, found: Findings) -> str:
        """Whether what a skipped sample holds shows in the output."""
        spread = [
            pattern
            for pattern in ("huge", "infinite", "nan")
            if not self._finite(self.recipe(cell, locations=("inside", pattern)).build(self.device))
        ]
        outside = self.recipe(cell, locations=("far",)).build(self.device)
        weights = torch.full_like(outside.weights, torch.nan)
        if not self._finite(dataclasses.replace(outside, weights=weights)):
            spread.append("a NaN weight of a skipped sample")
        word = "overflow" if "huge" in spread else "propagate" if spread else "skip"
        found.add("nonfinite", word, f"these show in the output: {', '.join(spread)}" if spread else "")
        return word

    def _finite(self, inputs: Inputs) -> bool:
        seen = self.attempt(inputs, gradients=False)
        return not isinstance(seen, Exception) and bool(seen.out.isfinite().all())

    def arithmetic(self, cells: tuple[DtypeCell, ...], found: Findings) -> None:
        """The first arithmetic whose bounds fit all cases of the most dtypes."""
        seen = {
            cell.name: [one for seed in SEEDS for one in self._observed(self.recipe(cell, seed=seed))] for cell in cells
        }
        combinations = itertools.product(*(range(len(words)) for words in CHOICES.values()))
        # As few words as possible that differ from the defaults; of one word, the one that comes first.
        best: tuple[dict[str, str], list[str]] | None = None
        for combination in sorted(combinations, key=lambda one: (sum(one), [-index for index in one])):
            words = {name: CHOICES[name][index] for name, index in zip(CHOICES, combination, strict=True)}
            known = best[1] if best else []
            fitting = [name for name in seen if name not in known and self._all_fit(seen[name], words)]
            if known and not fitting:
                continue
            fitting += [name for name in known if self._all_fit(seen[name], words)]
            if best is None or len(fitting) > len(best[1]):
                best = words, fitting
            if len(fitting) == len(seen):
                break
        assert best is not None
        others = [name for name in seen if name not in best[1]]
        note = f"the fewest words whose bounds fit {len(SEEDS)} cases each of {', '.join(best[1]) or 'no dtype'}"
        note += f"; none fit {', '.join(others)}, which will fail" if others else ""
        for name, word in best[0].items():
            found.add(name, word, note)
            note = ""

    def _observed(self, recipe: Recipe) -> Iterator[tuple[Inputs, Observation]]:
        inputs = recipe.build(self.device)
        seen = self.attempt(inputs, gradients=self.subject.backward)
        if not isinstance(seen, Exception):
            yield inputs, seen

    def _all_fit(self, cases: list[tuple[Inputs, Observation]], words: dict[str, str]) -> bool:
        return all(self._fits(*case, words) for case in cases)

    def _fits(self, inputs: Inputs, observation: Observation, words: dict[str, Any]) -> bool:
        try:
            expectation = expect(inputs, Arithmetic(**words), gradients=self.subject.backward)
        except UnboundedError:
            return False
        return judge(observation, declared_outputs(expectation, self.subject)).passed

    def determinism(self, cell: DtypeCell, found: Findings) -> None:
        """Whether repeated runs on a colliding case have the same bits."""
        if "value" not in self.subject.gradients:
            return
        recipe = self.recipe(cell, queries=67, locations=("pile",))
        runs = [self.attempt(recipe.build(self.device), gradients=True) for _ in range(RUNS)]
        grads = [run.grad_value for run in runs if not isinstance(run, Exception)]
        same = len(grads) == RUNS and all(torch.equal(one, grads[0]) for one in grads)  # type: ignore[arg-type]
        word = "run_to_run" if same else "not_guaranteed"
        found.add(
            "determinism",
            word,
            f"{RUNS} runs had {'the same' if same else 'other'} bits" + ("; a promise?" if same else ""),
        )

    def validates(self, cell: DtypeCell, found: Findings) -> None:
        """Whether every bad call of the table is refused with the error that it should be."""
        inputs = self.recipe(cell).build(self.device)
        shapes, starts = inputs.level_table()
        good = {
            "value": inputs.value,
            "spatial_shapes": shapes,
            "level_start_index": starts,
            "sampling_locations": inputs.locations,
            "attention_weights": inputs.weights,
        }
        accepted = []
        # A kernel would follow a wrong level table out of bounds, which ends a GPU for this process.
        if self.device.type == "cpu":
            accepted = [bad for bad in BAD_CALLS if not _refused(self.subject.call, good, bad)]
        known = self.device.type == "cpu" and not accepted
        note = f"{len(accepted)} of {len(BAD_CALLS)} bad calls are not refused as the shipped operator does"
        found.add("validates", known, note if self.device.type == "cpu" else "bad calls are tried on the CPU alone")


def _refused(call: Callable[..., Any], good: dict[str, Any], bad: Any) -> bool:
    arguments = good | {bad.names[0]: bad.spoil(good[bad.names[0]])}
    try:
        call(*arguments.values())
    except Exception as error:
        return isinstance(error, bad.error) and any(name in str(error) for name in bad.names)
    return False


def probe(subject: Subject, device: torch.device) -> Findings:
    """Try everything; the subject's own declarations are not looked at.

    Raises:
        ValueError: it takes no dtype at all.
    """
    found = Findings()
    blank = dataclasses.replace(
        subject, arithmetic=Arithmetic(corner_sum="flat"), cells=CELLS, gradients=OPERANDS, accumulators=("float32",)
    )
    prober = Prober(subject=blank, device=device)
    cells = prober.dtypes(found)
    if not cells:
        error = prober.attempt(prober.recipe(CELLS[1]).build(device), gradients=False)
        raise ValueError(f"subject: {subject.name} takes no dtype; for float32 it raised {error!r}")
    gradients = prober.gradients(cells, found)
    prober = dataclasses.replace(prober, subject=dataclasses.replace(blank, gradients=gradients))
    found.add("devices", (device.type,), "the other was not tried")
    easiest = next((cell for cell in cells if cell.name == "float32"), cells[0])
    prober.forms(easiest, found, gradients=bool(gradients))
    prober.nonfinite(easiest, found)
    prober.arithmetic(cells, found)
    prober.determinism(easiest, found)
    prober.validates(easiest, found)
    return found
