"""What measured runs say about an estimate: a correction for time and one for memory, each with its band.

Called by stage `estimate` with the comparisons kept in `outputs/`. Pure arithmetic. One or two runs give a scale; three
or more the classes of kernels, the reserved ratio and the overhead, each drawn toward what was assumed before (a
maximum a posteriori estimate in logarithms). The band is the largest error of runs that were left out of their own
correction; where there are too few for that it is assumed, and the words say so.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pilotkit.decide.robust import MIN_VOICES, Floats, contradicted, heavy_tailed, least_squares
from pilotkit.decide.step_time import COMMUNICATION, LAUNCH, StepTime

MIN_CLASS_RUNS = 3
# Priors: standard deviations of logarithms. A scale is all but free; a class may stray from it as far as the
# efficiencies of H100 and A100 lie apart (matrix products by a third, attention by a factor of two).
SCALE_SIGMA = 1.5
CLASS_SIGMAS = {"matmul": 0.3, "attention": 0.6, "elementwise": 0.4, LAUNCH: 0.6, COMMUNICATION: 0.6}
KNOWN_SHARE = 0.35
"""Of the above, for a device whose efficiencies come from measured steps: benchmarks/estimate_speed.py. A smaller one
helps where the runs that correct are another machine's, a larger one where the efficiencies are."""
MEMORY_SIGMA = 0.15
OVERHEAD_SIGMA = 0.5
# What one measurement is worth: of the family, and of another family of models. Of time it is what five classes cannot
# tell of a run (published ones: 2 % in the median, 5 % in the mean square), more than a repeated run differs.
TIME_NOISE, FOREIGN_TIME_NOISE = 0.05, 0.10
MEMORY_NOISE, FOREIGN_MEMORY_NOISE = 0.01, 0.03
ASSUMED_TIME_BAND, ASSUMED_MEMORY_BAND = 0.20, 0.05
CARRIED_TIME_BAND, CARRIED_MEMORY_BAND = 0.15, 0.02
"""What another device of the same kind adds to a band."""
NOTHING_MEASURED = "uncalibrated"


@dataclass(frozen=True)
class MeasuredRun:
    """One run beside its estimate before any correction. Bytes and seconds; None: the run does not say."""

    key: str
    time: StepTime | None
    step_seconds: float | None
    allocated: tuple[float, float] | None
    """Estimated, measured; so the next."""
    reserved: tuple[float, float] | None
    overhead: tuple[float, float] | None
    is_family: bool = True
    """Of the family of models that is estimated; others count less."""
    spread: float = 0.0
    """Coefficient of variation of the measured steps."""


@dataclass(frozen=True)
class Correction:
    """Factors on an estimate. `band` is the half-width as a share, `held_out` the errors it comes from (log)."""

    factors: dict[str, float]
    num_runs: int
    """Those that were used."""
    band: float
    held_out: dict[str, float]
    set_aside: dict[str, float] = field(default_factory=dict)
    """Runs that the others contradict, and so not used: measured over what the others say."""

    @property
    def is_band_assumed(self) -> bool:
        return not self.held_out


@dataclass(frozen=True)
class Calibration:
    """What is corrected, and by what. Made by `calibrate`."""

    time: Correction | None
    memory: Correction | None
    """Factors `allocated` and `reserved`, and `overhead` from three runs on."""
    carried_from: str = ""
    """Another hardware option that was measured in place of this one."""

    def step(self, raw: StepTime) -> StepTime:
        """The corrected time of a step."""
        return raw if self.time is None else corrected(raw, self.time.factors)

    def allocated(self, num_bytes: float) -> float:
        return num_bytes * self._factor("allocated")

    def reserved(self, num_bytes: float) -> float:
        return num_bytes * self._factor("reserved")

    def overhead(self, num_bytes: float) -> float:
        return num_bytes * self._factor("overhead")

    def _factor(self, name: str) -> float:
        return self.memory.factors.get(name, 1.0) if self.memory is not None else 1.0

    def words(self, correction: Correction | None) -> str:
        """`calibrated by 4 runs, within 3 %`, or `uncalibrated`."""
        if correction is None:
            return NOTHING_MEASURED
        runs = "1 run" if correction.num_runs == 1 else f"{correction.num_runs} runs"
        where = f" on {self.carried_from}" if self.carried_from else ""
        how = "carried over from" if self.carried_from else "calibrated by"
        assumed = " (band assumed)" if correction.is_band_assumed else ""
        return f"{how} {runs}{where}, within {_percent(correction.band)}{assumed}"


def _percent(share: float) -> str:
    """Two digits, and whole percents from a hundred on: `1.5 %`, `60 %`, `104 %`."""
    percent = 100 * share
    # What rounds to 100 at two digits would read `1e+02`.
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:,.0f} %"


def calibrate(runs: Sequence[MeasuredRun], *, carried_from: str = "", knows_device: bool = False) -> Calibration:
    """The corrections that these runs of one hardware ask for; None each where no run speaks of it.

    `knows_device`: its efficiencies come from measured steps, so that classes stray less from them.
    """
    timed = [run for run in runs if run.time is not None and run.step_seconds]
    held = [run for run in runs if run.allocated or run.reserved]
    extra_time, extra_memory = (CARRIED_TIME_BAND, CARRIED_MEMORY_BAND) if carried_from else (0.0, 0.0)
    share = KNOWN_SHARE if knows_device else 1.0
    time = _correction(
        timed,
        partial(_time_factors, share=share),
        _time_error,
        roughly=partial(_time_factors, share=share, is_robust=True),
        assumed=ASSUMED_TIME_BAND,
        extra=extra_time,
    )
    memory = _correction(
        held,
        _memory_factors,
        _memory_error,
        roughly=lambda _: {},  # one factor for all: the errors themselves are compared
        assumed=ASSUMED_MEMORY_BAND,
        extra=extra_memory,
    )
    return Calibration(time, memory, carried_from)


def corrected(raw: StepTime, factors: dict[str, float]) -> StepTime:
    """Every class times its factor."""
    parts = {name: seconds * factors.get(name, 1.0) for name, seconds in raw.parts.items()}
    return dataclasses.replace(raw, parts=parts)


def attributed(raw: StepTime, factors: dict[str, float], *, step_seconds: float) -> dict[str, float]:
    """Where the seconds between an estimate and a measurement lie: by class, and what no class explains.

    Overlap makes the parts add up to more than the step; `unexplained` is against the corrected step.
    """
    better = corrected(raw, factors)
    found = {name: better.parts[name] - seconds for name, seconds in raw.parts.items() if seconds}
    return {**found, "unexplained": step_seconds - better.step_seconds}


Factors = dict[str, float]
FactorsOf = Callable[[list[MeasuredRun]], Factors]
ErrorOf = Callable[[MeasuredRun, Factors], float | None]


def _correction(
    measured: list[MeasuredRun],
    factors_of: FactorsOf,
    error_of: ErrorOf,
    *,
    roughly: FactorsOf,
    assumed: float,
    extra: float,
) -> Correction | None:
    if not measured:
        return None
    # A family that nothing else resembles is contradicted by its own runs alone, another family's by everybody's.
    family_only = [run for run in measured if run.is_family]
    out_of_line = _contradicted(family_only, roughly, error_of)
    out_of_line |= {run.key for run in measured if not run.is_family} & _contradicted(measured, roughly, error_of)
    runs = [run for run in measured if run.key not in out_of_line]
    factors = factors_of(runs)
    set_aside = _errors([run for run in measured if run.key in out_of_line], factors, error_of)
    # Errors of the family itself, where enough of it was measured: another model's say less.
    family = [run for run in runs if run.is_family]
    judged = family if len(family) >= MIN_CLASS_RUNS else runs
    held_out: dict[str, float] = {}
    if len(judged) >= MIN_CLASS_RUNS:
        for run in judged:
            error = error_of(run, factors_of([other for other in runs if other is not run]))
            if error is not None:
                held_out[run.key] = error
    band = max((math.expm1(abs(error)) for error in held_out.values()), default=assumed)
    ratios = {key: math.exp(error) for key, error in set_aside.items()}
    return Correction(factors, len(runs), math.hypot(band, extra), held_out, ratios)


def _contradicted(runs: list[MeasuredRun], roughly: FactorsOf, error_of: ErrorOf) -> set[str]:
    return contradicted(_errors(runs, roughly(runs), error_of)) if len(runs) >= MIN_VOICES else set()


def _errors(runs: list[MeasuredRun], factors: Factors, error_of: ErrorOf) -> dict[str, float]:
    errors = {run.key: error_of(run, factors) for run in runs}
    return {key: error for key, error in errors.items() if error is not None}


def _time_error(run: MeasuredRun, factors: Factors) -> float:
    assert run.time is not None
    assert run.step_seconds is not None
    return math.log(run.step_seconds / corrected(run.time, factors).step_seconds)


def _time_factors(runs: list[MeasuredRun], *, share: float, is_robust: bool = False) -> Factors:
    """One factor for all classes, or from three runs on one for each class that any of them spends time in."""
    names = [name for name in CLASS_SIGMAS if any(run.time is not None and run.time.parts.get(name) for run in runs)]
    noises = np.array([math.hypot(TIME_NOISE if run.is_family else FOREIGN_TIME_NOISE, run.spread) for run in runs])
    classes = names if len(runs) >= MIN_CLASS_RUNS else []
    sigmas = np.array([SCALE_SIGMA, *(share * CLASS_SIGMAS[name] for name in classes)])

    def factors(values: Floats) -> Factors:
        stray = dict(zip(classes, values[1:], strict=True))
        return {name: math.exp(float(values[0]) + float(stray.get(name, 0.0))) for name in names}

    def misses(values: Floats) -> Floats:
        found = factors(values)
        errors = np.array([_time_error(run, found) for run in runs]) / noises
        return np.concatenate([heavy_tailed(errors) if is_robust else errors, values / sigmas])

    start = np.zeros(len(sigmas))
    start[0] = statistics.median(_time_error(run, {}) for run in runs)
    return factors(least_squares(misses, start))


def _memory_error(run: MeasuredRun, factors: Factors) -> float | None:
    """Of what the device has to hold: reserved where that was read, else allocated."""
    pair, name = (run.reserved, "reserved") if run.reserved is not None else (run.allocated, "allocated")
    return None if pair is None else math.log(pair[1] / (pair[0] * factors.get(name, 1.0)))


def _memory_factors(runs: list[MeasuredRun]) -> Factors:
    """One scale for allocated and reserved memory; apart from three runs on, and then the overhead too."""
    if len(runs) < MIN_CLASS_RUNS:
        pairs = [(run.reserved or run.allocated, run) for run in runs]
        scale = _posterior([(pair, run) for pair, run in pairs if pair is not None], sigma=MEMORY_SIGMA)
        return {"allocated": scale, "reserved": scale}
    allocated = [(run.allocated, run) for run in runs if run.allocated is not None]
    reserved = [(run.reserved, run) for run in runs if run.reserved is not None]
    overheads = [(run.overhead, run) for run in runs if run.overhead is not None]
    common = _posterior(allocated, sigma=MEMORY_SIGMA)
    found = {"allocated": common, "reserved": _posterior(reserved, sigma=MEMORY_SIGMA) if reserved else common}
    if overheads:
        found["overhead"] = _posterior(overheads, sigma=OVERHEAD_SIGMA)
    return found


def _posterior(pairs: Sequence[tuple[tuple[float, float], MeasuredRun]], *, sigma: float) -> float:
    """The factor between estimated and measured, drawn toward 1: a normal prior on its logarithm."""
    weights = [1 / (MEMORY_NOISE if run.is_family else FOREIGN_MEMORY_NOISE) ** 2 for _, run in pairs]
    total = sum(
        weight * math.log(measured / estimated)
        for weight, ((estimated, measured), _) in zip(weights, pairs, strict=True)
    )
    return math.exp(total / (sum(weights) + 1 / sigma**2)) if pairs else 1.0
