"""Stage `checkpoint_verify`: is this checkpoint, or the newest one of this folder, whole, unchanged and safe to load?

Reads every byte, in this process: no torch, no GPU, nothing of the model's code. Deletes only what killed saves left,
and that only when it is told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pilotkit.decide.continuation import Row, row
from pilotkit.errors import CheckpointError, ConfigError, Problem
from pilotkit.records.checkpoint_check import Checked, CheckedStore, check, check_store, is_store
from pilotkit.records.checkpoint_store import CheckpointStore, Partial
from pilotkit.records.record import Failure, Metrics
from pilotkit.records.remote_store import FETCHED_NAME, RemoteStore, fetch_given
from pilotkit.stages.run import Run, StageResult
from pilotkit.transfer import is_url
from pilotkit.units import format_bytes, format_count


def run(run: Run) -> StageResult:
    """One row a checkpoint, newest first; ok when the newest one verifies."""
    options = run.config.restore
    if not options.path:
        fix = (
            "for example pilotkit stage=checkpoint_verify restore.path=outputs/default/restore/.../checkpoints/restore"
        )
        raise ConfigError([Problem("restore.path", None, "a checkpoint, or a folder of them", fix)])
    if is_url(options.path):
        found, store = _found_at(options.path, run.run_dir.checkpoints / FETCHED_NAME)
    else:
        found, store = _found_in(Path(options.path))
    rows = [_row(checked) for checked in found.checked]
    rows += [_partial_row(partial) for partial in found.partials]
    if options.clean_partial:
        removed = store.clean() if found.partials else []
        rows += [row(partial.path.name, "PASS", "deleted, as restore.clean_partial asks") for partial in removed]
    for found_row in rows:
        style = "red" if found_row["verdict"] == "FAIL" else ""
        run.console.line(f"  {found_row['component']}: {found_row['verdict']}, {found_row['note']}", style=style)
    return _result(found, rows, options.path)


def _found_in(path: Path) -> tuple[CheckedStore, CheckpointStore | RemoteStore]:
    if not path.is_dir():
        raise ConfigError([Problem("restore.path", path, "a folder that exists", "look at the path again")])
    return (check_store(path) if is_store(path) else CheckedStore([check(path)])), CheckpointStore(path)


def _found_at(url: str, into: Path) -> tuple[CheckedStore, CheckpointStore | RemoteStore]:
    """As `check_store`, of an object store: the newest sound one is fetched, and those before it are not read."""
    store = RemoteStore(url)
    fetched, damaged = fetch_given(url, into)
    checked = [Checked(Path(url), problems=damaged)] if damaged else []
    if fetched is not None:
        checked.append(check(fetched))
    try:
        return CheckedStore(checked, store.partials()), store
    except CheckpointError:  # it does not answer, as the fetch has told
        return CheckedStore(checked), store


def _result(found: CheckedStore, rows: Sequence[Row], path: str) -> StageResult:
    offered = found.offered
    metrics = Metrics()
    metrics.add("measured", num_checkpoints=len(found.checked), num_partial=len(found.partials))
    if offered is not None:
        metrics.add("measured", checkpoint_bytes=offered.num_bytes, num_tensors=len(offered.tensors))
    details = {"comparison": list(rows)}
    artifacts = {"checkpoint": str(offered.path)} if offered is not None else {}
    newest = found.checked[0] if found.checked else None
    if newest is not None and newest.is_sound:
        return StageResult("ok", metrics, details, artifacts)
    if newest is None:
        return StageResult("mismatch", metrics, details, problem=Failure(f"{path}: no whole checkpoint is here"))
    offer = f"the newest sound one is {offered.path}" if offered else "there is no sound one beside it"
    return StageResult("mismatch", metrics, details, artifacts, Failure("\n".join(newest.problems), cause=offer))


def _row(checked: Checked) -> Row:
    if not checked.is_sound:
        return row(checked.path.name, "FAIL", "; ".join(checked.problems))
    step = "" if checked.step is None else f"step {checked.step}, "
    size = f"{checked.num_files} files, {format_bytes(checked.num_bytes)}"
    tensors = f", {format_count(len(checked.tensors))} tensors" if checked.tensors else ""
    return row(checked.path.name, "PASS", f"{step}{size}{tensors}")


def _partial_row(partial: Partial) -> Row:
    state = "in progress" if partial.is_in_progress else "left over"
    note = f"{state}: {partial.reason}, {format_bytes(partial.num_bytes)}"
    if not partial.is_in_progress:
        note += "; restore.clean_partial=true deletes it"
    return row(partial.path.name, "NOT RUN", note)
