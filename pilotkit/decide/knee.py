"""Where adding devices stops helping, and why: the last number of devices that is worth its place, with its cause.

Called by stage `plan`. A step from N to N' devices helps when speed grows by at least a given part of what the
devices grow by: log(speed'/speed) / log(N'/N) >= min_marginal_gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pilotkit.decide.scaling import (
    FIXED_GLOBAL_BATCH,
    Limits,
    ScalePoint,
    ScalingModel,
    scale,
    valid_counts,
)
from pilotkit.units import format_count

GLOBAL_BATCH, LOOKED_AT = "global batch", "none"


@dataclass(frozen=True)
class Knee:
    """`num_devices` is the last number that helps; `cause` communication, input, failures and checkpoints, global
    batch, or none when everything that was looked at helps. `origin` is measured when the number after it ran, too.
    """

    mode: str
    num_devices: int
    cause: str
    sentence: str
    origin: str


@dataclass(frozen=True)
class Scaling:
    """All numbers of devices that were looked at in one mode, and the knee."""

    mode: str
    points: list[ScalePoint]
    knee: Knee
    calibrated: bool

    def at(self, num_devices: int) -> ScalePoint | None:
        """The point of this number of devices."""
        return next((point for point in self.points if point.num_devices == num_devices), None)


def look(
    model: ScalingModel, *, limits: Limits, mode: str, max_devices: int, min_marginal_gain: float
) -> Scaling | None:
    """Scale over every valid number of devices and find the knee. None when not even one is valid."""
    counts = valid_counts(limits=limits, mode=mode, max_devices=max_devices)
    points = [scale(model, count, limits=limits, mode=mode) for count in counts]
    if not points:
        return None
    knee = find_knee(points, limits=limits, mode=mode, max_devices=max_devices, min_marginal_gain=min_marginal_gain)
    return Scaling(mode, points, knee, model.calibrated)


def find_knee(
    points: Sequence[ScalePoint], *, limits: Limits, mode: str, max_devices: int, min_marginal_gain: float
) -> Knee:
    """The first number after which the next one brings too little, else the last."""
    for here, beyond in itertools.pairwise(points):
        gain = _gain(here, beyond)
        if gain < min_marginal_gain:
            cause = _cause(here, beyond)
            return Knee(mode, here.num_devices, cause, _sentence(here, beyond, cause), beyond.origin)
    last = points[-1]
    most = limits.global_batch_size if mode == FIXED_GLOBAL_BATCH else limits.max_global_batch_size
    if most is not None and last.num_devices * limits.micro_batch_size * 2 > most and last.num_devices < max_devices:
        text = (
            f"{last.num_devices} devices take the batch of {most} rows at once "
            f"({limits.micro_batch_size} each): more would have nothing to do"
        )
        return Knee(mode, last.num_devices, GLOBAL_BATCH, text, last.origin)
    return Knee(mode, last.num_devices, LOOKED_AT, f"every number up to {last.num_devices} helps", last.origin)


def _gain(here: ScalePoint, beyond: ScalePoint) -> float:
    if here.tokens_per_second <= 0 or beyond.tokens_per_second <= 0:
        return 0.0
    return math.log(beyond.tokens_per_second / here.tokens_per_second) / math.log(beyond.num_devices / here.num_devices)


def _cause(here: ScalePoint, beyond: ScalePoint) -> str:
    """What grows most in the price of a token."""
    before, after = here.device_seconds_per_token(), beyond.device_seconds_per_token()
    return max(("communication", "input", "failures and checkpoints"), key=lambda name: after[name] - before[name])


def _sentence(here: ScalePoint, beyond: ScalePoint, cause: str) -> str:
    more = beyond.num_devices / here.num_devices - 1
    faster = beyond.tokens_per_second / here.tokens_per_second - 1 if here.tokens_per_second else 0.0
    before, after = here.device_seconds_per_token()[cause], beyond.device_seconds_per_token()[cause]
    share = after / sum(beyond.device_seconds_per_token().values()) if math.isfinite(after) else 1.0
    return (
        f"from {here.num_devices} to {beyond.num_devices} devices, {100 * more:.0f} % more of them, the speed changes "
        f"by {100 * faster:+.0f} % to {format_count(beyond.tokens_per_second)} tokens/s: {cause} then takes "
        f"{100 * share:.0f} % of the devices' time"
        + (f", {after / before:.1f} times as much a token" if before > 0 and math.isfinite(after) else "")
    )
