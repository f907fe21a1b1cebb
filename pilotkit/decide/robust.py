"""Least squares of a handful of unknowns, and which measurements the others contradict. Arithmetic on arrays.

Called by `calibration`. A run can be wrong by far for a reason that no estimate knows: a shared machine, another power
limit, a debugger, a unit. A fit by squares believes such a run more than all the others together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Of Student's t: with so few, one measurement of a dozen may lie ten deviations out and hardly move the others.
DEGREES_OF_FREEDOM = 3.0
MIN_VOICES = 4
"""Three that agree, and the one they contradict."""
LEAST_CONTRADICTION = 0.15
"""In logarithms. Below it nobody is contradicted: published runs of one kind of device lie so far apart."""
DEVIATIONS = 5.0
# The median of absolute errors times this is the standard deviation of a normal distribution.
NORMAL = 1.4826


def least_squares(misses: Callable[[Floats], Floats], start: Floats) -> Floats:
    """The unknowns for which the squares of `misses` are least: Gauss-Newton with the step halved until it helps."""
    values = start
    for _ in range(50):
        here = misses(values)
        slopes = np.stack([(misses(values + step) - here) / 1e-5 for step in 1e-5 * np.eye(len(values))], axis=1)
        change = np.linalg.lstsq(slopes, -here, rcond=None)[0]
        while np.sum(misses(values + change) ** 2) > np.sum(here**2) and np.abs(change).max() > 1e-9:
            change = change / 2
        values = values + change
        if np.abs(change).max() < 1e-7:
            break
    return values


def heavy_tailed(misses: Floats) -> Floats:
    """Misses whose squares add up to the likelihood of Student's t: far ones count little more than near ones."""
    freedom = DEGREES_OF_FREEDOM
    found: Floats = np.sign(misses) * np.sqrt((freedom + 1) * np.log1p(misses**2 / freedom))
    return found


def contradicted(errors: Mapping[str, float]) -> set[str]:
    """Names of the errors (logarithms, against a heavy-tailed fit) that lie out of line; fewer than half of them."""
    if len(errors) < MIN_VOICES:
        return set()
    center = float(np.median(list(errors.values())))
    sizes = {name: abs(error - center) for name, error in errors.items()}
    limit = max(LEAST_CONTRADICTION, DEVIATIONS * NORMAL * float(np.median(list(sizes.values()))))
    return {name for name, size in sizes.items() if size > limit}
