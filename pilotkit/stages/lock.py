"""Stage `lock`: exactly what are we running? Resolves every revision, and writes the lock or compares with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pilotkit.provenance.difference import read_difference
from pilotkit.provenance.drift import reason_for
from pilotkit.provenance.lock import from_yaml, lock_digest, reproducibility_problems, to_yaml, unresolved_fields
from pilotkit.records import atomic
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.gate import allowed_fields, compare_with_file, current_lock, pass_gate
from pilotkit.stages.run import Run, StageResult


def run(run: Run) -> StageResult:
    """Pin the run. What keeps others from running the same is listed; what could not be resolved is no lock: `failed`.

    With `lock.mode=write` the lock is written to `lock.path`, too; otherwise it is compared with what lies there.
    """
    options = run.config.lock
    lock = current_lock(run.config, launch_dir=run.launch_dir)
    # As a reader of the file would see it: a record's JSON must not differ from the YAML beside it.
    lock = json.loads(json.dumps(lock))
    text = to_yaml(lock)
    atomic.write_text(run.run_dir.lock, text)
    artifacts = {"lock": run.run_dir.lock.name, **_difference(run, lock)}
    problems = reproducibility_problems(lock)
    for problem in problems:
        run.console.line(f"  not pinned: {problem}")
    details: dict[str, Any] = {"problems": problems}
    allow = allowed_fields(run.config)
    found = {field: (text, reason_for(field, allow)) for field, text in unresolved_fields(lock).items()}
    details["allowed"] = [
        {"field": field, "what": text, "reason": reason} for field, (text, reason) in found.items() if reason
    ]
    open_fields = {field: text for field, (text, reason) in found.items() if not reason}
    if open_fields and options.mode != "warn":
        # What nobody could resolve is written beside the record only: a file at lock.path would pass for a lock.
        words = f"no lock: {' '.join(open_fields.values())} Or allow it with a reason"
        example = f"'lock.allow=[\"{next(iter(open_fields))}: why\"]'"
        return StageResult("failed", Metrics(), details, artifacts, Failure(f"{words} ({example})"))
    if options.mode != "write":
        gate = compare_with_file(run.config, now=lock)
        pass_gate(gate, mode=options.mode, console=run.console)
        # The digest of the committed lock: what runs on from here after a drift carries another one, and is void.
        committed = from_yaml(Path(options.path or "").read_text(encoding="utf-8"))
        details |= {"gate": gate.to_dict(), "lock_digest": lock_digest(committed), "lock": committed}
    else:
        details |= {"lock": lock, "lock_digest": lock_digest(lock)}
        if options.path is not None:
            atomic.write_text(Path(options.path), text)
            run.console.line(f"  lock: {os.path.relpath(options.path, run.launch_dir)}")
    metrics = Metrics()
    metrics.add("measured", num_distributions=len(lock["packages"]))
    return StageResult(metrics=metrics, details=details, artifacts=artifacts)


def _difference(run: Run, lock: dict[str, Any]) -> dict[str, str]:
    """The text of what was not committed, beside the record: the digest alone would bring nothing back."""
    if lock["git"]["state"] not in ("dirty", "untracked"):
        return {}
    exclude = [run.output_dir, *([Path(run.config.lock.path)] if run.config.lock.path else [])]
    text = read_difference(run.launch_dir, untracked=lock["git"]["untracked"], exclude=exclude)
    if not text:
        return {}
    atomic.write_text(run.run_dir.difference, text)
    return {"difference": run.run_dir.difference.name}
