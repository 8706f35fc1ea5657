"""Recipe: a small, readable description of one input, and its JSON form. `Recipe.build` turns it into tensors."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from properties.cells import DtypeCell, cell_named
from properties.explicit import OPERANDS, Explicit
from properties.migrate import Migrations, migrated

if TYPE_CHECKING:
    import torch

    from reference.inputs import Inputs

VERSION = 2
# Version 2 added `explicit`.
MIGRATIONS: Migrations = {1: lambda plain: plain}
MAX_HOT = 3

LAYOUTS = ("contiguous", "transposed", "permuted", "sliced", "padded", "expanded", "offset")
LOCATION_PATTERNS = (
    "inside",
    "local",
    "away",
    "pile",
    "edge",
    "ulps",
    "border",
    "outside",
    "far",
    "huge",
    "infinite",
    "nan",
)
# What the patterns reach in magnitude; the others stay near the map, or within 1,500 of its sides.
MODERATE = 1500.0
LARGEST_LOCATION = {"huge": sys.float_info.max, "infinite": math.inf, "nan": math.nan}
FLOAT16_OVERFLOW = 65520.0
VALUE_PATTERNS = ("normal", "wide", "sparse", "constant", "huge", "subnormal")
WEIGHT_PATTERNS = ("softmax", "raw", "negative", "zero")
# Patterns of exact arithmetic, whose numbers a `Lattice` describes. A strategy draws them only when it is asked to.
LATTICE_LOCATIONS = ("lattice",)
LATTICE_VALUES = ("integer",)
LATTICE_WEIGHTS = ("dyadic",)


class Hot(NamedTuple):
    """One sample whose location is given: `sample` counts those of (B, Q, M, L, K) in row-major order."""

    sample: int
    x: float
    y: float


class Lattice(NamedTuple):
    """Bits of the numbers that the lattice patterns draw; properties.lattice says which sizes leave room for them.

    Attributes:
        fraction: pixel coordinates are multiples of 2^-fraction, 1 or more, as far as their dtype allows.
        value: |value| is an integer of at most 2^value.
        grad: the same of grad_output.
        step: weights are multiples of 2^-step,
        weight: and at most 2^weight.
    """

    fraction: int = 1
    value: int = 0
    grad: int = 0
    step: int = 0
    weight: int = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe:
    """One input of multi-scale deformable attention, described completely.

    Two equal recipes build bitwise equal tensors on every device and version. Any of B, Q, M, D, K and the number of
    levels may be 0.

    Attributes:
        cell: storage dtypes.
        batch: B.
        queries: Q.
        heads: M.
        channels: D, per head.
        points: K, per level.
        levels: (H, W) in pixels, one pair per level.
        value_layout: one of LAYOUTS, as are the other three. "expanded" repeats one slice along a dimension (stride 0).
        locations_layout: see `value_layout`.
        weights_layout: see `value_layout`.
        grad_output_layout: see `value_layout`.
        locations: patterns, each one of LOCATION_PATTERNS. A sample belongs to one of them by a hash of its index.
        weights: one of WEIGHT_PATTERNS.
        value: one of VALUE_PATTERNS.
        grad_output: one of VALUE_PATTERNS.
        seed: of everything that is random.
        hot: at most MAX_HOT samples with locations of their own. They win over the patterns.
        lattice: what the patterns "lattice", "integer" and "dyadic" draw; None when none of them is used.
        explicit: the numbers themselves, in place of all patterns, seed and hot samples; see `properties.explicit`.

    Raises:
        ValueError: if a field is out of its range; the message names it.
    """

    cell: DtypeCell
    batch: int = 1
    queries: int = 1
    heads: int = 1
    channels: int = 1
    points: int = 1
    levels: tuple[tuple[int, int], ...] = ((1, 1),)
    value_layout: str = "contiguous"
    locations_layout: str = "contiguous"
    weights_layout: str = "contiguous"
    grad_output_layout: str = "contiguous"
    locations: tuple[str, ...] = ("inside",)
    weights: str = "softmax"
    value: str = "normal"
    grad_output: str = "normal"
    seed: int = 0
    hot: tuple[Hot, ...] = ()
    lattice: Lattice | None = None
    explicit: Explicit | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "queries", "heads", "channels", "points", "seed"):
            _check_integer(name, getattr(self, name))
        for operand in OPERANDS:
            _check_choice(f"{operand}_layout", getattr(self, f"{operand}_layout"), LAYOUTS)
        for height, width in self.levels:
            if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
                raise ValueError(f"levels has ({height!r}, {width!r}); expected pairs of positive integers")
        if not self.locations:
            raise ValueError("locations is empty; expected at least one pattern")
        for pattern in self.locations:
            _check_choice("locations", pattern, LOCATION_PATTERNS + LATTICE_LOCATIONS)
        _check_choice("weights", self.weights, WEIGHT_PATTERNS + LATTICE_WEIGHTS)
        _check_choice("value", self.value, VALUE_PATTERNS + LATTICE_VALUES)
        _check_choice("grad_output", self.grad_output, VALUE_PATTERNS + LATTICE_VALUES)
        self._check_lattice()
        if self.explicit is not None and (self.hot or self.lattice is not None):
            raise ValueError("explicit is given together with hot samples or a lattice; expected it alone")
        if len(self.hot) > MAX_HOT:
            raise ValueError(f"hot has {len(self.hot)} samples; expected at most {MAX_HOT}")
        for one in self.hot:
            _check_integer("hot sample", one.sample)
            if one.sample >= self.samples:
                raise ValueError(f"hot has sample {one.sample}; expected an index below {self.samples}")
        # One NaN object for all: tuples compare identity first, so recipes with a NaN still equal their copies.
        object.__setattr__(self, "hot", tuple(Hot(one.sample, _one_nan(one.x), _one_nan(one.y)) for one in self.hot))

    def _check_lattice(self) -> None:
        used = {*self.locations, self.weights, self.value, self.grad_output}
        used &= {*LATTICE_LOCATIONS, *LATTICE_WEIGHTS, *LATTICE_VALUES}
        if (self.lattice is not None) != bool(used):
            raise ValueError(f"lattice is {self.lattice!r} with patterns {sorted(used)}; expected both or neither")
        if self.lattice is not None:
            for name, bits in self.lattice._asdict().items():
                _check_integer(f"lattice {name}", bits)
            if self.lattice.fraction < 1:
                raise ValueError("lattice fraction is 0; expected at least 1, for pixel centres lie at halves")

    @property
    def pixels(self) -> int:
        """S, the number of pixels of all levels together."""
        return sum(height * width for height, width in self.levels)

    @property
    def samples(self) -> int:
        """B * Q * M * L * K, the number of sampling locations."""
        return self.batch * self.queries * self.heads * len(self.levels) * self.points

    def shape(self, operand: str) -> tuple[int, ...]:
        """Return the shape of one of OPERANDS."""
        if operand == "value":
            return (self.batch, self.pixels, self.heads, self.channels)
        if operand == "grad_output":
            return (self.batch, self.queries, self.heads * self.channels)
        stencil = (self.batch, self.queries, self.heads, len(self.levels), self.points)
        return stencil if operand == "weights" else (*stencil, 2)

    def build(self, device: torch.device | str = "cpu") -> Inputs:
        """Build the tensors on a device: bitwise the same tensors on every one."""
        from properties.build import build  # noqa: PLC0415  (the builder needs Recipe, so one side has to wait)

        return build(self, device)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: every field, in order, after the version. Floats are exact."""
        plain: dict[str, Any] = {"version": VERSION}
        plain.update((field.name, getattr(self, field.name)) for field in fields(self))
        plain["cell"] = self.cell.name
        plain["levels"] = [list(level) for level in self.levels]
        plain["locations"] = list(self.locations)
        plain["hot"] = [[one.sample, _float_to_json(one.x), _float_to_json(one.y)] for one in self.hot]
        plain["lattice"] = None if self.lattice is None else self.lattice._asdict()
        plain["explicit"] = None if self.explicit is None else self.explicit.to_dict()
        return plain

    def to_json(self) -> str:
        """Return JSON text with one field a line, so that two recipes compare well in a diff."""
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in self.to_dict().items())
        return "{\n" + ",\n".join(lines) + "\n}"

    @classmethod
    def from_dict(cls, plain: object) -> Recipe:
        """Read what `to_dict` wrote, now or in an older version.

        Fields that are left out have their defaults; unknown fields are refused.

        Raises:
            ValueError: if the version, a field or a value is not one of this version.
        """
        if not isinstance(plain, dict):
            raise ValueError(f"recipe is a {type(plain).__name__}; expected a JSON object")
        plain = migrated(plain, field="version", current=VERSION, migrations=MIGRATIONS, what="recipe version")
        unknown = sorted(set(plain) - {field.name for field in fields(cls)} - {"version"})
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"recipe has unknown fields {', '.join(map(repr, unknown))}; expected some of {known}")
        given = {key: value for key, value in plain.items() if key != "version"}
        if "cell" not in given:
            raise ValueError("recipe has no field 'cell'; expected the name of a dtype cell")
        given["cell"] = cell_named(given["cell"])
        if "levels" in given:
            given["levels"] = tuple((height, width) for height, width in _rows("levels", given["levels"], 2))
        if "hot" in given:
            rows = _rows("hot", given["hot"], 3)
            given["hot"] = tuple(Hot(index, _float_from_json(x), _float_from_json(y)) for index, x, y in rows)
        if "locations" in given:
            if not isinstance(given["locations"], list):
                raise ValueError(f"locations is {given['locations']!r}; expected a list of patterns")
            given["locations"] = tuple(given["locations"])
        if given.get("lattice") is not None:
            given["lattice"] = _lattice_from_json(given["lattice"])
        if given.get("explicit") is not None:
            given["explicit"] = Explicit.from_dict(given["explicit"])
        return cls(**given)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read what `to_json` wrote.

        Raises:
            ValueError: if the text is not JSON, or not a recipe of this version.
        """
        return cls.from_dict(json.loads(text))

    @property
    def empty(self) -> bool:
        """Whether any of B, Q, M, D, K and the number of levels is 0."""
        return 0 in (self.batch, self.queries, self.heads, self.channels, self.points, len(self.levels))

    @property
    def contiguous(self) -> bool:
        """Whether every operand lies in memory without gaps, in order."""
        return all(getattr(self, f"{operand}_layout") == "contiguous" for operand in OPERANDS)

    @property
    def largest_location(self) -> float:
        """A bound on the magnitude of the stored locations, infinite where one of them is not finite."""
        if self.explicit is not None:
            numbers = self.explicit.numbers("locations")
        else:
            numbers = [coordinate for one in self.hot for coordinate in (one.x, one.y)]
            numbers += [LARGEST_LOCATION.get(pattern, MODERATE) for pattern in self.locations]
        largest = max((math.inf if math.isnan(number) else abs(number) for number in numbers), default=0.0)
        # What float16 has no number for is stored as infinity.
        return math.inf if str(self.cell.locations) == "torch.float16" and largest >= FLOAT16_OVERFLOW else largest

    def describe(self) -> str:
        """One line for people: the sizes, then whatever is not the simplest choice."""
        sizes = f"B{self.batch} Q{self.queries} M{self.heads} D{self.channels} K{self.points}"
        parts = [self.cell.name, sizes, "levels " + (",".join(f"{h}x{w}" for h, w in self.levels) or "none")]
        parts.append(self.explicit.describe() if self.explicit else "at " + "+".join(self.locations))
        simple = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        drawn = () if self.explicit else ("weights", "value", "grad_output", "seed")
        for name in (*drawn, *(f"{operand}_layout" for operand in OPERANDS)):
            if getattr(self, name) != simple[name]:
                parts.append(f"{name}={getattr(self, name)}")
        parts += [f"hot {one.sample}@({one.x!r}, {one.y!r})" for one in self.hot]
        if self.lattice is not None:
            parts.append("lattice " + ",".join(f"{name}={bits}" for name, bits in self.lattice._asdict().items()))
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"<Recipe {self.describe()}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        # Hypothesis would print one line a field otherwise, and search each for values that do not matter.
        printer.text(repr(self))


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least 0")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def _one_nan(number: float) -> float:
    return math.nan if math.isnan(number) else number


def _float_to_json(number: float) -> float | str:
    """JSON has no NaN and no infinities; everything else survives Python's shortest representation exactly."""
    return number if math.isfinite(number) else repr(number)


def _float_from_json(plain: object) -> float:
    if plain in ("nan", "inf", "-inf"):
        return float(str(plain))
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not math.isfinite(plain):
        raise ValueError(f'hot has coordinate {plain!r}; expected a finite number, "nan", "inf" or "-inf"')
    return float(plain)


def _lattice_from_json(plain: object) -> Lattice:
    if not isinstance(plain, dict) or set(plain) != set(Lattice._fields):
        raise ValueError(f"lattice is {plain!r}; expected an object with the fields {', '.join(Lattice._fields)}")
    return Lattice(**plain)


def _rows(name: str, plain: object, length: int) -> list[list[Any]]:
    if isinstance(plain, list) and all(isinstance(row, list) and len(row) == length for row in plain):
        return plain
    raise ValueError(f"{name} is {plain!r}; expected a list of lists of {length}")
