"""A correct operator in plain PyTorch, and ways in which it can be broken for float32 alone.

`python -m pytest --msda-subject broken_raises:operator` and the like; `write_subject` makes such a module.
"""

from __future__ import annotations

from pathlib import Path

OPERATOR = """
import os, torch

def operator(value, shapes, starts, locations, weights):
    if value.dtype == torch.float32:
        before_call(value, locations)
    out = evaluate(value.double(), shapes.tolist(), locations.double(), weights.double()).to(value.dtype)
    return after_call(out) if value.dtype == torch.float32 else out

operator.dtypes = ("float64", "float32")
calls = 0

def before_call(value, locations):
    pass

def after_call(out):
    return out

def evaluate(value, levels, locations, weights):
    batch, _, heads, channels = value.shape
    out = value.new_zeros(batch, locations.shape[1], heads, channels)
    first = 0
    for number, (height, width) in enumerate(levels):
        x = locations[:, :, :, number, :, 0] * width - 0.5
        y = locations[:, :, :, number, :, 1] * height - 0.5
        live = (x > -1) & (x < width) & (y > -1) & (y < height)
        x, y = torch.where(live, x, 0.0), torch.where(live, y, 0.0)
        weight = torch.where(live, weights[:, :, :, number], 0.0)
        left, top = x.detach().floor(), y.detach().floor()
        image = value[:, first : first + height * width].transpose(1, 2)
        for column, fx in ((left, 1 - (x - left)), (left + 1, x - left)):
            for row, fy in ((top, 1 - (y - top)), (top + 1, y - top)):
                inside = live & (column >= 0) & (column < width) & (row >= 0) & (row < height)
                pixel = torch.where(inside, row * width + column, 0.0).long()
                index = pixel.transpose(1, 2).flatten(2)[..., None].expand(-1, -1, -1, channels)
                taken = image.gather(2, index).unflatten(2, pixel.transpose(1, 2).shape[2:]).transpose(1, 2)
                taken = torch.where(inside[..., None], taken, 0.0)
                out = out + ((weight * fx * fy)[..., None] * taken).sum(3)
        first += height * width
    return out.flatten(2)
"""

# A kernel that touches memory which is nobody's, and one that never returns.
KERNELS = """
import triton
import triton.language as tl

@triton.jit
def write_far_away(out_ptr):
    tl.store(out_ptr + (1 << 44) + tl.program_id(0), 1.0)

@triton.jit
def never_return(flag_ptr):
    while tl.load(flag_ptr, volatile=True) >= 0:
        pass
"""

BREAKS = {
    "raises": """
def before_call(value, locations):
    raise RuntimeError("no kernel image is available")
""",
    "wrong numbers": """
def after_call(out):
    return out * 1.01 + 0.01
""",
    "aborts": """
def before_call(value, locations):
    os.abort()
""",
    "hangs": """
def before_call(value, locations):
    while True:
        pass
""",
    "allocates": """
def before_call(value, locations):
    kept = []
    while True:
        kept.append(torch.empty(1 << 28, device=value.device))
""",
    "writes to its operands": """
def before_call(value, locations):
    with torch.no_grad():
        locations += 1
""",
    "fails at its 50th call": """
def after_call(out):
    global calls
    calls += 1
    return out + 1 if calls == 50 else out
""",
}
GPU_BREAKS = {
    "writes out of bounds": """
def before_call(value, locations):
    write_far_away[(1,)](torch.zeros(1, device=value.device))
""",
    "never returns": """
def before_call(value, locations):
    never_return[(1,)](torch.zeros(1, dtype=torch.int32, device=value.device))
""",
}


def write_subject(folder: Path, name: str | None) -> None:
    """Write `subject.py`, whose `operator` is broken in the way of that name, or correct."""
    text = OPERATOR
    if name in GPU_BREAKS:
        text += KERNELS + GPU_BREAKS[name]
    elif name is not None:
        text += BREAKS[name]
    (folder / "subject.py").write_text(text)
