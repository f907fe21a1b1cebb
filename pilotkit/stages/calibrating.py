"""What stage `estimate` learns from measured runs before it estimates: comparisons kept in `outputs/calibration`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotkit.decide.calibration import Calibration, MeasuredRun, attributed, calibrate
from pilotkit.decide.compared import Pool, compare, pool_of, run_of
from pilotkit.decide.fit import Overhead, overhead_of
from pilotkit.decide.measured import Measurement, family_of, measurements_of
from pilotkit.decide.measured_table import BadTable, read_table
from pilotkit.decide.step_time import REFERENCE_PROCESSOR, STARTING_EFFICIENCY, Efficiency, Rates
from pilotkit.errors import ConfigError, Problem
from pilotkit.records import atomic
from pilotkit.records.comparisons import Comparison, read_comparisons, write_comparison
from pilotkit.records.search import find_records
from pilotkit.stages.run import Run

# A trace takes seconds: of many measured shapes the newest say most.
MAX_TRACED = 16


@dataclass(frozen=True)
class History:
    """Every comparison that is kept, and what could not be used."""

    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def learn(run: Run) -> History:
    """Put beside an estimate what was measured of this model on this hardware and is not in the history yet.

    Raises ConfigError for a table that cannot be read.
    """
    if not run.config.estimate.calibrate:
        return History(notes=["estimate.calibrate=false: no measured run corrects this"])
    plain = dataclasses.asdict(run.config)
    records = find_records(run.output_dir).records
    history, notes = read_comparisons(run.output_dir)
    known = {found.key for found in history}
    measured = [*measurements_of(records, like=plain), *_table(run, plain)]
    new = [item for item in measured if item.key not in known and item.figures][-MAX_TRACED:]
    if not new:
        return History(history, notes)
    estimates = [record for record in records if record.stage == "estimate" and record.config]
    added = _compared(run, new, plain=plain, earlier=estimates)
    for found in added:
        write_comparison(run.output_dir, found)
    if len(added) < len(new):
        notes.append(f"{len(new) - len(added)} measured runs could not be traced and correct nothing")
    return History([*history, *added], notes)


@dataclass(frozen=True)
class Calibrated:
    """The corrections for one hardware option, and the runs they come from."""

    calibration: Calibration
    pool: Pool
    runs: list[MeasuredRun]


def calibrated_for(run: Run, history: History, hardware: Mapping[str, Any]) -> Calibrated:
    """What the history says of a hardware option, plain as a record holds it."""
    pool = pool_of(
        history.comparisons,
        hardware=str(hardware["name"]),
        device_type=str(hardware["device_type"]),
        number_format=run.config.precision.flops_format,
        compiled=run.config.train.compile,
    )
    family = family_of(dataclasses.asdict(run.config))
    runs = [
        run_of(
            found,
            rates=_rates_there(run, found, hardware),
            efficiency=_efficiency_there(run, found, hardware),
            family=family,
        )
        for found in pool.comparisons
    ]
    knows = bool(hardware.get("efficiencies")) and not pool.carried_from
    return Calibrated(calibrate(runs, carried_from=pool.carried_from, knows_device=knows), pool, runs)


def _table(run: Run, plain: Mapping[str, Any]) -> list[Measurement]:
    path = run.config.estimate.measured_csv
    if path is None:
        return []
    train, parallelism = run.config.train, run.config.parallelism
    defaults = {
        "strategy": parallelism.strategy,
        "num_devices": run.arithmetic.world_size,
        "micro_batch_size": train.micro_batch_size,
        "seq_len": train.seq_len,
        "grad_accum_steps": run.arithmetic.grad_accum_steps,
    }
    model = {name: plain[name] for name in ("model", "hardware", "precision", "activation_checkpointing", "optimizer")}
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        return read_table(text, name=Path(path).name, defaults=defaults, model=model)
    except (OSError, ValueError) as error:
        allowed = "CSV with a header; columns as estimate.measured_csv says in pilotkit --help"
        kind = str(error) if isinstance(error, BadTable) else f"it cannot be read ({error})"
        raise ConfigError([Problem("estimate.measured_csv", path, allowed, kind)]) from error


def _compared(
    run: Run, new: Sequence[Measurement], *, plain: Mapping[str, Any], earlier: Sequence[Any]
) -> list[Comparison]:
    """Trace the measured shapes in one worker; none where the model cannot be traced, which the estimate explains."""
    atomic.write_json(run.run_dir.asked, {"measured": [item.asked() for item in new]})
    outcome = run.work("estimate_measured", computes=False)
    if outcome.status != "ok":
        return []
    return [
        compare(
            item,
            outcome.result[item.key],
            hardware=plain["hardware"],
            family=family_of(plain),
            number_format=run.config.precision.flops_format,
            compiled=run.config.train.compile,
            allocator=run.config.estimate.allocator,
            efficiency=efficiency_of(run, plain["hardware"]),
            overhead_bytes=overhead_for(run, num_devices=item.shape["num_devices"]).num_bytes,
            earlier=earlier,
        )
        for item in new
        if item.key in outcome.result
    ]


def overhead_for(run: Run, *, num_devices: int, device_type: str | None = None) -> Overhead:
    """What no trace sees, for so many devices."""
    options = run.config.estimate
    return overhead_of(
        device_type=device_type or run.config.hardware.device_type,
        world_size=num_devices,
        context_bytes=options.context_bytes,
        communication_bytes=options.communication_bytes,
        workspace_bytes=options.workspace_bytes,
    )


def efficiency_of(run: Run, hardware: Mapping[str, Any]) -> Efficiency:
    """What is assumed of each class before anything was measured: asked for, of the hardware, or a starting value."""
    options, known, start = run.config.estimate, hardware.get("efficiencies") or {}, STARTING_EFFICIENCY
    return Efficiency(
        matmul=options.matmul_efficiency or known.get("matmul", start.matmul),
        attention=options.attention_efficiency or known.get("attention", start.attention),
        elementwise=options.bandwidth_efficiency or known.get("bandwidth", start.elementwise),
        link=options.link_efficiency or known.get("link", start.link),
    )


def _efficiency_there(run: Run, found: Comparison, hardware: Mapping[str, Any]) -> Efficiency:
    """What was assumed of the device on which a comparison was made."""
    if found.hardware == hardware["name"]:
        return efficiency_of(run, hardware)
    return Efficiency(**found.efficiency)


def rates_of(run: Run, hardware: Mapping[str, Any], *, num_devices: int) -> Rates | str:
    """What a hardware option can do at best, or what it lacks to say so."""
    options, number_format = run.config.estimate, run.config.precision.flops_format
    peak = (hardware.get("peak_flops") or {}).get(number_format)
    bandwidth, link = (hardware.get(f"{name}_bandwidth_bytes_per_second") for name in ("memory", "link"))
    if hardware["device_type"] == "cpu" and not peak:
        return REFERENCE_PROCESSOR
    network = options.network_bytes_per_second
    crosses = num_devices > int(hardware["device_count"])
    lacking = [
        name
        for name, value in (
            (f"hardware.peak_flops.{number_format}", peak),
            ("hardware.memory_bandwidth_bytes_per_second", bandwidth),
            ("hardware.link_bandwidth_bytes_per_second", link if num_devices > 1 else 1.0),
            ("estimate.network_bytes_per_second", network if crosses else 1.0),
        )
        if not value
    ]
    if lacking:
        return f"{', '.join(lacking)} is not given"
    assert peak
    assert bandwidth
    slowest = link or 1.0
    if crosses and network:
        # A ring over all ranks enters a node once, through all of its devices side by side.
        slowest = min(slowest, network * int(hardware["device_count"]))
    return Rates(peak, bandwidth, slowest, options.kernel_seconds, launches_ahead=hardware["device_type"] != "cpu")


def _rates_there(run: Run, found: Comparison, hardware: Mapping[str, Any]) -> Rates | None:
    """Peaks of the device on which a comparison was made."""
    if found.hardware == hardware["name"]:
        rates = rates_of(run, hardware, num_devices=1)
        return rates if isinstance(rates, Rates) else None
    link = found.rates.get("link_bandwidth", 1.0)
    return Rates(found.rates["peak_flops"], found.rates["memory_bandwidth"], link, run.config.estimate.kernel_seconds)


def set_aside_notes(calibrated: Calibrated) -> list[str]:
    """A line for each measured run that the others contradict, and what may be behind it."""
    sources = {found.key: f"{found.source} ({found.words})" for found in calibrated.pool.comparisons}
    known = {"time": calibrated.calibration.time, "memory": calibrated.calibration.memory}
    return [
        f"measured run set aside, {sources[key]}: its {what} is {_times(ratio)} times what the other {found.num_runs} "
        "say. It corrects nothing; look whether something else ran on its device, or whether its figures have another "
        "unit"
        for what, found in known.items()
        if found is not None
        for key, ratio in found.set_aside.items()
    ]


def _times(ratio: float) -> str:
    """Two decimals, and of a small ratio its digits: an error of unit must not read as nought."""
    return f"{ratio:,.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def comparison_rows(calibrated: Calibrated) -> list[dict[str, Any]]:
    """Every run of the pool: estimated, corrected and measured, what is left, and where it lies."""
    calibration = calibrated.calibration
    rows = []
    for found, one in zip(calibrated.pool.comparisons, calibrated.runs, strict=True):
        row: dict[str, Any] = {
            "source": found.source,
            "family": found.family,
            "shape": found.words,
            "told": found.told,
        }
        if calibration.time is not None and one.time is not None and one.step_seconds:
            row |= {
                "step_estimated_seconds": one.time.step_seconds,
                "step_corrected_seconds": calibration.step(one.time).step_seconds,
                "step_measured_seconds": one.step_seconds,
                "attributed_seconds": attributed(one.time, calibration.time.factors, step_seconds=one.step_seconds),
                "held_out_error": calibration.time.held_out.get(found.key),
                "is_set_aside": found.key in calibration.time.set_aside,
            }
        if calibration.memory is not None:
            row["is_memory_set_aside"] = found.key in calibration.memory.set_aside
        for name, pair, factor in (
            ("allocated", one.allocated, calibration.allocated(1.0)),
            ("reserved", one.reserved, calibration.reserved(1.0)),
            ("overhead", one.overhead, calibration.overhead(1.0)),
        ):
            if pair is not None:
                row |= {
                    f"{name}_estimated_bytes": pair[0],
                    f"{name}_corrected_bytes": pair[0] * factor,
                    f"{name}_measured_bytes": pair[1],
                }
        rows.append(row)
    return rows
