"""Stage `sweep_collect`: what did a sweep find? A table, a page with maps, and the points as CSV and Parquet.

May be run at any time: points that are not over yet are in it as pending or running.
"""

from __future__ import annotations

from pilotkit.launch.follow import find_any_truths
from pilotkit.records import atomic
from pilotkit.records.frontiers import read_frontier
from pilotkit.records.record import Metrics
from pilotkit.report.points import point_rows, to_csv, write_parquet
from pilotkit.report.sweep_page import best_points, render_sweep_page
from pilotkit.report.tables import varying_keys
from pilotkit.stages.run import Run, StageResult
from pilotkit.stages.sweep_view import chosen_sweep, overrides_of, show_truths, summary
from pilotkit.units import format_count


def run(run: Run) -> StageResult:
    """Read manifest, records and Slurm's view once, and write what they say. Failed points are content, no failure."""
    sweep_dir = chosen_sweep(run.config)
    stage, truths, complaint = find_any_truths(sweep_dir)
    frontier = read_frontier(sweep_dir)
    records = [truth.row() for truth in truths]
    varying = varying_keys(overrides_of(truths))
    counts = summary(truths)
    more = [
        {"index": truth.point.index, "job_id": truth.job_id, "nodes": truth.nodes or None, "attempts": truth.attempts}
        for truth in truths
    ]
    columns, rows = point_rows(records, varying=varying, more=more)
    atomic.write_text(run.run_dir.table_csv, to_csv(columns, rows))
    artifacts = {"csv": run.run_dir.table_csv.name, "page": run.run_dir.page.name}
    if write_parquet(run.run_dir.table_parquet, columns, rows):
        artifacts["parquet"] = run.run_dir.table_parquet.name
    else:
        run.console.line("  note: no Parquet file, as pyarrow is not installed (pip install 'pilotkit[parquet]')")
    page = render_sweep_page(
        records,
        varying=varying,
        title=f"{run.config.name}, {stage}",
        counts=counts,
        page_dir=run.run_dir.path,
        frontier=frontier,
    )
    atomic.write_text(run.run_dir.page, page)
    show_truths(truths, run.console)
    for name, record, text in best_points(records, varying=varying):
        run.console.line(f"best on {name}: {text}, {format_count(record.metrics['tokens_per_second'])} tokens/s")
    if frontier is not None:
        for fixed, words in frontier.lines():
            run.console.line(f"largest {frontier.over} that fits, {fixed}: {words}")
        run.console.line(frontier.sentence)
    if complaint:
        run.console.line(f"Slurm does not answer: {complaint}", style="yellow")
    run.console.line(f"{counts}. Sweep folder: {sweep_dir}")
    run.console.line(f"  page: {run.run_dir.page}")
    metrics = Metrics()
    metrics.add("measured", num_points=len(truths), num_final=sum(truth.is_final for truth in truths))
    details = {
        "sweep_dir": str(sweep_dir),
        "points": [
            {"index": truth.point.index, "status": truth.status, "cause": truth.cause, "job_id": truth.job_id}
            for truth in truths
        ],
    }
    return StageResult(metrics=metrics, details=details, artifacts=artifacts)
