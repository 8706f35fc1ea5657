"""Mutants that nobody thought of: the kernels changed by rule, and a random sample of all such changes.

The kernels are parsed, never run: tools that mutate Python while it is imported do not reach them, because Triton reads
the source file itself. A change replaces the text of one expression or statement, so line numbers and everything else
stay as they are.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from .mutant import PACKAGE, Edit, Mutant

FILES = ("kernels.py", "ordered_kernels.py")
PROOFS = Path(__file__).with_name("equivalent.toml")
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# A mask goes with what its load returns where it does not hold.
MASK = frozenset({"mask", "other"})


@dataclass(frozen=True, kw_only=True)
class Change:
    """One mechanical mutant.

    Attributes:
        mutant: name and edit.
        rule: which rule made it.
        diff: the changed lines, before and after.
    """

    mutant: Mutant
    rule: str
    diff: str


def sample(count: int, *, seed: int) -> list[Change]:
    """Return a random sample of all changes, in the order of the source.

    Args:
        count: how many; all, if there are fewer.
        seed: the same one gives the same sample, as long as the kernels are the same.
    """
    everything = changes()
    if count >= len(everything):
        return everything
    chosen = sorted(random.Random(seed).sample(range(len(everything)), count))
    return [everything[number] for number in chosen]


def changes() -> list[Change]:
    """Return every change that the rules make of the `@triton.jit` functions of both kernel files."""
    found = [change for file in FILES for change in _changes_of(file, (PACKAGE / file).read_text())]
    names: dict[str, int] = {}
    unique = []
    for change in found:
        number = names[change.mutant.name] = names.get(change.mutant.name, 0) + 1
        if number > 1:
            mutant = replace(change.mutant, name=f"{change.mutant.name} ({number})")
            change = replace(change, mutant=mutant)  # noqa: PLW2901
        unique.append(change)
    return unique


def _changes_of(file: str, source: str) -> Iterator[Change]:
    text = _Text(source)
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef) or not _is_kernel(function):
            continue
        assigned = {argument.arg for argument in function.args.args}
        for statement in function.body:
            for rule, node, replacement in _of_statement(statement, assigned):
                yield _change(file, text, rule, node, replacement)


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def _change(file: str, text: _Text, rule: str, node: ast.expr | ast.stmt, replacement: str) -> Change:
    assert node.end_lineno is not None
    before, after = text.lines(node), text.replaced(node, replacement)
    number = node.lineno
    diff = "\n".join(
        f"{file}:{number} {sign} {line.strip()}"
        for sign, lines in (("-", before), ("+", after))
        for line in lines.rstrip("\n").splitlines()
    )
    old = " ".join(text.segment(node).split())
    shown = " ".join(replacement.split()) if rule != "statement deleted" else ""
    name = f"{file}:{number} {rule}: {_short(old)}{f' to {_short(shown)}' if shown else ''}"
    edit = Edit(before=before, after=after, file=file, occurrence=text.occurrence(node, before))
    place = (file, before.strip(), after.strip())
    mutant = Mutant(
        name=name,
        family="mechanical",
        edits=(edit,),
        equivalent=proofs().get(place, ""),
        explanation=explanations().get(place, ""),
    )
    return Change(mutant=mutant, rule=rule, diff=diff)


@cache
def proofs() -> dict[tuple[str, str, str], str]:
    """Return why some changes are no other operator, by file and changed lines before and after."""
    return _listed("equivalent", "proof")


@cache
def explanations() -> dict[tuple[str, str, str], str]:
    """Return why some changes that are other operators survive, likewise."""
    return _listed("survivor", "reason")


def _listed(table: str, told: str) -> dict[tuple[str, str, str], str]:
    listed = tomllib.loads(PROOFS.read_text())[table]
    return {(one["file"], one["before"], one["after"]): one[told] for one in listed}


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Text:
    """A module's source, addressed by nodes of its tree."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """First character and one past the last; the kernels are plain ASCII."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The node's own text."""
        begin, end = self.span(node)
        return self.source[begin:end]

    def lines(self, node: ast.expr | ast.stmt) -> str:
        """The whole lines that it stands on."""
        assert node.end_lineno is not None
        return self.source[self.starts[node.lineno - 1] : self.starts[node.end_lineno]]

    def replaced(self, node: ast.expr | ast.stmt, replacement: str) -> str:
        """Those lines with another text in its place."""
        begin, end = self.span(node)
        assert node.end_lineno is not None
        return (
            self.source[self.starts[node.lineno - 1] : begin]
            + replacement
            + self.source[end : self.starts[node.end_lineno]]
        )

    def occurrence(self, node: ast.expr | ast.stmt, lines: str) -> int:
        """How often those lines stand before it already, counted as `str.split` does."""
        return self.source[: self.starts[node.lineno - 1]].count(lines)


_Found = tuple[str, ast.expr | ast.stmt, str]


def _of_statement(statement: ast.stmt, assigned: set[str]) -> Iterator[_Found]:
    """Yield (rule, node, replacement) for a statement and all that it holds; note which names it assigns."""
    if _is_text(statement):
        return
    yield from _deletion(statement, assigned)
    for field in ast.iter_child_nodes(statement):
        if isinstance(field, ast.expr):
            yield from _of_expression(field)
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        assigned.update(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    if isinstance(statement, ast.AugAssign):
        target, value = ast.unparse(statement.target), ast.unparse(statement.value)
        yield "operator", statement, f"{target} -= {value}"
        yield "assignment for addition", statement, f"{target} = {value}"
    for body in (getattr(statement, "body", []), getattr(statement, "orelse", [])):
        for inner in body:
            yield from _of_statement(inner, assigned)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _deletion(statement: ast.stmt, assigned: set[str]) -> Iterator[_Found]:
    # Without the first assignment of a name nothing compiles.
    if isinstance(statement, ast.Assign):
        names = {name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if names <= assigned:
            yield "statement deleted", statement, "pass"
    elif isinstance(statement, ast.AugAssign) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    ):
        yield "statement deleted", statement, "pass"


def _of_expression(root: ast.expr) -> Iterator[_Found]:
    for node in ast.walk(root):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for other in COMPARISONS.get(type(node.ops[0]), ()):
                changed = ast.Compare(left=node.left, ops=[other()], comparators=node.comparators)
                yield "comparison", node, f"({ast.unparse(changed)})"
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            changed_op = ast.BinOp(left=node.left, op=OPERATORS[type(node.op)](), right=node.right)
            yield "operator", node, f"({ast.unparse(changed_op)})"
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            if not isinstance(node.value, bool):
                yield "constant", node, repr(node.value + 1)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(call: ast.Call) -> Iterator[_Found]:
    if _is_cast(call):
        return
    for first, (one, other) in enumerate(zip(call.args, call.args[1:], strict=False)):
        if ast.dump(one) == ast.dump(other):
            continue
        swapped = [*call.args[:first], other, one, *call.args[first + 2 :]]
        yield "arguments swapped", call, ast.unparse(ast.Call(func=call.func, args=swapped, keywords=call.keywords))
    if any(keyword.arg == "mask" for keyword in call.keywords):
        kept = [keyword for keyword in call.keywords if keyword.arg not in MASK]
        yield "mask removed", call, ast.unparse(ast.Call(func=call.func, args=call.args, keywords=kept))


def _is_cast(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "to"
