"""What more devices bring: a step's parts at any number of devices, from the numbers that were measured.

Called by `pilotkit.decide.knee` and stage `plan`. At a measured number of devices it returns what was measured;
elsewhere a projection with its band; uncalibrated where only one number of devices beyond one was tried.

    step(N) = compute + communication(N) + waiting for input(N)
    communication(N) = a (N-1)/N + b log2 N        ring: bandwidth term; tree: latency term (Thakur et al. 2005)
    speed(N) = tokens(N) / step(N) x goodput(N)    goodput: Daly's complete model
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotkit.decide.failures import FailureModel
from pilotkit.decide.interval import seconds_with_checkpoints

FIXED_GLOBAL_BATCH, FIXED_DEVICE_BATCH = "fixed global batch", "fixed batch per device"


@dataclass(frozen=True)
class Measured:
    """One number of devices that ran: seconds of a step, with the micro-batches each device took in it.

    `band` is the half-width of a step that was not measured but projected from other runs, as a share.
    """

    num_devices: int
    step_seconds: float
    grad_accum_steps: int
    origin: str = "measured"
    run_id: str = ""
    band: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What else a step meets. Rows are sequences; rates are tokens per second; None: not known, no limit taken.

    `supply_per_node` is what the loaders of one node deliver, `supply_shared` what a source shared by all nodes
    delivers. `network_factor` is how many times slower a device's link is between nodes than within one.
    """

    devices_per_node: int
    micro_batch_size: int
    seq_len: int
    global_batch_size: int
    grad_accum_steps: int = 1
    max_global_batch_size: int | None = None
    supply_per_node: float | None = None
    supply_shared: float | None = None
    network_factor: float = 1.0
    save_seconds: float = 0.0
    restart_seconds: float = 0.0
    steps_between_saves: int | None = None
    failures: FailureModel = field(default_factory=lambda: FailureModel("none", 0.0))


@dataclass(frozen=True)
class ScalePoint:
    """One number of devices. Seconds of one step by part; `tokens_per_second` counts failures and saves in.

    `low` and `high` are tokens per second at the edges of the band. `origin` is measured or projected.
    """

    num_devices: int
    tokens_per_step: int
    compute_seconds: float
    communication_seconds: float
    input_seconds: float
    goodput: float
    tokens_per_second: float
    low: float
    high: float
    origin: str

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds + self.input_seconds

    def device_seconds_per_token(self) -> dict[str, float]:
        """What one token costs in device-seconds, by cause; compute alone would stay the same at any number."""
        per_step = {
            "compute": self.compute_seconds,
            "communication": self.communication_seconds,
            "input": self.input_seconds,
            "failures and checkpoints": self.step_seconds * (1 / self.goodput - 1) if self.goodput else math.inf,
        }
        return {cause: self.num_devices * seconds / self.tokens_per_step for cause, seconds in per_step.items()}


@dataclass(frozen=True)
class ScalingModel:
    """Fitted parts of a step. `micro_seconds` is one micro-batch on one device; `bandwidth_seconds` and
    `latency_seconds` are a and b of the communication; `measured` are the points they came from.
    """

    micro_seconds: float
    bandwidth_seconds: float
    latency_seconds: float
    measured: tuple[Measured, ...]

    @property
    def max_measured(self) -> int:
        return max(point.num_devices for point in self.measured)

    @property
    def band(self) -> float:
        """The widest of the points it rests on."""
        return max(point.band for point in self.measured)

    @property
    def calibrated(self) -> bool:
        """Two terms were told apart by two numbers of devices beyond one."""
        return len({point.num_devices for point in self.measured if point.num_devices > 1}) >= 2

    def communication(self, num_devices: int, *, limits: Limits) -> tuple[float, float, float]:
        """Seconds of one step, and the least and most that the measured points allow.

        Beyond them the least is all bandwidth (flat within the network's factor), the most all latency.
        """
        middle = _terms(num_devices, limits, self.bandwidth_seconds, self.latency_seconds)
        if num_devices <= self.max_measured or self.max_measured == 1:
            return middle, middle, middle
        at = self.max_measured
        known = _terms(at, limits, self.bandwidth_seconds, self.latency_seconds)
        flat = _terms(num_devices, limits, known * at / (at - 1) / _factor(at, limits), 0.0)
        growing = _terms(num_devices, limits, 0.0, known / math.log2(at)) * _factor(num_devices, limits)
        growing /= _factor(at, limits)
        return middle, min(flat, growing, middle), max(flat, growing, middle)


def fit(points: Sequence[Measured]) -> ScalingModel | None:
    """Compute from the smallest number of devices, communication from what the others take beyond it.

    None without a point. Least squares over the two terms, neither below zero; with one number of devices beyond
    one, all of it is the bandwidth term.
    """
    if not points:
        return None
    ordered = tuple(sorted(points, key=lambda point: point.num_devices))
    first = ordered[0]
    micro = first.step_seconds / first.grad_accum_steps
    beyond = [
        (point.num_devices, max(point.step_seconds - micro * point.grad_accum_steps, 0.0))
        for point in ordered
        if point.num_devices > first.num_devices
    ]
    bandwidth, latency = _least_squares(beyond)
    return ScalingModel(micro, bandwidth, latency, ordered)


def scale(model: ScalingModel, num_devices: int, *, limits: Limits, mode: str) -> ScalePoint:
    """One number of devices. Raises ValueError for one that the fixed global batch cannot be split over."""
    grad_accum_steps = accumulation(num_devices, limits=limits, mode=mode)
    tokens = limits.micro_batch_size * grad_accum_steps * num_devices * limits.seq_len
    compute = model.micro_seconds * grad_accum_steps
    middle, least, most = model.communication(num_devices, limits=limits)
    ran = next(
        (p for p in model.measured if (p.num_devices, p.grad_accum_steps) == (num_devices, grad_accum_steps)), None
    )
    if ran is not None:
        middle = least = most = max(ran.step_seconds - compute, 0.0)
        compute = min(compute, ran.step_seconds)
    # What ran has waited for its input already.
    supply = None if ran is not None else _supply(num_devices, limits)
    waiting = 0.0 if supply is None else max(tokens / supply - compute - middle, 0.0)
    goodput = _goodput(compute + middle + waiting, num_devices=num_devices, limits=limits)

    def speed(communication: float) -> float:
        seconds = compute + communication
        return tokens / (seconds if supply is None else max(seconds, tokens / supply)) * goodput

    return ScalePoint(
        num_devices,
        tokens,
        compute,
        middle,
        waiting,
        goodput,
        speed(middle),
        speed(most) / (1 + model.band),
        speed(least) * (1 + model.band),
        ran.origin if ran is not None else "projected",
    )


def accumulation(num_devices: int, *, limits: Limits, mode: str) -> int:
    """Micro-batches that each device takes in one step. Raises ValueError when the global batch does not divide."""
    at_once = limits.micro_batch_size * num_devices
    if mode == FIXED_GLOBAL_BATCH:
        if limits.global_batch_size % at_once:
            raise ValueError(f"{limits.global_batch_size} rows cannot be split into {at_once} at a time")
        return limits.global_batch_size // at_once
    return limits.grad_accum_steps


def valid_counts(*, limits: Limits, mode: str, max_devices: int) -> list[int]:
    """Numbers of devices that can be had: any within one node, whole nodes beyond; those that the batch allows."""
    node = limits.devices_per_node
    within = range(1, min(node, max_devices) + 1)
    counts = [*within, *range(2 * node, max_devices + 1, node)]
    if mode == FIXED_GLOBAL_BATCH:
        return [count for count in counts if limits.global_batch_size % (limits.micro_batch_size * count) == 0]
    most, each = limits.max_global_batch_size, limits.micro_batch_size * limits.grad_accum_steps
    return [count for count in counts if most is None or count * each <= most]


def _terms(num_devices: int, limits: Limits, bandwidth: float, latency: float) -> float:
    ring = bandwidth * (num_devices - 1) / num_devices * _factor(num_devices, limits)
    return ring + latency * math.log2(num_devices)


def _factor(num_devices: int, limits: Limits) -> float:
    return limits.network_factor if num_devices > limits.devices_per_node else 1.0


def _least_squares(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """a and b of a (N-1)/N + b log2 N, neither below zero."""
    if not points:
        return 0.0, 0.0
    rows = [((count - 1) / count, math.log2(count), seconds) for count, seconds in points]
    uu, vv, uv = (sum(a * b for a, b in pairs) for pairs in _products(rows))
    uy = sum(u * y for u, _, y in rows)
    vy = sum(v * y for _, v, y in rows)
    if len(rows) == 1:
        return uy / uu, 0.0
    determinant = uu * vv - uv * uv
    a, b = ((uy * vv - vy * uv) / determinant, (vy * uu - uy * uv) / determinant) if determinant > 1e-12 else (-1.0, 0)
    if a >= 0 and b >= 0:
        return a, b
    only_a, only_b = uy / uu, vy / vv
    miss_a = sum((only_a * u - y) ** 2 for u, _, y in rows)
    miss_b = sum((only_b * v - y) ** 2 for _, v, y in rows)
    return (only_a, 0.0) if miss_a <= miss_b else (0.0, only_b)


def _products(rows: Sequence[tuple[float, float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return [(u, u) for u, _, _ in rows], [(v, v) for _, v, _ in rows], [(u, v) for u, v, _ in rows]


def _supply(num_devices: int, limits: Limits) -> float | None:
    """Tokens per second that the input delivers to so many devices."""
    found = []
    if limits.supply_per_node is not None:
        found.append(limits.supply_per_node * math.ceil(num_devices / limits.devices_per_node))
    if limits.supply_shared is not None:
        found.append(limits.supply_shared)
    return min(found) if found else None


def _goodput(step_seconds: float, *, num_devices: int, limits: Limits) -> float:
    """Share of time in which the run gets ahead: steps over expected time with saves, failures and restarts."""
    if limits.steps_between_saves is None:
        return 1.0
    interval = limits.steps_between_saves * step_seconds
    expected = seconds_with_checkpoints(
        interval,
        interval_seconds=interval,
        save_seconds=limits.save_seconds,
        restart_seconds=limits.restart_seconds,
        failures_per_second=limits.failures.per_second(num_devices / limits.devices_per_node),
    )
    return interval / expected if math.isfinite(expected) else 0.0
