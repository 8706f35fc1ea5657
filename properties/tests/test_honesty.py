"""Subjects that lie: each lie is caught by its own property, whose story names it; honest subjects pass all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import Phase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from properties import profiles
from properties import test_honesty as honesty
from properties.cells import cell_named
from properties.harness import Harness
from properties.held import GUARD_BYTES, Held, copied, once, other_sides, place, watched
from properties.kinds import kind_of
from properties.operations import recorded
from properties.recipe import LAYOUTS, Recipe
from properties.report import ItemStats
from properties.subject import Subject, from_callable, shipped
from properties.tests.lies import FALLBACKS, GPU_LIES, LIES, liar
from properties.trivial import discriminates
from properties.verdict import PropertyFailed
from reference.expect import expect

FLOAT32 = cell_named("float32")
CPU = torch.device("cpu")
RECIPE = Recipe(cell=FLOAT32, batch=2, queries=3, heads=2, channels=4, points=2, levels=((2, 3), (4, 4)))
PROPERTIES = {
    "stale": honesty.test_no_stale_results,
    "stream": honesty.test_follows_the_current_stream,
    "operands": honesty.test_operands_are_unchanged,
    "trivial": honesty.test_results_are_not_trivial,
    "fallback": honesty.test_computes_itself,
}
STALE = r"stale: the result of an earlier call, whose operands have been overwritten since"
PARTLY_STALE = r"stale: wrong where operands were overwritten, right for the same in fresh memory"
# By lie: the property that must catch it, how its story begins, and a line that it must have.
TOLD = {
    "remembers results by address": ("stale", f"out: {STALE}", "changed   every operand, in place"),
    "remembers gradients by address": ("stale", f"grad_value: {STALE}", "changed   "),
    "remembers the tensors themselves": ("stale", f"out: {STALE}", "in place; the same tensors"),
    "remembers the level table": ("stale", f"out: {STALE}", "changed   spatial_shapes alone, in place"),
    "remembers converted weights": ("stale", f"out: {PARTLY_STALE}", "changed   "),
    "uses its workspace again": (
        "stale",
        "out: a result that was returned has changed by a later call: it lies in memory that the subject uses again",
        "elements",
    ),
    "returns results in an operand": (
        "stale",
        "grad_attention_weights: a result that was returned has changed when every operand was overwritten: it shares",
        "elements",
    ),
    "scratches the weights": ("operands", "attention_weights: an operand was changed", "changed in its elements"),
    "scratches grad_output": ("operands", "grad_output: an operand was changed", "during    forward and backward"),
    "scratches the level table": ("operands", "level_start_index: an operand was changed", "in its elements"),
    "scratches with gradients off": (
        "operands",
        "sampling_locations: an operand was changed",
        "during    a forward with gradients off",
    ),
    "writes between the elements": ("operands", "attention_weights: an operand was changed", "changed in the memory b"),
    "puts back what it wrote": ("operands", "attention_weights: an operand was changed", "every byte is what it was"),
    "leaves gradients behind": ("operands", "value: an operand was changed", "a gradient was left in its .grad"),
    "returns zeros": ("trivial", "out: trivial: every element is 0", "expected"),
    "returns zero gradients": ("trivial", "grad_value: trivial: every element is 0", "expected"),
    "returns a constant": ("trivial", "out: trivial: every element is 1.0", "expected"),
    "hands an operand back": ("trivial", "grad_value: trivial: it is value, handed back", "expected"),
    "repeats the previous result": (
        "trivial",
        "out: trivial: it is the (result of the call before|same)",
        "expected",
    ),
    "computes on the default stream": ("stream", "out: not on the current stream: ", "expected"),
    "differentiates on the default stream": ("stream", "grad_value: not on the current stream: ", "expected"),
    "computes on a stream of its own": ("stream", "out: not on the current stream: computed before", "holds     the"),
    "waits for nobody": ("stream", "out: not on the current stream: computed before", "holds     the"),
}
FALLS_BACK = {
    "for odd channels": r"  forward   aten\.",
    "for more than 128 channels": r"  forward   aten\.",
    "in the backward": r"  backward  aten\.",
    "with gradients off": r"  during    a forward with gradients off",
    "for empty operands": r"aten\.mul\.Tensor",
    "inside of a registered operator": r"aten\.floor\.default",
    "through lists of tensors": r"  forward   aten\._foreach_mul_\.Scalar",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shrinking is tested elsewhere, and once here. One thread is what the harness uses, and faster for small cases."""
    monkeypatch.setattr(profiles, "PHASES", (Phase.generate,))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def harness_of(subject: Subject, device: str, **given: Any) -> Harness:
    return Harness(
        subject=subject,
        device=torch.device(device),
        limits=subject.limits(device),
        stats=ItemStats(test="honesty"),
        **{"examples": 20, "minimise_seconds": 0.0, **given},
    )


def lying(lie: str | None, **declared: object) -> Subject:
    operator = liar(lie)["operator"]
    if lie is not None and "kernels" in lie:
        declared = {"engine": "kernels", "dtypes": ("float32",), **declared}
    for name, value in declared.items():
        setattr(operator, name, value)
    return from_callable(operator, name="liar")


def caught(check: Callable[..., None], subject: Subject, device: str, **given: Any) -> PropertyFailed:
    with pytest.raises(PropertyFailed) as failure:
        check(harness_of(subject, device, **given), FLOAT32)
    return failure.value


@pytest.mark.parametrize("name", [*LIES, *GPU_LIES])
def test_a_lie_is_caught_by_its_own_property(msda_device: str, name: str):
    if name in GPU_LIES and msda_device != "cuda":
        pytest.skip("streams are a GPU's")
    property_, begins, has = TOLD[name]
    error = caught(PROPERTIES[property_], lying({**LIES, **GPU_LIES}[name]), msda_device)
    assert re.match(begins, str(error)), str(error)
    assert has in str(error), str(error)
    expected = "logic fault" if property_ == "trivial" else "memory"
    assert kind_of(error) == expected


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_fallback_is_caught(msda_device: str, name: str):
    subject = lying(FALLBACKS[name])
    examples = 60 if "128" in name else 20
    error = caught(honesty.test_computes_itself, subject, msda_device, examples=examples)
    assert str(error).startswith("fallback: operators of PyTorch computed, where the subject declares kernels of its")
    assert re.search(FALLS_BACK[name], str(error)), str(error)
    assert kind_of(error) == "fallback"


@pytest.mark.parametrize("name", ["stale", "stream", "operands", "trivial"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_honest_subject_passes(msda_device: str, name: str, dtype: str):
    # The one about streams skips itself without a GPU.
    harness = harness_of(lying(None), msda_device)
    PROPERTIES[name](harness, cell_named(dtype))
    assert harness.stats.cases > 0


def test_a_subject_that_declares_no_kernels_is_not_asked(msda_device: str):
    with pytest.raises(pytest.skip.Exception, match="does not declare kernels of its own"):
        honesty.test_computes_itself(harness_of(lying(None), msda_device), FLOAT32)


@pytest.mark.parametrize("name", ["stale", "stream", "operands", "trivial"])
@pytest.mark.parametrize("gradients", [(), ("value",), ("sampling_locations", "attention_weights")])
def test_part_of_a_backward_is_enough(msda_device: str, name: str, gradients: tuple[str, ...]):
    module = liar(None)
    operator = module["honest"] if gradients else module["compute"]
    for attribute, declared in (("dtypes", ("float32",)), ("gradients", gradients)):
        setattr(operator, attribute, declared)
    harness = harness_of(from_callable(operator, name="part"), msda_device, examples=3)
    PROPERTIES[name](harness, FLOAT32)
    assert harness.stats.cases > 0


def test_a_lie_is_shrunk(msda_device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    kept: list[Recipe] = []

    def keep(recipe: Recipe, _error: Exception) -> list[str]:
        kept.append(recipe)
        return []

    subject = lying(LIES["remembers results by address"])
    error = caught(PROPERTIES["stale"], subject, msda_device, on_failure=keep, minimise_seconds=5.0, examples=5)
    assert STALE in str(error)
    assert kept[-1].samples == 1
    assert kept[-1].channels == 1
    # The recorded case alone fails in the same way.
    assert STALE in str(caught(PROPERTIES["stale"], subject, msda_device, case=kept[-1]))


class NoStream:
    """Stands for a stream, where there is none."""

    def __init__(self, device: torch.device) -> None:
        del device


def without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device=None: None)


def test_a_result_of_what_was_there_before_is_told(monkeypatch: pytest.MonkeyPatch):
    """The walk of the streams' property without any: who remembers the first call seems to have read too early."""
    without_streams(monkeypatch)
    honesty.check_stream(harness_of(lying(None), "cpu"), RECIPE)
    with pytest.raises(PropertyFailed) as failure:
        honesty.check_stream(harness_of(lying(LIES["remembers results by address"]), "cpu"), RECIPE)
    lines = str(failure.value).splitlines()
    assert lines[0] == "out: not on the current stream: computed before the operands were there"
    assert lines[1] == "  holds     the result of what the operands held before"
    assert kind_of(failure.value) == "memory"


def test_a_result_that_is_wrong_anyway_is_no_matter_of_streams(monkeypatch: pytest.MonkeyPatch):
    without_streams(monkeypatch)
    subject = lying(None)
    double = dataclasses.replace(subject, call=lambda *operands: 2.0 * subject.call(*operands))
    with pytest.raises(PropertyFailed, match="out: outside its error bound") as failure:
        honesty.check_stream(harness_of(double, "cpu"), RECIPE)
    assert kind_of(failure.value) == "logic fault"


def test_a_result_that_comes_late_is_told(monkeypatch: pytest.MonkeyPatch):
    """A copy that is taken right after the call finds other memory than the end of the case does."""
    without_streams(monkeypatch)
    monkeypatch.setattr(
        honesty,
        "copied",
        lambda found: dataclasses.replace(copied(found), grad_value=torch.full_like(found.grad_value, torch.nan)),
    )
    with pytest.raises(PropertyFailed) as failure:
        honesty.check_stream(harness_of(lying(None), "cpu"), RECIPE)
    assert str(failure.value).startswith(
        "grad_value: not on the current stream: right in the end, but not yet there when the stream goes on"
    )


# ---------------------------------------------------------------- what the properties stand on


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_placed_tensor_is_the_same_tensor_between_guards(layout: str):
    layouts = {f"{operand}_layout": layout for operand in ("value", "locations", "weights", "grad_output")}
    recipe = Recipe(**{**vars(RECIPE), **layouts})
    plain, held = recipe.build(), Held(recipe.build())
    for field in ("value", "locations", "weights", "grad_output"):
        one, other = getattr(plain, field), getattr(held.inputs, field)
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.data_ptr() % 64 == other.data_ptr() % 64
        assert other.untyped_storage().nbytes() == one.untyped_storage().nbytes() + 2 * GUARD_BYTES


def test_contents_change_in_place_and_unseen():
    held = Held(RECIPE.build())
    for name, tensor in held.tensors.items():
        before, address, version = tensor.detach().clone(), tensor.data_ptr(), tensor._version
        changed = name != "level_start_index" and held.turn(name)
        assert changed == (name != "level_start_index")
        assert torch.equal(tensor, before) == (name == "level_start_index")
        assert (tensor.data_ptr(), tensor._version) == (address, version)
    assert held.inputs.levels == ((3, 2), (4, 4))
    assert held.tensors["spatial_shapes"].tolist() == [[3, 2], [4, 4]]
    old = dict(held.tensors)
    held.renew()
    assert all(held.tensors[name] is not old[name] for name in old)
    assert all(held.tensors[name].data_ptr() == old[name].data_ptr() for name in old)


def test_other_sides_have_the_same_areas():
    assert other_sides(((2, 3), (5, 5))) == ((3, 2), (5, 5))
    assert other_sides(((4, 4), (3, 3))) == ((2, 8), (1, 9))
    assert other_sides(((1, 1),)) == ((1, 1),)


@pytest.mark.parametrize(
    ("offset", "where"),
    [(0, "in the memory before it"), (64, "in its elements"), (67, "between its elements"), (80, "in the memory beh")],
)
def test_a_write_is_placed(offset: int, where: str):
    recipe = Recipe(cell=FLOAT32, channels=3, levels=((1, 2),), value_layout="sliced")
    held = Held(recipe.build())
    with watched(held) as changes:
        storage = held.tensors["value"].untyped_storage()
        torch.empty(0).set_(storage)[offset] = 7.0
    assert [change.name for change in changes] == ["value"]
    assert where in changes[0].what


def test_an_expanded_operand_is_written_once():
    tensor = place(torch.ones(2, 1).expand(2, 3))
    assert once(tensor).shape == (2, 1)


class Plain(TorchDispatchMode):
    """What PyTorch's documentation suggests: it sees no further than the operator that is called."""

    seen: list[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_operators_are_seen_in_the_backward_and_inside_of_registered_ones(msda_device: str):
    module = liar(FALLBACKS["inside of a registered operator"].replace("lies::forward", "lies::seen"))
    inputs = RECIPE.build(msda_device)
    operands = (inputs.value, *inputs.level_table(), inputs.locations, inputs.weights)
    plain = Plain()
    plain.seen = []
    with plain:
        module["registered"](*operands)
    assert plain.seen == ["lies.seen.default"]
    with recorded(inputs.device) as recorder:
        module["registered"](*operands)
    assert recorder.computed["forward"]["aten.floor.default"] > 0
    operator = module["called"](module["kernels"], module["differentiate"])
    out = operator(operands[0].requires_grad_(), *operands[1:])
    with recorded(inputs.device) as recorder:
        torch.autograd.grad(out, operands[0], inputs.grad_output)
    # On a GPU this runs in a thread of autograd's.
    assert recorder.computed["backward"]["aten.floor.default"] > 0
    assert not recorder.computed["forward"]


@pytest.mark.parametrize(
    "harmless",
    [
        lambda x: x.reshape(-1).contiguous().clone().t().to(torch.float16).expand(2, 6),
        lambda x: torch.cat([torch.zeros_like(x), x.new_empty(2, 3), torch.full((1, 3), 2.0)]).view(-1)[::5],
        lambda x: torch.nn.functional.pad(x, (0, 1)).transpose(0, 1)[1:].unbind(),
        lambda x: (torch.arange(4) + 1).cumsum(0) + x.shape[0],
        lambda x: x.detach().fill_(3.0).zero_().isnan().any().item(),
    ],
)
def test_memory_and_integers_are_nobodys_arithmetic(harmless: Callable[[Tensor], object]):
    with recorded(CPU) as recorder:
        harmless(torch.ones(2, 3))
    assert recorder.story() == []
    assert recorder.seen > 0


@pytest.mark.parametrize(
    ("computing", "named"),
    [
        (lambda x: x * 2, "aten.mul.Tensor"),
        (lambda x: x.add_(1), "aten.add_.Tensor"),
        (lambda x: torch.where(x > 0, x, 0.0), "aten.where"),
        (lambda x: torch._foreach_add_([x], 1.0), "aten._foreach_add_.Scalar"),
        (lambda x: torch.sin(x, out=torch.empty_like(x)), "aten.sin.out"),
        (lambda x: x.sum().item(), "a number read by the host"),
        (lambda x: torch.nn.functional.interpolate(x[None], size=7), "upsample"),
        (lambda x: x.to("meta"), "(to meta)"),
    ],
)
def test_arithmetic_is_named(computing: Callable[[Tensor], object], named: str):
    with recorded(CPU) as recorder:
        computing(torch.ones(2, 3))
    assert named in "\n".join(recorder.story())


@pytest.mark.parametrize("name", ["float64", "float32", "float16-float32-float16", "bfloat16"])
def test_the_shipped_kernels_compute_themselves_in_every_mode(msda_device: str, name: str):
    subject, cell = shipped(device=msda_device), cell_named(name)
    assert subject.engine == "kernels"
    # Three channels, and a value that has to be copied.
    recipe = Recipe(cell=cell, queries=2, channels=3, points=2, levels=((2, 3), (1, 1)), value_layout="transposed")
    modes = honesty.modes(subject, cell)
    assert len(modes) == (2 if subject.lacks.get(("native", cell.value)) else 4)
    for accumulate, determinism in modes:
        told = subject.with_accumulate(accumulate).with_determinism(determinism)
        inputs = recipe.build(msda_device)
        with recorded(inputs.device) as recorder:
            told.observe(inputs)
        assert recorder.story() == []
        assert recorder.seen > 20


def test_a_case_without_teeth_is_told():
    nowhere = Recipe(**{**vars(RECIPE), "locations": ("far",)}).build()
    assert discriminates(expect(nowhere), nowhere) == "zeros for out, wrong in 0 of 48 elements"
    flat = dataclasses.replace(RECIPE, levels=((1, 1),), weights="zero").build()
    flat = dataclasses.replace(flat, value=torch.ones_like(flat.value), weights=torch.ones_like(flat.weights))
    flat = dataclasses.replace(flat, locations=torch.full_like(flat.locations, 0.5))
    assert discriminates(expect(flat), flat).startswith("a constant for out, wrong in 0 of 48 elements")
    fine = RECIPE.build()
    assert discriminates(expect(fine), fine) == ""
