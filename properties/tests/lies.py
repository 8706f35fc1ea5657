"""Subjects that lie, in plain PyTorch: right wherever they are not asked for what they lie about."""

from __future__ import annotations

from typing import Any

from properties.tests.broken import OPERATOR

# Subjects that lie: each is right in whatever it is not asked about. They call the correct operator, `honest`.
LIES_PROLOGUE = """
honest = operator

class Called(torch.autograd.Function):
    # Results by `compute(operands) -> out` and `differentiate(operands, grad_output) -> three gradients`.

    @staticmethod
    def forward(ctx, compute, differentiate, *operands):
        ctx.save_for_backward(*operands)
        ctx.differentiate = differentiate
        return compute(*operands)

    @staticmethod
    def backward(ctx, grad_output):
        value, locations, weights = ctx.differentiate(*ctx.saved_tensors, grad_output)
        return None, None, value, None, None, locations, weights

def compute(*operands):
    with torch.no_grad():
        return honest(*operands)

def differentiate(value, shapes, starts, locations, weights, grad_output):
    leaves = [tensor.detach().requires_grad_() for tensor in (value, locations, weights)]
    with torch.enable_grad():
        out = honest(leaves[0], shapes, starts, *leaves[1:])
    return torch.autograd.grad(out, leaves, grad_output)

def addresses(*tensors):
    return tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) for tensor in tensors)

def called(compute, differentiate):
    def operator(*operands):
        return Called.apply(compute, differentiate, *operands)
    operator.dtypes = honest.dtypes
    return operator
"""
_CACHED = """
cache = {{}}

def cached_{0}(*operands):
    key = addresses(*{1})
    if key not in cache:
        cache.clear()
        cache[key] = {0}(*operands)
    result = cache[key]
    return {2}
"""


def _cached(function: str, key: str) -> str:
    result = "tuple(one.clone() for one in result)" if function == "differentiate" else "result.clone()"
    return _CACHED.format(function, key, result)


LIES = {
    "remembers results by address": _cached("compute", "operands")
    + """
operator = called(cached_compute, differentiate)
""",
    "remembers gradients by address": _cached("differentiate", "operands[:5]")
    + """
operator = called(compute, cached_differentiate)
""",
    "remembers the tensors themselves": """
seen = []

def remembering(*operands):
    # By the objects, as a memo would; it keeps them alive, so that no other one is mistaken for them.
    for known, result in seen:
        if all(one is other for one, other in zip(known, operands)):
            return result.clone()
    seen[:] = [(operands, compute(*operands))]
    return seen[0][1].clone()

def operator(value, shapes, starts, locations, weights):
    return Called.apply(lambda *_: remembering(value, shapes, starts, locations, weights), differentiate,
                        value, shapes, starts, locations, weights)

operator.dtypes = honest.dtypes
""",
    "remembers the level table": """
levels = {}

def with_known_levels(value, shapes, starts, locations, weights):
    known = levels.setdefault(addresses(shapes, value), shapes.clone())
    return honest(value, known, starts, locations, weights)

operator = with_known_levels
operator.dtypes = honest.dtypes
""",
    "remembers converted weights": """
converted = {}

def operator(value, shapes, starts, locations, weights):
    key = addresses(weights)
    if not weights.requires_grad:
        return honest(value, shapes, starts, locations, weights)
    stored = converted.setdefault(key, weights.detach().double())
    return Called.apply(lambda v, s, i, l, w: compute(v, s, i, l, stored.to(w.dtype)), differentiate,
                        value, shapes, starts, locations, weights)

operator.dtypes = honest.dtypes
""",
    "uses its workspace again": """
spaces = {}

def in_workspace(*operands):
    out = compute(*operands)
    space = spaces.setdefault((out.shape, out.dtype), torch.empty_like(out))
    return space.copy_(out).detach()

operator = called(in_workspace, differentiate)
""",
    "returns results in an operand": """
def borrowing(value, shapes, starts, locations, weights, grad_output):
    of_value, of_locations, of_weights = differentiate(value, shapes, starts, locations, weights, grad_output)
    return of_value, of_locations, weights.detach().copy_(of_weights)

operator = called(compute, borrowing)
""",
    "scratches the weights": """
def scratching(value, shapes, starts, locations, weights):
    with torch.no_grad():
        weights.mul_(0.5)
        out = honest(value, shapes, starts, locations, weights.detach() * 2)
    return out

operator = called(scratching, differentiate)
""",
    "scratches grad_output": """
def scratching(value, shapes, starts, locations, weights, grad_output):
    gradients = differentiate(value, shapes, starts, locations, weights, grad_output)
    grad_output.data.zero_()
    return gradients

operator = called(compute, scratching)
""",
    "scratches the level table": """
def scratching(value, shapes, starts, locations, weights):
    out = compute(value, shapes, starts, locations, weights)
    starts.data.add_(1)
    return out

operator = called(scratching, differentiate)
""",
    "scratches with gradients off": """
def operator(value, shapes, starts, locations, weights):
    out = honest(value, shapes, starts, locations, weights)
    if not torch.is_grad_enabled():
        locations.data.mul_(2)
    return out

operator.dtypes = honest.dtypes
""",
    "writes between the elements": """
def between(value, shapes, starts, locations, weights):
    out = compute(value, shapes, starts, locations, weights)
    behind = weights.storage_offset() + sum((n - 1) * s for n, s in zip(weights.shape, weights.stride())) + 1
    weights.data.as_strided((1,), (1,), behind).fill_(7)
    return out

operator = called(between, differentiate)
""",
    "puts back what it wrote": """
def restoring(value, shapes, starts, locations, weights):
    with torch.no_grad():
        weights.neg_()
        out = honest(value, shapes, starts, locations, -weights.detach())
        weights.neg_()
    return out

operator = called(restoring, differentiate)
""",
    "leaves gradients behind": """
def operator(value, shapes, starts, locations, weights):
    if torch.is_grad_enabled() and value.grad is None:
        honest(value, shapes, starts, locations, weights).sum().backward()
    return honest(value, shapes, starts, locations, weights)

operator.dtypes = honest.dtypes
""",
    "returns zeros": """
operator = called(lambda *operands: torch.zeros_like(compute(*operands)), differentiate)
""",
    "returns zero gradients": """
def zeros(*operands):
    return tuple(torch.zeros_like(one) for one in differentiate(*operands))

operator = called(compute, zeros)
""",
    "returns a constant": """
operator = called(lambda *operands: torch.ones_like(compute(*operands)), differentiate)
""",
    "hands an operand back": """
def handing(value, shapes, starts, locations, weights, grad_output):
    _, of_locations, of_weights = differentiate(value, shapes, starts, locations, weights, grad_output)
    return value.clone(), of_locations, of_weights

operator = called(compute, handing)
""",
    "repeats the previous result": """
previous = []

def repeating(*operands):
    out = compute(*operands)
    if previous and previous[0].shape == out.shape:
        return previous[0].clone()
    previous[:] = [out]
    return out.clone()

operator = called(repeating, differentiate)
""",
}
# They have kernels, and do not always use them: `kernels` are the shipped ones.
FALLBACKS = {
    "for odd channels": """
def operator(*operands):
    return (honest if operands[0].shape[3] % 2 else kernels)(*operands)
""",
    "for more than 128 channels": """
def operator(*operands):
    return (honest if operands[0].shape[3] > 128 else kernels)(*operands)
""",
    "in the backward": """
operator = called(lambda *operands: kernels(*operands), differentiate)
""",
    "with gradients off": """
def operator(*operands):
    return (kernels if torch.is_grad_enabled() else honest)(*operands)
""",
    "for empty operands": """
def operator(value, shapes, starts, locations, weights):
    if weights.numel() == 0 or value.numel() == 0:
        batch, queries, heads = locations.shape[:3]
        out = value.new_zeros(batch, queries, heads * value.shape[3])
        return out + value.sum() * 0 + locations.sum() * 0 + weights.sum() * 0
    return kernels(value, shapes, starts, locations, weights)
""",
    "inside of a registered operator": """
@torch.library.custom_op("lies::forward", mutates_args=())
def registered(
    value: torch.Tensor, shapes: torch.Tensor, starts: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    return honest(value, shapes, starts, locations, weights)

operator = called(lambda *operands: registered(*operands), lambda *operands: differentiate_by_kernels(*operands))

def differentiate_by_kernels(value, shapes, starts, locations, weights, grad_output):
    leaves = [tensor.detach().requires_grad_() for tensor in (value, locations, weights)]
    with torch.enable_grad():
        out = kernels(leaves[0], shapes, starts, *leaves[1:])
    return torch.autograd.grad(out, leaves, grad_output)
""",
    "through lists of tensors": """
def operator(*operands):
    out = kernels(*operands)
    torch._foreach_mul_([out.detach()], 1.0)
    return out
""",
}
# Reading the level table waits for the current stream: a lie that did it each time would be right by accident.
_TABLES = """
tables, streams = {}, []

def known(value, shapes, *others):
    key = addresses(shapes, value)
    if key not in tables:
        tables[key] = shapes.cpu()
    return value, tables[key], *others

def new_stream():
    streams.append(torch.cuda.Stream())
    return streams[-1]
"""
GPU_LIES = {
    "computes on the default stream": _TABLES
    + """
def elsewhere(*operands):
    operands = known(*operands)
    with torch.cuda.stream(torch.cuda.default_stream()):
        return compute(*operands)

operator = called(elsewhere, differentiate)
""",
    "differentiates on the default stream": _TABLES
    + """
def elsewhere(*operands):
    operands = known(*operands)
    with torch.cuda.stream(torch.cuda.default_stream()):
        return differentiate(*operands)

operator = called(compute, elsewhere)
""",
    "computes on a stream of its own": _TABLES
    + """
def elsewhere(*operands):
    operands = known(*operands)
    with torch.cuda.stream(new_stream()):
        return compute(*operands)

operator = called(elsewhere, differentiate)
""",
    "waits for nobody": _TABLES
    + """
def elsewhere(*operands):
    # Others wait for it, and it does not wait for them.
    operands, stream = known(*operands), new_stream()
    with torch.cuda.stream(stream):
        out = compute(*operands)
    torch.cuda.current_stream().wait_stream(stream)
    return out

operator = called(elsewhere, differentiate)
""",
}


def liar(lie: str | None) -> dict[str, Any]:
    """Return the globals of a module whose `operator` is the correct one, or lies as it is told to.

    Args:
        lie: its source; it knows `honest`, the correct operator, and `kernels`, the shipped one.
    """
    module: dict[str, Any] = {}
    source = OPERATOR + LIES_PROLOGUE + (lie or "")
    if lie is not None and "kernels" in lie:
        source = "from msda import multi_scale_deformable_attention as kernels\n" + source
    exec(compile(source, "<liar>", "exec"), module)
    return module
