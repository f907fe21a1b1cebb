"""Stage `restore`: can we really resume? A run that stopped, in new processes, against a run that never did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotkit.config.shapes import Pair, shape_pairs
from pilotkit.decide import continuation
from pilotkit.decide.continuation import Row, row
from pilotkit.decide.script_continuation import compare_scripts
from pilotkit.decide.shapes import compare_shapes
from pilotkit.errors import StageRefused
from pilotkit.launch.devices import refuse_process_count
from pilotkit.launch.outcome import Outcome
from pilotkit.launch.reader import read_export
from pilotkit.launch.traced import TracedScript
from pilotkit.provenance.lock import to_yaml
from pilotkit.records import atomic
from pilotkit.records.record import Failure, Metrics
from pilotkit.records.remote_store import FETCHED_NAME, fetch_given
from pilotkit.stages.run import Run, StageResult, not_ok
from pilotkit.transfer import is_url


def run(run: Run) -> StageResult:
    """2k steps in one go; k steps, save, end; a new process loads and takes the other k. Then compare."""
    options = run.config.restore
    if options.script:
        return _script(run, Path(options.script))
    _hand_on_the_lock(run)
    if options.path:
        return _given_checkpoint(run, options.path)
    nproc, torchrun = _process_count(run)
    phases = ["restore_uninterrupted", "restore_before", "restore_after"]
    if options.rtol > 0 or not run.config.train.deterministic:
        phases.insert(1, "restore_repeated")
    results: dict[str, dict[str, Any]] = {}
    for phase in phases:
        outcome = run.work(phase, nproc=nproc, torchrun=torchrun)
        if outcome.status != "ok":
            return not_ok(run, outcome, details={"comparison": [_failed_row(phase, outcome)]})
        results[phase] = outcome.result
    reference, before, after = (results[f"restore_{name}"] for name in ("uninterrupted", "before", "after"))
    repeated = results.get("restore_repeated")
    rows = continuation.compare(reference, before, after, rtol=options.rtol, repeated=repeated)
    metrics = Metrics()
    metrics.add("given", num_steps=options.num_steps, world_size=nproc)
    metrics.add("measured", {**before["metrics"], **after["metrics"]})
    metrics.add(
        "measured",
        uninterrupted_loss=float(reference["steps"][-1]["loss"]),  # text where it is not finite
        continued_loss=float(after["steps"][-1]["loss"]),
        max_loss_difference=continuation.largest_loss_difference(reference, after),
        identical_runs_loss_deviation=continuation.noise_of(reference, before, repeated),
    )
    details = {
        "comparison": rows,
        "threads": run.threads,
        "steps": {phase: result["steps"] for phase, result in results.items()},
    }
    rows += _independent_reading(run, after)
    rows += _other_shapes(run)
    artifacts = {"checkpoint": str(run.run_dir.checkpoints.relative_to(run.run_dir.path))}
    return _judged(rows, metrics, details, artifacts)


def _script(run: Run, path: Path) -> StageResult:
    """The user's own script: never stopped; killed by kill -9 one step after its save; started again."""
    options = run.config.restore
    nproc, _ = _process_count(run)
    k = options.num_steps
    script = TracedScript(path, options.args, num_steps=2 * k, save_every_steps=k)
    traces: dict[str, Any] = {}
    starts = (
        ("script_uninterrupted", "uninterrupted", None),
        ("script_killed", "restored", k + 1),
        ("script_resumed", "restored", None),
    )
    for phase, checkpoints, kill_after in starts:
        outcome = run.work_traced(script, phase, checkpoints=checkpoints, nproc=nproc, kill_after_step=kill_after)
        if outcome.status != "ok":
            return not_ok(run, outcome, details={"comparison": [_failed_row(phase, outcome)]})
        traces[phase] = outcome.result["traces"]
    rows = compare_scripts(*traces.values(), num_steps=k, rtol=options.rtol, left_out=options.not_compared)
    metrics = Metrics()
    metrics.add("given", num_steps=k, world_size=nproc)
    details = {"comparison": rows, "threads": run.threads}
    artifacts = {"checkpoint": str((run.run_dir.checkpoints / "restored").relative_to(run.run_dir.path))}
    return _judged(rows, metrics, details, artifacts)


def _hand_on_the_lock(run: Run) -> None:
    """What was locked, for the workers: it is kept in the checkpoint, and compared with that of a given one."""
    locked = run.evidence.get("lock")
    if locked is not None and locked.details.get("lock"):
        atomic.write_text(run.run_dir.lock, to_yaml(locked.details["lock"]))


def _given_checkpoint(run: Run, path: str) -> StageResult:
    """Does a checkpoint that is there already load, and does training go on from it?"""
    nproc, torchrun = _process_count(run)
    damaged: list[str] = []
    if is_url(path):
        fetched, damaged = fetch_given(path, run.run_dir.checkpoints / FETCHED_NAME)
        if fetched is None:
            note = "\n".join(damaged or [f"{path}: holds no whole checkpoint"])
            rows = [row("fetching the checkpoint", "FAIL", note)]
            return StageResult("mismatch", details={"comparison": rows}, problem=Failure(note))
        run.console.line(f"  fetched {path} as {fetched}")
    outcome = run.work("restore_after", nproc=nproc, torchrun=torchrun)
    if outcome.status != "ok":
        return not_ok(run, outcome, details={"comparison": [_failed_row("restore_after", outcome)]})
    after = outcome.result
    metrics = Metrics()
    metrics.add("given", num_steps=run.config.restore.num_steps, world_size=nproc)
    metrics.add("measured", after["metrics"], continued_loss=float(after["steps"][-1]["loss"]))
    loads = f"{after['restored_from']} loads at step {after['restored_step']}, and training goes on from there"
    rows = [row("checkpoint", "PASS", loads)]
    rows += [
        row("a newer checkpoint", "NOT RUN", f"passed over, as it is damaged: {text}")
        for text in [*damaged, *after["passed_over"]]
    ]
    rows.append(row("continuation", "NOT RUN", "a given checkpoint has no uninterrupted run beside it"))
    rows += _independent_reading(run, after)
    details = {"comparison": rows, "threads": run.threads, "steps": {"restore_after": after["steps"]}}
    return _judged(rows, metrics, details, {"checkpoint": after["restored_from"]})


def _independent_reading(run: Run, after: dict[str, Any]) -> list[Row]:
    """The export, read by a program that has none of our code; nothing where none was asked for."""
    if not after.get("export"):
        return []
    run.console.line(f"  reading {after['export']} without pilotkit")
    checkpoint = Path(after["restored_from"])
    return read_export(Path(after["export"]), checkpoint=checkpoint, rtol=run.config.restore.export_rtol)


def _other_shapes(run: Run) -> list[Row]:
    """Save at every world size and strategy that was asked for, restore in the others; a start for each world size."""
    pairs = shape_pairs(run.config)
    visible = run.devices().visible
    too_large = [pair for pair in pairs if max(pair.saved.world_size, pair.restored.world_size) > visible]
    worked: dict[str, dict[str, Any]] = {"save": {}, "load": {}}
    failed: dict[tuple[str, int], str] = {}
    sizes = sorted({shape.world_size for pair in pairs for shape in (pair.saved, pair.restored)})
    for what, key in (("save", "shapes"), ("load", "pairs")):
        for size in sizes:
            # A load whose checkpoint was never saved would only fail again.
            if size > visible or failed or not _has_work(pairs, what, size):
                continue
            outcome = run.work(f"restore_{what}_shapes@{size}", nproc=size, torchrun=True)
            if outcome.status == "ok":
                worked[what].update(outcome.result[key])
            else:
                failed[what, size] = outcome.failure.summary if outcome.failure else outcome.status
    rows = [row(f"{what} on {size} ranks", "FAIL", summary) for (what, size), summary in failed.items()]
    rtol = run.config.restore.shape_rtol
    for pair in pairs:
        name = str(pair)
        if pair in too_large:
            rows.append(row(name, "NOT RUN", f"more ranks than devices: {visible} visible"))
        elif name in worked["load"]:
            rows.append(compare_shapes(name, worked["save"][str(pair.saved)], worked["load"][name], rtol=rtol))
        else:
            verdict = "NOT RUN" if failed else "FAIL"
            rows.append(row(name, verdict, "an earlier start failed" if failed else "nothing was restored"))
    return rows


def _has_work(pairs: Sequence[Pair], what: str, size: int) -> bool:
    shapes = [pair.saved if what == "save" else pair.restored for pair in pairs]
    return any(shape.world_size == size for shape in shapes)


def _judged(rows: Sequence[Row], metrics: Metrics, details: dict[str, Any], artifacts: dict[str, str]) -> StageResult:
    differing = [row for row in rows if row["verdict"] == "FAIL"]
    if not differing:
        return StageResult("ok", metrics, details, artifacts)
    first = differing[0]
    problem = Failure(f"{first['component']}: {first['note']}", cause=_others(differing[1:]))
    return StageResult("mismatch", metrics, details, artifacts, problem)


def _others(rows: Sequence[Row]) -> str:
    return f"also: {', '.join(row['component'] for row in rows)}" if rows else ""


def _failed_row(phase: str, outcome: Outcome) -> Row:
    """A phase that did not get through, with its reason: a damaged file is named in it."""
    what = "loading the checkpoint" if phase == "restore_after" else phase.replace("_", " ")
    return row(what, "FAIL", outcome.failure.summary if outcome.failure else outcome.status)


def _process_count(run: Run) -> tuple[int, bool]:
    visible = run.devices().visible
    if run.config.parallelism.strategy == "single":
        return 1, False
    asked = run.arithmetic.nproc_per_node
    refusal = refuse_process_count(asked, visible, allow_idle_devices=True)
    if refusal:
        raise StageRefused(refusal)
    return asked, True
