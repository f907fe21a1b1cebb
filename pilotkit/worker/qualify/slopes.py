"""The gradient of one operator, and the slope that a small move of its input shows.

Called by `pilotkit.worker.qualify.operators`. Works on copies; knows neither tolerance of dtypes nor rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

# Against the slope: central differences in float64 are good to some 1e-8, in float32 to some 1e-2.
SLOPE = {torch.float64: (1e-6, 1e-4), torch.float32: (1e-2, 5e-2)}


class NoGradient(Exception):
    """The operator has no derivative with respect to any of its arguments."""


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
    raise NoGradient


def gradients_of(overload: Any, sample: Any) -> list[Tensor]:
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


def slope_note(overload: Any, sample: Any, dtype: torch.dtype) -> str:
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
    gradients = gradients_of(overload, sample)
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
