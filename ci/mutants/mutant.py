"""What a mutant and a control are: the shipped package with small named edits of its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PACKAGE = Path(__file__).resolve().parent.parent.parent / "msda"

Family = Literal[
    "indexing",
    "masks and borders",
    "interpolation weights",
    "gradient terms",
    "dtypes and precision",
    "accumulator and initialisation",
    "atomics and races",
    "layouts and strides",
    "block edges",
    "level table",
    "size overflow",
    "argument handling",
    "run to run",
    "mechanical",
]


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One replacement in one module.

    Attributes:
        before: source text that stands at least `occurrence` + 1 times in the file.
        after: its replacement.
        file: module of `msda` that is edited.
        occurrence: which of the places is edited, counted from 0.
    """

    before: str
    after: str
    file: str = "kernels.py"
    occurrence: int = 0

    def apply(self, source: str, name: str) -> str:
        """Edit a module's source.

        Args:
            source: the module.
            name: whose edit it is, for the message.

        Raises:
            ValueError: the text is not there as often as the edit says, or is replaced by itself.
        """
        pieces = source.split(self.before)
        if len(pieces) < self.occurrence + 2:
            raise ValueError(
                f"mutant {name!r}: {self.before!r} stands {len(pieces) - 1} times in msda/{self.file}, "
                f"expected at least {self.occurrence + 1}; the source has changed, so must the mutant"
            )
        if self.before == self.after:
            raise ValueError(f"mutant {name!r}: {self.before!r} is replaced by itself, expected another text")
        head = self.before.join(pieces[: self.occurrence + 1])
        tail = self.before.join(pieces[self.occurrence + 1 :])
        return head + self.after + tail


def edited_sources(edits: Iterable[Edit], name: str) -> dict[str, str]:
    """Return the modules that some edits change, edited in their order.

    Args:
        edits: of one mutant.
        name: of the mutant, for the message.

    Returns:
        Source by file name.

    Raises:
        ValueError: an edit does not apply.
    """
    sources: dict[str, str] = {}
    for edit in edits:
        source = sources.get(edit.file)
        sources[edit.file] = edit.apply((PACKAGE / edit.file).read_text() if source is None else source, name)
    return sources


def identifier(name: str) -> str:
    """Return a name as Python writes names."""
    spelled = name.replace("<=", "less or equal").replace("<", "less")
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in spelled)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong operator, or one that is proven to be no other.

    Attributes:
        name: what was done, in a few words.
        family: what kind of mistake it is.
        edits: applied in order.
        variant: edits on top of these that make the same operator with another plan; only the comparison of both shows
            the fault.
        equivalent: the proof that no result can differ from those of the shipped operator, or leave what the operator
            promises; empty for all that are wrong.
        explanation: why it survives though it is another operator; it counts as survived all the same.
        needs_gpu: why Triton's interpreter cannot show it; empty where it can.
    """

    name: str
    family: Family
    edits: tuple[Edit, ...]
    variant: tuple[Edit, ...] = ()
    equivalent: str = ""
    explanation: str = ""
    needs_gpu: str = ""

    @property
    def sources(self) -> dict[str, str]:
        """The edited modules by file name.

        Raises:
            ValueError: an edit does not apply.
        """
        return edited_sources(self.edits, self.name)


@dataclass(frozen=True, kw_only=True)
class Control:
    """A right operator that is not the shipped one: an alarm about it is a false one.

    Attributes:
        name: what is different.
        edits: of the shipped package; none for an operator of its own.
        operator: "module:callable" of an operator of its own, which declares itself by attributes.
        declares: fields of `reference.model.Arithmetic` that differ from the shipped ones.
        uniform: whether the same operations make every row, as the shipped kernels promise.
        needs_gpu: why it cannot run in the interpreter, or would be the shipped operator there.
    """

    name: str
    edits: tuple[Edit, ...] = ()
    operator: str = ""
    declares: Mapping[str, str] = field(default_factory=dict)
    uniform: bool = True
    needs_gpu: str = ""


def one_edit(
    name: str,
    family: Family,
    before: str,
    after: str,
    *,
    file: str = "kernels.py",
    occurrence: int = 0,
    equivalent: str = "",
    needs_gpu: str = "",
) -> Mutant:
    """Return a mutant of one edit.

    Args:
        name: of the mutant.
        family: of the mutant.
        before: see `Edit`.
        after: see `Edit`.
        file: see `Edit`.
        occurrence: see `Edit`.
        equivalent: of the mutant.
        needs_gpu: of the mutant.
    """
    edit = Edit(before=before, after=after, file=file, occurrence=occurrence)
    return Mutant(name=name, family=family, edits=(edit,), equivalent=equivalent, needs_gpu=needs_gpu)
