"""Stage `budget`: what does everything around the step cost? A ledger over the records that are there.

Measures what no other stage does: bringing model and data in, from a folder or from the hub, and copying a checkpoint
out.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pilotkit.decide.failures import FailureModel
from pilotkit.decide.interval import lost_share, young_daly_seconds
from pilotkit.decide.ledger import Given, Ledger, build_ledger
from pilotkit.decide.quality import quality_rows
from pilotkit.errors import OutputError
from pilotkit.provenance.hub_transfer import time_download
from pilotkit.records.record import Metrics
from pilotkit.records.run_dir import RunDir
from pilotkit.stages.loaders import loader_cores, shared_memory, supply
from pilotkit.stages.run import Run, StageResult
from pilotkit.transfer import copy_verified, time_reading
from pilotkit.units import format_bytes, format_seconds

BUILT_IN = "pilotkit."
HUGGING_FACE = "huggingface"
FROM_ELSEWHERE = (HUGGING_FACE, "text_folder")
MODEL: Literal["model"] = "model"
DATASET: Literal["dataset"] = "dataset"
NO_WEIGHTS = "random"


def run(run: Run) -> StageResult:
    """Lay out the intended run, and check that this machine's loaders have the cores and the memory they need."""
    config, arithmetic = run.config, run.arithmetic
    num_steps = arithmetic.num_steps
    metrics = Metrics()
    notes: list[str] = []
    given = _given(run, metrics, notes)
    ledger = build_ledger(
        run.evidence,
        num_steps=num_steps,
        num_evals=num_steps // config.train.eval_every_steps,
        num_eval_batches=config.train.num_eval_batches,
        num_checkpoints=math.ceil(num_steps / config.train.checkpoint_every_steps),
        strategy=config.parallelism.strategy,
        world_size=arithmetic.world_size,
        given=given,
    )
    metrics.add(
        "projected",
        total_seconds=ledger.total_seconds,
        step_total_seconds=ledger.step_total_seconds,
        goodput=ledger.goodput,
    )
    metrics.add("given", num_steps=num_steps, tokens_per_step=arithmetic.tokens_per_step)
    metrics.add("given", checkpoint_every_steps=config.train.checkpoint_every_steps)
    threads, warnings = loader_cores(run)
    problem = shared_memory(run, metrics)
    details: dict[str, Any] = {
        "ledger": ledger.to_details(),
        "unknown": ledger.unknown,
        "interval": _interval(run, ledger, metrics),
        "supply": supply(run, metrics),
        "quality": quality_rows(run.evidence),
        "threads": threads,
        "warnings": [*warnings, *notes],
    }
    for text in [*details["warnings"], *([problem.summary] if problem else [])]:
        run.console.line(f"  note: {text}")
    return StageResult("failed" if problem else "ok", metrics, details, problem=problem)


def _given(run: Run, metrics: Metrics, notes: list[str]) -> Given:
    """The user's figures; what they did not give is measured where that is possible."""
    options = run.config.budget
    download, copy_out = options.download_seconds, options.copy_out_seconds
    measured: dict[str, str] = {}
    if download is None:
        download, how = _read_sources(run, metrics, notes)
        if how:
            measured["download_seconds"] = how
    if copy_out is None and options.copy_out_to is not None:
        copy_out, how = _copy_out(run, metrics, notes)
        if how:
            measured["copy_out_seconds"] = how
    return Given(
        download_seconds=download,
        preprocess_seconds=options.preprocess_seconds,
        tokenize_seconds=options.tokenize_seconds,
        export_seconds=options.export_seconds,
        copy_out_seconds=copy_out,
        measured=measured,
    )


def _read_sources(run: Run, metrics: Metrics, notes: list[str]) -> tuple[float | None, str]:
    """Seconds to bring model and data here, and how that is known; None when a source is somewhere else."""
    limit = run.config.budget.max_read_bytes
    found, hub_names = [], []
    try:
        for source in _sources(run):
            if source is None:
                return None, ""
            if isinstance(source, Path):
                found.append(time_reading(source, max_bytes=limit))
            else:
                hub_names.append(source.name)
                found.append(
                    time_download(source.name, revision=source.revision, repo_type=source.kind, max_bytes=limit)
                )
    except OSError as error:
        notes.append(f"{error.filename} cannot be read: {error.strerror or error}")
        return None, ""
    except OutputError as error:
        notes.append(str(error))
        return None, ""
    if not found:
        return 0.0, "nothing to bring: model and data are built in"
    num_bytes, total_bytes = (sum(getattr(one, name) for one in found) for name in ("num_bytes", "total_bytes"))
    seconds = sum(one.total_seconds for one in found)
    rate = total_bytes / seconds if seconds else 0.0
    metrics.add("measured", source_bytes=total_bytes, source_read_bytes=num_bytes, source_bytes_per_second=rate)
    whence = f", from the hub: {', '.join(hub_names)}" if hub_names else ""
    return seconds, f"{format_bytes(num_bytes)} of {format_bytes(total_bytes)} read at {format_bytes(rate)}/s{whence}"


@dataclass(frozen=True)
class _HubSource:
    """A repository of the Hugging Face hub."""

    name: str
    revision: str | None
    kind: Literal["model", "dataset"]


def _sources(run: Run) -> list[Path | _HubSource | None]:
    """Where model and data come from, but for what is built in; None is somewhere that nobody named."""
    model, data = run.config.model, run.config.data
    found: list[Path | _HubSource | None] = []
    for section, kind, path in ((model, MODEL, None), (data, DATASET, data.path)):
        place = path or (section.name if section.name.startswith(os.sep) else None)
        from_elsewhere = any(word in section.factory for word in FROM_ELSEWHERE)
        if place is not None and Path(place).exists():
            found.append(Path(place))
        elif section.factory.startswith(BUILT_IN) and HUGGING_FACE in section.factory and path is None:
            if section.kwargs.get("weights") != NO_WEIGHTS:
                found.append(_HubSource(section.name, section.revision, kind))
        elif not section.factory.startswith(BUILT_IN) or from_elsewhere:
            found.append(None)
    return found


def _copy_out(run: Run, metrics: Metrics, notes: list[str]) -> tuple[float | None, str]:
    """Really copy the newest checkpoint to the destination, compare it there, and remove the copy."""
    source = _newest_checkpoint(run)
    destination = Path(str(run.config.budget.copy_out_to)) / f"pilotkit-{run.run_dir.run_id}"
    if source is None:
        notes.append("nothing was copied out: no checkpoint of restore or prove is there")
        return None, ""
    try:
        copied = copy_verified(source, destination)
    except OutputError as error:
        notes.append(str(error))
        return None, ""
    shutil.rmtree(destination)
    copies = run.config.prices.copies_out
    metrics.add(
        "measured",
        copy_out_bytes=copied.num_bytes,
        copy_out_seconds=copied.seconds,
        copy_out_verify_seconds=copied.verify_seconds,
        copy_out_bytes_per_second=copied.bytes_per_second,
    )
    how = (
        f"{copies} x {format_seconds(copied.seconds)}: {format_bytes(copied.num_bytes)} copied to "
        f"{run.config.budget.copy_out_to} at {format_bytes(copied.bytes_per_second)}/s, the same by SHA-256 "
        f"{copied.digest[:12]}"
    )
    return copies * copied.seconds, how


def _newest_checkpoint(run: Run) -> Path | None:
    for stage in ("restore", "prove"):
        record = run.evidence.get(stage)
        if record is not None and record.folder:
            found = RunDir(Path(record.folder)).checkpoints
            if found.is_dir() and any(found.iterdir()):
                return found
    return None


def _interval(run: Run, ledger: Ledger, metrics: Metrics) -> dict[str, Any] | None:
    """The configured checkpoint interval beside the one that loses least, in seconds of work and in steps."""
    steps, saves, restart = (ledger.line(part) for part in ("steps", "checkpoint saves", "one restart"))
    mtbf = FailureModel(**vars(run.config.failures)).mtbf_seconds(run.config.parallelism.num_nodes)
    if not steps.each_seconds or saves.each_seconds is None or restart.each_seconds is None or math.isinf(mtbf):
        return None
    restart_seconds = restart.each_seconds + run.config.plan.repair_seconds
    every = run.config.train.checkpoint_every_steps
    configured = every * steps.each_seconds
    proposed = max(young_daly_seconds(saves.each_seconds, mtbf_seconds=mtbf), steps.each_seconds)

    def lost(seconds: float) -> float:
        return lost_share(
            seconds, save_seconds=saves.each_seconds or 0.0, mtbf_seconds=mtbf, restart_seconds=restart_seconds
        )

    metrics.add("projected", checkpoint_interval_seconds=configured, proposed_interval_seconds=proposed)
    metrics.add("given", mtbf_seconds=mtbf)
    proposed_steps = max(round(proposed / steps.each_seconds), 1)
    sentence = (
        f"a save every {every} steps ({format_seconds(configured)}) loses {100 * lost(configured):.2f} % of the time; "
        f"Young and Daly's interval of {format_seconds(proposed)} ({proposed_steps} steps) loses "
        f"{100 * lost(proposed):.2f} % (a save takes {format_seconds(saves.each_seconds)}, an interruption comes "
        f"once in {format_seconds(mtbf)})"
    )
    return {
        "configured_steps": every,
        "configured_seconds": configured,
        "configured_lost_share": lost(configured),
        "proposed_steps": proposed_steps,
        "proposed_seconds": proposed,
        "proposed_lost_share": lost(proposed),
        "sentence": sentence,
    }
