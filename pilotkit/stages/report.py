"""Stage `report`: one page that can be shown to the person who pays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotkit.chapters import CHAPTERS
from pilotkit.errors import ConfigError, Problem
from pilotkit.records import atomic
from pilotkit.records.record import Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.search import find_records
from pilotkit.report.comparison import render_comparison
from pilotkit.report.exports import COLUMNS, metric_rows, to_csv, to_markdown
from pilotkit.report.page import recorded_verdict, render_page
from pilotkit.report.points import write_parquet
from pilotkit.report.sections import ran_elsewhere
from pilotkit.report.trackers import tracked, write_trackers
from pilotkit.stages.run import Run, StageResult

# What a sweep varies: everything else of the run is the same.
SWEPT = ("micro_batch_size", "seq_len", "global_batch_size", "grad_accum_steps")


def run(run: Run) -> StageResult:
    """Write the page from the records, and nothing but the records."""
    order = [chapter.stage for chapter in CHAPTERS]
    records = [run.evidence[stage] for stage in order if stage in run.evidence]
    page = run.page
    study = find_records(run.output_dir, name=run.config.name).records
    elsewhere = _elsewhere(run, study)
    text = render_page(
        records,
        verdict=None,
        config_summary=config_summary(run),
        title=run.config.name,
        page_dir=page.parent,
        sweep_records=_sweep(run, study),
        elsewhere=elsewhere,
        language=run.config.report.language,
    )
    atomic.write_text(page, text)
    run.console.line(f"  page: {page}")
    for record in elsewhere.values():
        run.console.line(f"  not on it: {ran_elsewhere(record)}")
    beside = RunDir(page.parent)
    verdict = recorded_verdict(run.evidence.get("plan"))
    atomic.write_text(beside.page_markdown, to_markdown(records, verdict=verdict, title=run.config.name))
    atomic.write_text(beside.page_csv, to_csv(records, study=run.config.name))
    write_parquet(beside.page_parquet, COLUMNS, metric_rows(records, study=run.config.name))
    for name, folder in _track(run, records, folder=beside.trackers).items():
        run.console.line(f"  {name}: {folder}")
    _compare(run, records, path=beside.comparison)
    if run.config.report.open_browser:
        import webbrowser

        webbrowser.open(page.as_uri())
    return StageResult(artifacts={"page": page.name if page.parent == run.run_dir.path else str(page)})


def _track(run: Run, records: list[Record], *, folder: Path) -> dict[str, Path]:
    if not run.config.report.trackers:
        return {}
    data = tracked(records, study=run.config.name, params=config_summary(run))
    return write_trackers(run.config.report.trackers, data, folder=folder)


def _compare(run: Run, records: list[Record], *, path: Path) -> None:
    """This study beside another one of the same output folder; the newest record of each of its stages counts."""
    name = run.config.report.compare_with
    if name is None:
        return
    found = find_records(run.output_dir, name=name).records
    other = {record.stage: record for record in found if record.status != "running"}
    if not other:
        fix = "name a study that has records, as name=... called it"
        raise ConfigError([Problem("report.compare_with", name, f"a study in {run.output_dir}", fix)])
    names = (run.config.name, name)
    atomic.write_text(path, render_comparison(records, list(other.values()), names=names))
    run.console.line(f"  comparison: {path}")


def config_summary(run: Run) -> dict[str, Any]:
    """The intended run in a few words each, for the top of the page."""
    config, arithmetic = run.config, run.arithmetic
    return {
        "model": config.model.name,
        "data": config.data.name,
        "hardware": f"{arithmetic.world_size} x {config.hardware.name}",
        "parallelism": f"{config.parallelism.strategy}, {config.parallelism.num_nodes} node(s)",
        "precision": config.precision.name,
        "activation checkpointing": config.activation_checkpointing.mode,
        "optimizer": config.optimizer.name,
        "micro_batch_size": config.train.micro_batch_size,
        "seq_len": config.train.seq_len,
        "grad_accum_steps": arithmetic.grad_accum_steps,
        "global_batch_size": arithmetic.global_batch_size,
        "tokens per step": arithmetic.tokens_per_step,
        "total_tokens": config.train.total_tokens,
        "steps": arithmetic.num_steps,
        "reservation": f"{config.reservation.name} ({config.reservation.days:g} days)",
    }


def _elsewhere(run: Run, study: Sequence[Record]) -> dict[str, Record]:
    """Newest record of each stage that has none here, though the study ran it with other options."""
    shown = {chapter.stage for chapter in CHAPTERS} - {"report"} - set(run.evidence)
    return {record.stage: record for record in study if record.stage in shown and record.status != "running"}


def _sweep(run: Run, study: Sequence[Record]) -> list[Record]:
    """Newest measurement of each point that differs from this run in nothing but its batch and its length."""
    here = _without_swept(dataclasses.asdict(run.config))
    points: dict[tuple[Any, ...], Record] = {}
    for record in study:
        train = record.config.get("train", {})
        if (
            record.stage == "measure"
            and record.status in ("ok", "does_not_fit")
            and _without_swept(record.config) == here
        ):
            points[tuple(train.get(name) for name in SWEPT)] = record
    return list(points.values()) if len(points) > 1 else []


def _without_swept(config: dict[str, Any]) -> dict[str, Any]:
    kept = {name: config.get(name) for name in ("model", "data", "precision", "activation_checkpointing", "optimizer")}
    kept["hardware"] = {key: value for key, value in (config.get("hardware") or {}).items() if key != "sources"}
    return kept
