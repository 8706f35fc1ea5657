"""What the code is expected to be, from `expectations.toml`.

A line holds for the rows that its patterns fit, in what it names. Registers that spill, atomics, compare-and-swap loops
and fences that no line admits are problems; so is what a line names and a row does not show. A pattern that fits
nothing, and two lines that name the same of one row, are errors in the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

PATH = Path(__file__).parent / "expectations.toml"
SCHEMA = 1
WHERE = ("arch", "kernel", "dtype")
NUMBERS = {
    "spills": "spilled registers",
    "cas_loops": "compare-and-swap loops",
    "fences": "fences",
    "loads_16_byte": "16-byte loads",
    "stores_16_byte": "16-byte stores",
}
# What there must be none of where nothing is said.
FORBIDDEN = ("spills", "cas_loops", "fences")
WORDS = ("exactly", "multiple_of", "between")


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How many there must be.

    Attributes:
        word: "exactly", "multiple_of" (0 is none) or "between".
        numbers: one, or two for "between", both included.
    """

    word: str
    numbers: tuple[int, ...]

    def admits(self, count: int) -> bool:
        """Whether so many are as expected."""
        if self.word == "exactly":
            return count == self.numbers[0]
        if self.word == "multiple_of":
            return count > 0 and count % self.numbers[0] == 0
        return self.numbers[0] <= count <= self.numbers[1]

    def __str__(self) -> str:
        if self.word == "exactly":
            return str(self.numbers[0])
        if self.word == "multiple_of":
            return f"a multiple of {self.numbers[0]}"
        return f"{self.numbers[0]} to {self.numbers[1]}"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One entry of the file.

    Attributes:
        number: which one, from 1.
        patterns: of architecture, kernel and dtype.
        triton: versions that it is about.
        amounts: by what is counted.
        atomics: kinds that there must be, all of them and no others; None where nothing is said.
        reason: why.
    """

    number: int
    patterns: Mapping[str, tuple[str, ...]]
    triton: SpecifierSet
    amounts: Mapping[str, Amount]
    atomics: frozenset[str] | None
    reason: str

    def fits(self, row: Mapping[str, str]) -> bool:
        """Whether it is about a row, given by "arch", "kernel" and "dtype"."""
        return all(any(fnmatchcase(row[where], p) for p in self.patterns[where]) for where in WHERE)

    @property
    def subjects(self) -> set[str]:
        """What it says something about."""
        return set(self.amounts) | ({"atomics"} if self.atomics is not None else set())


def load(rows: Iterable[Mapping[str, str]], *, triton: str, path: Path = PATH) -> list[Expectation]:
    """Read the file and return what is about one version of Triton.

    Args:
        rows: all that can be compiled, to hold the file against.
        triton: the version.
        path: of the file.

    Raises:
        ValueError: the file is wrong; the message names the entry.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if set(content) != {"schema", "expectation"} or content["schema"] != SCHEMA:
        raise ValueError(f"{path.name}: expected schema = {SCHEMA} and [[expectation]] tables, got {sorted(content)}")
    found = []
    for number, entry in enumerate(content["expectation"], start=1):
        try:
            found.append(_expectation(number, entry))
        except ValueError as error:
            raise ValueError(f"{path.name}: expectation {number}: {error}") from None
    for one in found:
        _check_patterns(one, list(rows), path.name)
    found = [one for one in found if one.triton.contains(triton, prereleases=True)]
    _check_overlap(found, list(rows), path.name)
    return found


def _expectation(number: int, entry: Mapping[str, Any]) -> Expectation:
    known = {*WHERE, *NUMBERS, "atomics", "reason", "triton"}
    if unknown := sorted(set(entry) - known):
        raise ValueError(f"{unknown[0]!r} given, expected one of {', '.join(sorted(known))}")
    patterns = {}
    for where in WHERE:
        given = entry.get(where)
        if not isinstance(given, list) or not given or not all(isinstance(p, str) for p in given):
            raise ValueError(f"{where} is {given!r}, expected a list of patterns")
        patterns[where] = tuple(given)
    reason = entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"reason is {reason!r}, expected a sentence")
    try:
        triton = SpecifierSet(entry.get("triton", ""))
    except (InvalidSpecifier, AttributeError):
        raise ValueError(f"triton is {entry['triton']!r}, expected versions as '==3.6.*'") from None
    amounts = {name: _amount(name, entry[name]) for name in NUMBERS if name in entry}
    atomics = entry.get("atomics")
    if atomics is not None and (not isinstance(atomics, list) or not atomics):
        raise ValueError(f"atomics is {atomics!r}, expected a list of kinds; without the key there must be none")
    if not amounts and atomics is None:
        raise ValueError(f"it expects nothing, expected one of {', '.join([*NUMBERS, 'atomics'])}")
    return Expectation(
        number=number,
        patterns=patterns,
        triton=triton,
        amounts=amounts,
        atomics=None if atomics is None else frozenset(atomics),
        reason=reason.strip(),
    )


def _amount(name: str, given: Any) -> Amount:
    wanted = "one of { exactly = N }, { multiple_of = N }, { between = [N, M] }"
    if not isinstance(given, dict) or len(given) != 1 or not set(given) <= set(WORDS):
        raise ValueError(f"{name} is {given!r}, expected {wanted}")
    ((word, value),) = given.items()
    numbers = tuple(value) if isinstance(value, list) else (value,)
    right = all(type(n) is int and n >= 1 for n in numbers) and list(numbers) == sorted(numbers)
    if not right or len(numbers) != (2 if word == "between" else 1):
        raise ValueError(
            f"{name} is {given!r}, expected {wanted} with numbers from 1; without the key there may be none"
        )
    return Amount(word=word, numbers=numbers)


def _check_patterns(one: Expectation, rows: Sequence[Mapping[str, str]], name: str) -> None:
    """Every pattern must fit something that the others fit, too."""
    fitting = [row for row in rows if one.fits(row)]
    for where in WHERE:
        for pattern in one.patterns[where]:
            if not any(fnmatchcase(row[where], pattern) for row in fitting):
                raise ValueError(f"{name}: expectation {one.number}: {where} {pattern!r} fits nothing")


def _check_overlap(expectations: Sequence[Expectation], rows: Sequence[Mapping[str, str]], name: str) -> None:
    """No two may speak of the same."""
    for row in rows:
        spoken: dict[str, int] = {}
        for one in expectations:
            for subject in one.subjects if one.fits(row) else ():
                if subject in spoken:
                    what = f"{subject} of {' '.join(row[where] for where in WHERE)}"
                    raise ValueError(f"{name}: expectations {spoken[subject]} and {one.number} both tell {what}")
                spoken[subject] = one.number


def problems(row: Mapping[str, str], found: Mapping[str, Any], expectations: Iterable[Expectation]) -> list[str]:
    """Return what is not as expected, a line each.

    Args:
        row: "arch", "kernel" and "dtype".
        found: counts by the names in `NUMBERS`, and "atomics", the number of each kind.
        expectations: all of the file.
    """
    fitting = [one for one in expectations if one.fits(row)]
    result = []
    for name, words in NUMBERS.items():
        expected = next((one for one in fitting if name in one.amounts), None)
        if expected is None:
            if name in FORBIDDEN and found[name]:
                result.append(f"{words}: {found[name]}, expected none")
        elif not expected.amounts[name].admits(found[name]):
            result.append(f"{words}: {found[name]}, expected {expected.amounts[name]} ({expected.reason})")
    spoken = next((one for one in fitting if one.atomics is not None), None)
    wanted = spoken.atomics if spoken is not None and spoken.atomics is not None else frozenset()
    kinds = set(found["atomics"])
    if kinds != wanted:
        expected_kinds = ", ".join(sorted(wanted)) or "none"
        why = f" ({spoken.reason})" if spoken is not None else ""
        result.append(f"atomics: {', '.join(sorted(kinds)) or 'none'}, expected {expected_kinds}{why}")
    return result
