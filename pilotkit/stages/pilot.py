"""Stage `pilot`: all devices under torchrun, each strategy in turn, beside one device alone.

On one node; on several in a Slurm job that has them, or where `cluster.rdzv_endpoint` says where they meet.
"""

from __future__ import annotations

from typing import Any

from pilotkit.decide.strategy import recommend_strategy
from pilotkit.doubts import MAX_SPREAD, step_doubts, unreached_doubts
from pilotkit.errors import ConfigError, StageRefused
from pilotkit.launch.devices import refuse_process_count
from pilotkit.launch.nodes import Nodes
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.numbers import as_metrics
from pilotkit.stages.run import Run, StageResult, not_ok

SCRIPT = "script"


def run(run: Run) -> StageResult:
    """One process first, then each strategy on every device; a strategy that fails does not stop the others."""
    nproc, visible = process_count(run)
    nodes = run.nodes()
    if run.config.pilot.script is not None:
        return _script(run, nproc=nproc, visible=visible, nodes=nodes)
    single = run.work("pilot_single", timeout_seconds=run.config.pilot.timeout_seconds, can_save=True)
    if single.status not in ("ok", "does_not_fit"):
        return not_ok(run, single)
    outcomes = {
        strategy: _strategy(run, strategy, nproc=nproc, nodes=nodes.for_phase(number) if nodes else None)
        for number, strategy in enumerate(run.config.pilot.strategies)
    }
    num_nodes = nodes.count if nodes else 1
    metrics = _metrics(single, outcomes, nproc=nproc, visible=visible, num_nodes=num_nodes)
    warnings = _warnings(run, outcomes, nproc=nproc, visible=visible, num_nodes=num_nodes)
    details: dict[str, Any] = {
        "strategies": {name: _summary(outcome) for name, outcome in outcomes.items()},
        "recommendation": recommend_strategy(
            metrics.values,
            {name: outcome.status for name, outcome in outcomes.items()},
            memory_bytes=run.config.hardware.memory_bytes,
            headroom=run.config.pilot.memory_headroom,
        ),
        "warnings": warnings,
        "threads": run.threads,
    }
    for warning in warnings:
        run.console.line(f"  note: {warning}")
    bad = {name: outcome for name, outcome in outcomes.items() if outcome.status != "ok"}
    if len(bad) < len(outcomes):
        return StageResult("ok", metrics, details)
    # A crash is told before a run that does not fit, which is a result.
    name, worst = min(bad.items(), key=lambda item: item[1].status == "does_not_fit")
    result = not_ok(run, worst, details=details)
    problem = result.problem or Failure(f"{name}: {worst.status}")
    return StageResult(worst.status, metrics, details, problem=problem)


def _strategy(run: Run, strategy: str, *, nproc: int, nodes: Nodes | None) -> Outcome:
    """One strategy on every device. Raises ConfigError where the run's own is refused; another one's refusal, as of a
    model that cannot be sharded, is an answer."""
    try:
        return run.work(
            f"pilot_{strategy}",
            nproc=nproc,
            torchrun=True,
            timeout_seconds=run.config.pilot.timeout_seconds,
            can_save=True,
            nodes=nodes,
        )
    except ConfigError as error:
        if strategy == run.config.parallelism.strategy:
            raise
        words = "; ".join(f"{problem.key}={problem.value}: {problem.fix}" for problem in error.problems)
        return Outcome("refused", 0.0, failure=Failure(words))


def _script(run: Run, *, nproc: int, visible: int, nodes: Nodes | None) -> StageResult:
    """The user's own script in place of the strategies: it says itself what it does with its ranks."""
    outcome = run.work_script(nproc=nproc, timeout_seconds=run.config.pilot.timeout_seconds, nodes=nodes)
    if outcome.status != "ok":
        return not_ok(run, outcome, details={"strategies": {SCRIPT: _summary(outcome)}})
    meters: list[dict[str, Any]] = outcome.result["meters"]
    first = meters[0]
    found = dict(first["metrics"])
    if "step_seconds" not in found:
        problem = Failure("the script's meter counted no step", cause="; ".join(first["notes"]))
        return StageResult("failed", details={"threads": run.threads}, problem=problem)
    for name in (name for name in found if name.startswith("peak_") or name == "num_alloc_retries"):
        found[name] = max(meter["metrics"].get(name, 0.0) for meter in meters)
    metrics = Metrics()
    num_nodes = nodes.count if nodes else 1
    world_size = nproc * num_nodes
    metrics.add("given", world_size=world_size, num_nodes=num_nodes)
    metrics.add("measured", visible_devices=visible, idle_devices=visible - nproc)
    prefixed = as_metrics(found, prefix=f"{SCRIPT}_")
    metrics.values.update(prefixed.values)
    metrics.origins.update(prefixed.origins)
    warnings = step_doubts(found, max_spread=run.config.measure.max_spread, time=first["time"])
    known = step_doubts(found, max_spread=MAX_SPREAD, time=first["time"])
    warnings += [note for note in first["notes"] if note not in known]
    if len(meters) < world_size:
        warnings.append(f"{len(meters)} of {world_size} ranks left a measurement here")
    warnings += _unmeasured_network(run, num_nodes=num_nodes)
    for warning in warnings:
        run.console.line(f"  note: {warning}")
    strategy = {"status": "ok", "note": "", "steps": first["step_seconds"], "devices": [m["device"] for m in meters]}
    details = {"strategies": {SCRIPT: strategy}, "warnings": warnings, "threads": run.threads}
    return StageResult("ok", metrics, details)


def process_count(run: Run) -> tuple[int, int]:
    """`(processes, visible devices)`. Raises StageRefused, with both numbers, when they do not go together."""
    config = run.config
    visible = run.devices().visible
    asked = config.parallelism.nproc_per_node or config.hardware.device_count
    if config.parallelism.strategy == "single":
        asked = config.hardware.device_count
    refusal = refuse_process_count(asked, visible, allow_idle_devices=config.pilot.allow_idle_devices)
    if refusal:
        raise StageRefused(refusal)
    return asked, visible


def _metrics(single: Outcome, outcomes: dict[str, Outcome], *, nproc: int, visible: int, num_nodes: int) -> Metrics:
    """Devices are those of the first node; the others have as many."""
    metrics = Metrics()
    world_size = nproc * num_nodes
    metrics.add("given", world_size=world_size, num_nodes=num_nodes)
    metrics.add("measured", visible_devices=visible, idle_devices=visible - nproc)
    alone = single.result.get("metrics", {})
    for name, outcome in {"single": single, **outcomes}.items():
        found = outcome.result.get("metrics")
        if not found:
            continue
        prefixed = as_metrics(found, prefix=f"{name}_")
        metrics.values.update(prefixed.values)
        metrics.origins.update(prefixed.origins)
        if name != "single" and alone:
            efficiency = found["tokens_per_second"] / (world_size * alone["tokens_per_second"])
            metrics.add("measured", {f"{name}_scaling_efficiency": efficiency})
    return metrics


def _summary(outcome: Outcome) -> dict[str, Any]:
    note = outcome.failure.summary if outcome.failure else ""
    kept: dict[str, Any] = {
        key: outcome.result[key]
        for key in ("steps", "devices", "mesh", "losses", "communication", "dtypes", "attempts")
        if key in outcome.result
    }
    failed: dict[str, Any] = (
        {"rank": outcome.failure.rank, "traceback": outcome.failure.traceback} if outcome.failure else {}
    )
    return {"status": outcome.status, "note": note, **kept, **failed}


def _warnings(run: Run, outcomes: dict[str, Outcome], *, nproc: int, visible: int, num_nodes: int) -> list[str]:
    # Of every process alike.
    warnings = list(
        next((found.result["overridden"] for found in outcomes.values() if "overridden" in found.result), [])
    )
    for name, outcome in outcomes.items():
        if outcome.status == "ok":
            found = step_doubts(
                outcome.result["metrics"], max_spread=run.config.measure.max_spread, time=outcome.result["time"]
            )
            found += unreached_doubts(outcome.result.get("unreached"))
            warnings += [f"{name}: {text}" for text in found]
        if outcome.status == "refused" and outcome.failure is not None:
            warnings.append(f"{name} was refused: {outcome.failure.summary}")
        attempts = outcome.result.get("attempts", [])
        if len(attempts) > 1:
            hosts = ", ".join(dict.fromkeys(str(attempt["host"]) for attempt in attempts))
            warnings.append(f"{name}: its steps were counted in {len(attempts)} attempts, on {hosts}")
    if visible > nproc:
        warnings.append(f"{visible - nproc} of {visible} devices stood idle")
    return warnings + _unmeasured_network(run, num_nodes=num_nodes)


def _unmeasured_network(run: Run, *, num_nodes: int) -> list[str]:
    """A pilot runs on all nodes of the intended run, or on this one alone."""
    intended = run.config.parallelism.num_nodes
    if num_nodes == intended:
        return []
    return [f"one node of {intended} was piloted: the network between nodes is not measured"]
