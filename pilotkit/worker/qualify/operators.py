"""Each operator of the step, forward and backward, on the device and in its dtype, against float64 on the CPU.

Called by phase `qualify`. The backward is also held to the slope that float64 shows when the input moves a little: an
operator whose gradient formula is wrong is wrong in every dtype, and no other reference would notice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from pilotkit.worker.qualify.attention import reference_of
from pilotkit.worker.qualify.rows import FAIL, NOT_RUN, PASS, Row, words_of
from pilotkit.worker.qualify.trace import Operator

# Largest difference over the largest reference value. A dtype's own rounding is 2^-53, 2^-24, 2^-11 and 2^-8; sums over
# a thousand products and TF32 lose some bits more, a wrong kernel is off by far more than either.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
TF32_TOLERANCE = 5e-3
# Against the slope: central differences in float64 are good to some 1e-8, in float32 to some 1e-2.
SLOPE = {torch.float64: (1e-6, 1e-4), torch.float32: (1e-2, 5e-2)}
MAX_GRADIENT_NUMEL = 1 << 22

# These say nothing about arithmetic: what they return is uninitialised, or another look at the same memory.
_EMPTY = ("aten::empty", "aten::new_empty")
_NO_ARITHMETIC = ("profiler::",)


def check_operator(operator: Operator, *, allow_tf32: bool) -> Row:
    """One row. Never raises for what the operator does: that is the finding."""
    check, title = "operator", operator.title
    if operator.name.startswith(_NO_ARITHMETIC):
        return Row(check, title, NOT_RUN, "marks a place in a profile and computes nothing")
    if operator.name.startswith(_EMPTY):
        return Row(check, title, NOT_RUN, "returns memory that nobody has written to")
    if _draws(operator):
        return Row(check, title, NOT_RUN, "draws random numbers: there is no value to compare with")
    if operator.sample is None:
        return Row(check, title, NOT_RUN, "every call is too large for a float64 copy")
    tolerance = _tolerance(operator, allow_tf32=allow_tf32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = _forward(operator.overload, operator.sample)
        except Exception as error:
            return Row(check, title, FAIL, f"raises {words_of(error)}")
        try:
            expected = _forward(reference_of(operator.overload), _as_reference(operator.sample, torch.float64))
        except Exception as error:
            return _without_reference(operator, got, error)
        note = _differs(got, expected, tolerance=tolerance)
        if note:
            return Row(check, title, FAIL, f"differs from float64 on the CPU: {note}")
        return _check_backward(operator, tolerance=tolerance)


def _draws(operator: Operator) -> bool:
    """Attention is marked as random for its dropout, which this call may not have asked for."""
    if torch.Tag.nondeterministic_seeded not in operator.overload.tags:
        return False
    if operator.sample is None:
        return True
    args, kwargs = operator.sample
    names = [argument.name for argument in operator.overload._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return "dropout_p" not in names or float(given.get("dropout_p", 0.0)) > 0


def _without_reference(operator: Operator, got: Sequence[Tensor], error: Exception) -> Row:
    """A kernel that has no float64 form on the CPU: finite values, and its own slope in float32, are all there is."""
    if not all(torch.isfinite(value).all() for value in got if value.is_floating_point()):
        return Row("operator", operator.title, FAIL, "its result is not finite")
    note = f"no reference on the CPU ({words_of(error)})"
    if not _is_differentiable(operator):
        return Row("operator", operator.title, NOT_RUN, note)
    try:
        assert operator.sample is not None
        wrong = _slope_note(operator.overload, _with_dtype(operator.sample, torch.float32, device=None), torch.float32)
    except Exception as again:
        return Row("operator", operator.title, NOT_RUN, f"{note}; its gradient could not be tried ({words_of(again)})")
    if wrong:
        return Row("operator", operator.title, FAIL, f"its gradient is wrong: {wrong}")
    return Row("operator", operator.title, PASS, "no reference; its gradient is that of its own slope")


def _check_backward(operator: Operator, *, tolerance: float) -> Row:
    """Gradients on the device against float64's, and float64's against the slope."""
    done = f"{operator.num_calls} calls a step; forward within {tolerance:g}"
    if not _is_differentiable(operator):
        return Row("operator", operator.title, PASS, done)
    assert operator.sample is not None
    reference = _as_reference(operator.sample, torch.float64)
    try:
        got = _gradients(operator.overload, operator.sample)
        expected = _gradients(reference_of(operator.overload), reference)
        slope = _slope_note(reference_of(operator.overload), reference, torch.float64)
    except _NoGradient:
        return Row("operator", operator.title, PASS, done)
    except Exception as error:
        return Row("operator", operator.title, FAIL, f"backward raises {words_of(error)}")
    note = _differs(got, expected, tolerance=2 * tolerance)
    if note:
        return Row("operator", operator.title, FAIL, f"its gradient differs from float64 on the CPU: {note}")
    if slope:
        return Row("operator", operator.title, FAIL, f"its gradient is wrong: {slope}")
    return Row("operator", operator.title, PASS, f"{done}, backward within {2 * tolerance:g} and by its slope")


class _NoGradient(Exception):
    """The operator has no derivative with respect to any of its arguments."""


def _is_differentiable(operator: Operator) -> bool:
    """Backward's and the optimizer's own operators are exercised as they are: no step differentiates them."""
    if overload_mutates(operator.overload) or not operator.dtypes or operator.numel > MAX_GRADIENT_NUMEL:
        return False
    return not any(word in operator.name for word in ("backward", "::_foreach", "::_fused_adam", "::_fused_sgd"))


def _forward(overload: Any, sample: Any) -> list[Tensor]:
    """Results, and arguments that were written into; on copies, so that a sample can be used again."""
    args, kwargs = tree_map_only(Tensor, torch.clone, sample)
    with torch.no_grad():
        result = overload(*args, **kwargs)
    written = (args, kwargs) if overload_mutates(overload) else ()
    return [leaf for leaf in tree_flatten((result, written))[0] if isinstance(leaf, Tensor)]


def overload_mutates(overload: Any) -> bool:
    """Whether an operator writes into its arguments; a stand-in of ours never does."""
    return bool(getattr(getattr(overload, "_schema", None), "is_mutable", False))


def _leaves_with_grad(sample: Any) -> tuple[Any, list[Tensor]]:
    flat, spec = tree_flatten(sample)
    flat = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in flat]
    inputs = [leaf for leaf in flat if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    for leaf in inputs:
        leaf.requires_grad_(True)
    return tree_unflatten(flat, spec), inputs


def _first_output(result: Any) -> Tensor:
    """The first result that has a gradient; later ones are statistics that formulas do not differentiate."""
    for leaf in tree_flatten(result)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            if not leaf.requires_grad:
                break
            return leaf
    raise _NoGradient


def _gradients(overload: Any, sample: Any) -> list[Tensor]:
    """Gradients of a fixed random mix of the first result, one an input; zeros where none flows."""
    (args, kwargs), inputs = _leaves_with_grad(sample)
    with torch.enable_grad():
        output = _first_output(overload(*args, **kwargs))
        mix = _mix(output)
        gradients = torch.autograd.grad(output, inputs, grad_outputs=mix, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(inputs, gradients, strict=True)
    ]


def _slope_note(overload: Any, sample: Any, dtype: torch.dtype) -> str:
    """Compare the gradient with the slope along a random direction; empty when they agree.

    At a kink (relu at zero) the two differ although both are right, so a disagreement has to hold a little beside it.
    """
    note = _slope_here(overload, sample, dtype)
    return note and _slope_here(overload, tree_map_only(Tensor, _nearby, sample), dtype)


def _nearby(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    generator = torch.Generator().manual_seed(2)
    noise = torch.rand(tensor.shape, dtype=torch.float64, generator=generator).to(tensor)
    scale = float(tensor.abs().max()) or 1.0
    return tensor * (1 + 0.01 * noise) + 1e-3 * scale * (0.5 + noise)


def _slope_here(overload: Any, sample: Any, dtype: torch.dtype) -> str:
    step, tolerance = SLOPE[dtype]
    gradients = _gradients(overload, sample)
    flat, spec = tree_flatten(sample)
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(g.shape, dtype=torch.float64, generator=generator).to(g) for g in gradients]
    predicted = sum(float((g.double() * d.double()).sum()) for g, d in zip(gradients, directions, strict=True))
    values = []
    for sign in (1, -1):
        moved, given = list(flat), iter(directions)
        for index, leaf in enumerate(flat):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                moved[index] = leaf + sign * step * next(given)
        args, kwargs = tree_unflatten(moved, spec)
        with torch.no_grad():
            output = next(leaf for leaf in tree_flatten(overload(*args, **kwargs))[0] if isinstance(leaf, Tensor))
        values.append(float((output.double() * _mix(output).double()).sum()))
    slope = (values[0] - values[1]) / (2 * step)
    if not (math.isfinite(slope) and math.isfinite(predicted)):
        return ""  # at the edge of its domain, as the root of zero: there is no slope to compare with
    scale = max(abs(slope), abs(predicted), sum(float(g.double().norm()) for g in gradients) * tolerance, 1e-12)
    if abs(slope - predicted) <= tolerance * scale * 10:
        return ""
    return f"the slope is {slope:.4g}, its gradient says {predicted:.4g}"


def _mix(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(output.shape, dtype=torch.float64, generator=generator).to(output)


def _as_reference(sample: Any, dtype: torch.dtype) -> Any:
    return _with_dtype(sample, dtype, device=torch.device("cpu"))


def _with_dtype(sample: Any, dtype: torch.dtype, *, device: torch.device | None) -> Any:
    """Floating tensors in another dtype, and everything on another device where one is given; dtype arguments too."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device=device or leaf.device, dtype=dtype if leaf.is_floating_point() else leaf.dtype)
        if isinstance(leaf, torch.device):
            return device or leaf
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return dtype
        return leaf

    flat, spec = tree_flatten(sample)
    return tree_unflatten([convert(leaf) for leaf in flat], spec)


def _tolerance(operator: Operator, *, allow_tf32: bool) -> float:
    """That of the coarsest dtype among the arguments."""
    dtypes = [getattr(torch, name) for name in operator.dtypes] or [torch.float32]
    widest = max(TOLERANCES.get(dtype, 0.25) for dtype in dtypes)
    return max(widest, TF32_TOLERANCE) if allow_tf32 else widest


def _differs(got: Sequence[Tensor], expected: Sequence[Tensor], *, tolerance: float) -> str:
    """Where and by how much; empty when every value agrees. Values beyond a dtype's range count as its infinity."""
    if len(got) != len(expected):
        return f"{len(got)} results instead of {len(expected)}"
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one.shape != other.shape:
            return f"result {index + 1} has the shape {tuple(one.shape)} instead of {tuple(other.shape)}"
        if not one.is_floating_point():
            if not torch.equal(one.cpu().to(other.dtype), other.cpu()):
                return f"result {index + 1} has other whole numbers"
            continue
        value, reference = one.detach().cpu().double(), other.detach().cpu().double()
        limit = torch.finfo(one.dtype).max
        reference = torch.where(reference.abs() > limit, reference.sign() * torch.inf, reference)
        same = (value == reference) | (value.isnan() & reference.isnan())
        scale = float(torch.where(reference.isfinite(), reference.abs(), 0.0).max()) if reference.numel() else 0.0
        error = torch.where(same, 0.0, (value - reference).abs())
        worst = float(error.nan_to_num(nan=torch.inf).max()) if error.numel() else 0.0
        if worst > tolerance * scale and worst > torch.finfo(one.dtype).tiny:
            return f"by {worst / scale if scale else worst:.3g} of the largest value, {tolerance:g} is allowed"
    return ""
