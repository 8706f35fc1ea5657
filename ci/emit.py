"""Write a case as a test file that needs nothing but torch and the subject."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from properties.casefile import SHIPPED, CaseFile
from properties.explicit import MAX_NUMBERS, to_hex
from properties.probe import informed
from properties.snapshot import OPERANDS
from properties.subject import Subject
from properties.trace import worst_elements
from properties.verdict import INDICES, story
from properties.walk import Case
from reference.expect import Bounded, Expectation, expect
from reference.model import OVERFLOW

# Elements of each output that are asserted.
CHECKED = 4
WIDTH = 120

TEMPLATE = '''"""{title}

It needs torch, pytest and the subject, {spec}, on the import path. Numbers are
hexadecimal floats. Each check is (index, intervals, also): the result must lie within bound of expected in one of the
(expected, bound) intervals, in float64; `also` names infinities and NaN that are admissible there.
{note}"""

import math
{os_import}
import torch

{device}
{importing}

NAN = math.nan


def tensor(numbers, dtype, shape, stride=None, offset=0):
    """The numbers row by row; with strides, in memory that holds NaN between them."""
    given = torch.tensor([float.fromhex(n) for n in numbers.split()], dtype=torch.float64).to(dtype).to(DEVICE)
    if stride is None:
        return given.reshape(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride))
    memory = torch.full((last + 1,), NAN, dtype=dtype, device=DEVICE)
    # A stride of 0 repeats one slice.
    once = [1 if step == 0 else n for n, step in zip(shape, stride)]
    memory.as_strided(once, stride, offset).copy_(given.reshape(once))
    return memory.as_strided(shape, stride, offset)


def admissible(got, intervals, also):
    if not math.isfinite(got):
        return str(got) in also
    return any(abs(got - float.fromhex(expected)) <= float.fromhex(bound) for expected, bound in intervals)


{tensors}

# output: dtype, shape and the elements that are checked
CHECKS = {{
{checks}}}


def test_case():
    shapes = torch.tensor({levels}, dtype=torch.int64, device=DEVICE).reshape(-1, 2)
    starts = torch.tensor({starts}, dtype=torch.int64, device=DEVICE)
    {call}
    wrong = []
    for name, (dtype, shape, checks) in CHECKS.items():
        result = results[name]
        assert result is not None, name
        assert (result.dtype, tuple(result.shape)) == (dtype, shape), name
        for index, intervals, also in checks:
            got = float(result[index])
            if not admissible(got, intervals, also):
                expected = " or ".join(f"{{float.fromhex(e)!r}} +- {{float.fromhex(b):.3g}}" for e, b in intervals)
                wrong.append(f"{{name}}{{list(index)}} is {{got!r}}, expected {{expected}}")
    assert not wrong, "\\n".join(wrong)
{written}'''

FORWARD = """with torch.no_grad():
        results = {"out": operator(VALUE, shapes, starts, SAMPLING_LOCATIONS, ATTENTION_WEIGHTS)}"""
BOTH = """operands = [one.detach().requires_grad_() for one in (VALUE, SAMPLING_LOCATIONS, ATTENTION_WEIGHTS)]
    out = operator(operands[0], shapes, starts, *operands[1:])
    grads = torch.autograd.grad(out, operands, GRAD_OUTPUT, allow_unused=True)
    results = {
        "out": out.detach(),
        "grad_value": grads[0],
        "grad_sampling_locations": grads[1],
        "grad_attention_weights": grads[2],
    }"""
UNWRITTEN = """    for operand, before in COPIES:
        assert torch.equal(operand.nan_to_num(), before.nan_to_num()), "an operand was written to"
"""


def pytest_source(
    case: CaseFile, subject: Subject, device: torch.device, *, spec: str, walked: Case | None = None
) -> str:
    """Return the text of the test.

    Args:
        case: what to write down.
        subject: decides the bounds.
        device: where the case runs.
        spec: "package.module:callable", what the test imports.
        walked: what the subject returned; without it the elements come from the case file, or are the largest.

    Raises:
        ValueError: the case has more numbers than anybody reads.
    """
    inputs = case.recipe.build("cpu")
    numbers = sum(_once(getattr(inputs, operand)).numel() for operand in OPERANDS)
    if numbers > MAX_NUMBERS:
        raise ValueError(f"emit: the case has {numbers} numbers, expected at most {MAX_NUMBERS}; shrink it first")
    # Where nothing is sampled an operator need not know its operands, and autograd would refuse.
    gradients = "test_forward" not in case.property and case.recipe.samples * case.recipe.channels > 0
    expectation = expect(inputs, informed(subject, device).arithmetic, gradients=gradients)
    if walked is not None:
        expectation = walked.expectation
    module, _, name = spec.partition(":")
    shipped = spec == SHIPPED
    attribute = "operator" if name == "operator" else f"{name} as operator"
    shapes, starts = inputs.level_table()
    wrote = walked is not None and any(one.failure == "written" for one in walked.verdict.evidence)
    operands = "VALUE, SAMPLING_LOCATIONS, ATTENTION_WEIGHTS, GRAD_OUTPUT"
    tensors = [_operand(title, getattr(inputs, field)) for field, title in OPERANDS.items()]
    if wrote:
        tensors.append(f"COPIES = [(operand, operand.clone()) for operand in ({operands})]")
    interpreted = shipped or device.type == "cpu"
    return TEMPLATE.format(
        title=f"A case of multi-scale deformable attention: {case.recipe.describe()}"[: WIDTH - 4].rstrip() + ".",
        spec=spec,
        note=_note(case, walked),
        os_import="import os\n" if interpreted else "",
        device=_device(device, shipped=shipped),
        importing=f"from {module} import {attribute}  # noqa: E402 - the environment comes first",
        tensors="\n".join(tensors),
        checks="".join(_checks(case, expectation, walked)),
        levels=shapes.tolist(),
        starts=starts.tolist(),
        call=BOTH if gradients else FORWARD,
        written=UNWRITTEN if wrote else "",
    )


def _device(device: torch.device, *, shipped: bool) -> str:
    lines = [f'DEVICE = "{device.type}"']
    if shipped:
        lines = ['DEVICE = "cuda" if torch.cuda.is_available() else "cpu"']
    if shipped or device.type == "cpu":
        lines += [
            'if DEVICE == "cpu":',
            "    # Triton interprets its kernels there; it decides as it is imported.",
            '    os.environ["TRITON_INTERPRET"] = "1"',
        ]
    return "\n".join(lines)


def _note(case: CaseFile, walked: Case | None) -> str:
    """The story as text of the module: what fails, or what the case file says of it."""
    lines = [line for one in walked.verdict.evidence for line in story(one, walked.inputs)] if walked else []
    if not lines and case.failure:
        lines = [case.failure]
    if case.property:
        lines.append(f"  property  {case.property}")
    if case.origin:
        lines.append(f"  origin    {case.origin}")
    if not lines:
        return ""
    # Text from a file: nothing in it may end the string.
    return "\n" + "\n".join(line.replace("\\", "/").replace('"""', "'''") for line in lines) + "\n"


def _once(tensor: Tensor) -> Tensor:
    """The tensor with what stride 0 repeats taken once."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _operand(title: str, tensor: Tensor) -> str:
    numbers = [to_hex(number) for number in _once(tensor).double().reshape(-1).tolist()]
    lines = [f"{title.upper()} = tensor(", '    """']
    lines += _wrapped(numbers)
    lines.append('    """,')
    lines.append(f"    {tensor.dtype},")
    lines.append(f"    {tuple(tensor.shape)},")
    # Not `is_contiguous`, which ignores dimensions of one element: a kernel is handed their strides all the same.
    dense = torch.empty(tensor.shape, device="meta").stride()
    if tensor.numel() and (tensor.stride() != dense or tensor.storage_offset()):
        lines += [f"    {tuple(tensor.stride())},", f"    {tensor.storage_offset()},"]
    return "\n".join([*lines, ")"])


def _wrapped(words: Iterable[str]) -> list[str]:
    rows: list[str] = []
    for word in words:
        if rows and len(rows[-1]) + len(word) < WIDTH - 20:
            rows[-1] += f" {word}"
        else:
            rows.append(f"    {word}")
    return rows


def _checks(case: CaseFile, expectation: Expectation, walked: Case | None) -> Iterable[str]:
    for name in INDICES:
        bounded: Bounded | None = getattr(expectation, name)
        if bounded is None:
            continue
        yield f'    "{name}": (\n        {bounded.dtype},\n        {tuple(bounded.value.shape)},\n        [\n'
        for index in _indices(case, name, bounded, walked):
            yield f"            {_check(index, bounded)},\n"
        yield "        ],\n    ),\n"


def _indices(case: CaseFile, name: str, bounded: Bounded, walked: Case | None) -> list[tuple[int, ...]]:
    observed = getattr(walked.observation, name) if walked is not None else None
    if observed is not None and observed.shape == bounded.value.shape:
        return worst_elements(bounded, observed, most=CHECKED)
    noted = [tuple(one["index"]) for one in case.evidence if one.get("output") == name and one.get("index")]
    largest = bounded.value.abs().nan_to_num(nan=0.0).reshape(-1).sort(descending=True, stable=True).indices[:CHECKED]
    found = [tuple(int(i) for i in torch.unravel_index(flat, bounded.value.shape)) for flat in largest.cpu()]
    return [*noted, *(index for index in found if index not in noted)][:CHECKED]


def _check(index: tuple[int, ...], bounded: Bounded) -> str:
    """One element: its index, the intervals, and what else is admissible."""
    sides = [bounded, *bounded.alternatives]
    intervals = list(dict.fromkeys((to_hex(float(one.value[index])), to_hex(float(one.bound[index]))) for one in sides))
    also: list[str] = []
    for one in sides:
        value, before = float(one.value[index]), float(one.before_storage[index])
        # Operands that are not finite, or an intermediate result that may overflow: see Bounded.ratio.
        anything = not (math.isfinite(value) and math.isfinite(float(one.bound[index])))
        if anything or bool(one.hazard[index]):
            also += ["inf", "-inf", "nan"]
        also += [text for text, sign in (("inf", 1), ("-inf", -1)) if sign * value + before >= OVERFLOW[bounded.dtype]]
        if anything:
            intervals = [("0x0p+0", "inf")]
    return f"({index}, {intervals}, {sorted(set(also))})"
