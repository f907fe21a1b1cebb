"""The gradient of the user's whole model against its slope, in float64 on the CPU, group of parameters by group.

Called by phase `qualify`. Finds what operators one by one do not show: an autograd.Function in Python whose backward is
wrong. Works on a model of its own and touches no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pilotkit.worker.qualify.rows import FAIL, NOT_RUN, PASS, Row, words_of

MAX_GROUPS = 24
MAX_PARAMS = 500_000_000
# The step along the gradient changes the loss by this share of itself; float32 parts of a model keep 1e-7 of it.
STEP = 1e-3
TOLERANCE = 0.02


def check_gradient(model: nn.Module, batch: Mapping[str, Tensor]) -> Row:
    """`model` is on the CPU and is converted; `batch` is a row or a few, as the model takes them."""
    title = "whole model"
    num_params = sum(parameter.numel() for parameter in model.parameters())
    if num_params > MAX_PARAMS:
        note = f"{num_params:,} parameters are too many for a float64 copy (at most {MAX_PARAMS:,})"
        return Row("gradient", title, NOT_RUN, note)
    # Dropout would draw other numbers at every step along the slope.
    model = model.double().eval()
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    try:
        parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        loss = model(**inputs).loss
        found = torch.autograd.grad(loss, [parameter for _, parameter in parameters], allow_unused=True)
        wrong, num_groups = [], 0
        for names, group in _groups(parameters, found):
            num_groups += 1
            note = _slope_note(model, inputs, group, loss=float(loss))
            if note:
                wrong.append(f"{names}: {note}")
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return Row("gradient", title, NOT_RUN, f"the model does not run in float64 on the CPU: {words_of(error)}")
    if wrong:
        more = f", and {len(wrong) - 1} of {num_groups} groups more" if len(wrong) > 1 else ""
        return Row("gradient", title, FAIL, f"the gradient is not the slope of the loss for {wrong[-1]}{more}")
    note = f"{num_groups} groups of parameters agree with the slope of the loss within {TOLERANCE:.0%}"
    return Row("gradient", title, PASS, note)


def _groups(
    parameters: list[tuple[str, nn.Parameter]], gradients: tuple[Tensor | None, ...]
) -> list[tuple[str, list[tuple[nn.Parameter, Tensor]]]]:
    """Parameters by the module that owns them, neighbours joined until there are few enough."""
    pairs = [(n, p, g) for (n, p), g in zip(parameters, gradients, strict=True) if g is not None and g.abs().sum() > 0]
    owners = [list(group) for _, group in itertools.groupby(pairs, key=lambda item: item[0].rpartition(".")[0])]
    size = -(-len(owners) // MAX_GROUPS)
    groups = []
    for start in range(0, len(owners), max(size, 1)):
        items = [item for owner in owners[start : start + size] for item in owner]
        names = items[0][0] if len(items) == 1 else f"{items[0][0]} to {items[-1][0]}"
        groups.append((names, [(parameter, gradient) for _, parameter, gradient in items]))
    return groups


@torch.no_grad()
def _slope_note(
    model: nn.Module, inputs: Mapping[str, Any], group: list[tuple[nn.Parameter, Tensor]], *, loss: float
) -> str:
    """Along its own gradient g the loss has the slope |g|, if g is right; empty when it does."""
    norm = float(sum(float(gradient.pow(2).sum()) for _, gradient in group)) ** 0.5
    step = STEP * max(abs(loss), 1e-6) / norm
    before = [parameter.clone() for parameter, _ in group]
    losses = []
    for sign in (1, -1):
        for (parameter, gradient), kept in zip(group, before, strict=True):
            parameter.copy_(kept + gradient * (sign * step / norm))
        losses.append(float(model(**inputs).loss))
    for (parameter, _), kept in zip(group, before, strict=True):
        parameter.copy_(kept)
    slope = (losses[0] - losses[1]) / (2 * step)
    if abs(slope - norm) <= TOLERANCE * max(abs(slope), norm):
        return ""
    return f"slope {slope:.4g}, gradient {norm:.4g}"
