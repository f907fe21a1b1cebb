"""Did a user's own script come back after kill -9? Compares the traces of three starts, component by component.

Called by stage `restore`; pure arithmetic over plain data. A trace is a list of events of one rank, each with its step,
the digests of the state after it, of the batches that went in, and the loss (`pilotkit.train.run_trace`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pilotkit.decide.continuation import SPREADING, Row, differing_in, has_parts, parts_row, row, shortened

Event = Mapping[str, Any]
Traces = Mapping[str, Sequence[Event]]
"""Events by rank."""

COMPONENTS = ("counters", "scheduler", "scaler", "parameters", "optimizer", "random states")


def compare_scripts(
    uninterrupted: Traces, killed: Traces, resumed: Traces, *, num_steps: int, rtol: float, left_out: Sequence[str]
) -> list[Row]:
    """One row a component. Saved after `num_steps`, killed one step later, resumed up to twice as many.

    `left_out` are components that the user does not expect back: they are told, and decide nothing. `rtol` is for
    losses; a state is compared by digest alone.
    """
    rows = [_identical(uninterrupted, killed, last_step=num_steps + 1, left_out=left_out)]
    start, resumed_row = _resumed_at(resumed, num_steps)
    rows.append(resumed_row)
    expected, found = _state_at(uninterrupted, num_steps), _states(resumed, "resumed")
    rows += _state_rows(expected, found, what="restored", left_out=left_out, may_spread=False)
    reference = {rank: _steps(events, after=start) for rank, events in uninterrupted.items()}
    continued = {rank: _steps(events, after=0) for rank, events in resumed.items()}
    rows.append(_equal("step numbers", reference, continued, "step"))
    rows.append(_equal("batches", reference, continued, "batches"))
    rows.append(_losses(reference, continued, rtol=rtol))
    last = max((event["step"] for events in uninterrupted.values() for event in events), default=0)
    end = _state_at(uninterrupted, last), _state_at(resumed, last)
    return rows + _state_rows(*end, what="at the end", left_out=left_out, may_spread=rtol > 0)


def _identical(uninterrupted: Traces, killed: Traces, *, last_step: int, left_out: Sequence[str]) -> Row:
    name = "two identical runs"
    components = [component for component in _components(uninterrupted) if component not in left_out]
    for step in range(1, last_step + 1):
        one, other = _state_at(uninterrupted, step), _state_at(killed, step)
        if not other["counters"]:
            return row(name, "FAIL", f"the script was killed before step {step}")
        found = differing_in(one, other, components=components)
        if found:
            fix = "seed everything, and use deterministic algorithms"
            return row(
                name, "FAIL", f"they differ before anything was restored, at step {step} first in {found[0]}: {fix}"
            )
    return row(name, "PASS", f"equal bit for bit over {last_step} steps, so nothing else differs")


def _resumed_at(resumed: Traces, num_steps: int) -> tuple[int, Row]:
    steps = {
        rank: next((e["step"] for e in events if e["event"] == "resumed"), None) for rank, events in resumed.items()
    }
    at = set(steps.values())
    name = "resumed after kill -9"
    if at == {num_steps}:
        return num_steps, row(name, "PASS", f"at step {num_steps}, where it was saved; step {num_steps + 1} was lost")
    told = [step for step in at if step is not None]
    where = ", ".join(f"rank {rank} at {step}" for rank, step in sorted(steps.items()))
    start = "it started over" if at == {0} else "not where it was saved"
    return min(told, default=0), row(name, "FAIL", f"{start}: {where}, saved at {num_steps}")


def _state_rows(
    expected: Mapping[str, Any], found: Mapping[str, Any], *, what: str, left_out: Sequence[str], may_spread: bool
) -> list[Row]:
    rows = []
    names = dict.fromkeys([*expected, *found])
    for component in names:
        one, other = expected.get(component, {}), found.get(component, {})
        if not has_parts(one, other):
            continue
        result = parts_row(component, one, other, what=what)
        if result["verdict"] == "FAIL" and component in left_out:
            result = {**result, "verdict": "NOT RUN", "note": f"restore.not_compared leaves it out: {result['note']}"}
        elif result["verdict"] == "FAIL" and may_spread and component in SPREADING:
            result = {**result, "verdict": "NOT RUN", "note": f"within restore.rtol by the losses: {result['note']}"}
        rows.append(result)
    return rows


def _losses(reference: Traces, continued: Traces, *, rtol: float) -> Row:
    name = "losses after the restore"
    pairs = [
        (event["step"], event["loss"], other["loss"])
        for rank, events in reference.items()
        for event, other in zip(events, continued.get(rank, ()), strict=False)
        if event["loss"] is not None or other["loss"] is not None
    ]
    if not pairs:
        return row(name, "NOT RUN", "the script told none: trace.step(step, loss=...)")
    for step, one, other in pairs:
        if one is None or other is None or not math.isclose(float(one), float(other), rel_tol=rtol, abs_tol=0.0):
            return row(name, "FAIL", f"step {step}: {other!r} instead of {one!r}")
    return row(name, "PASS", f"{len(pairs)} values, {f'within {rtol}' if rtol else 'bit for bit'}")


def _equal(component: str, reference: Traces, continued: Traces, key: str) -> Row:
    name = f"{component} after the restore"
    for rank, events in reference.items():
        one = [event[key] for event in events]
        other = [event[key] for event in continued.get(rank, ())]
        if one == other:
            continue
        if key == "step":
            return row(name, "FAIL", f"rank {rank}: {shortened(other)} instead of {shortened(one)}")
        wrong = next((e["step"] for e, a, b in zip(events, one, other, strict=False) if a != b), "the last")
        return row(name, "FAIL", f"rank {rank}: other ones at step {wrong}")
    if key == "batches" and not any(event[key] for events in reference.values() for event in events):
        return row(name, "NOT RUN", "the script told none: trace.batch(...)")
    return row(name, "PASS", "equal")


def _components(traces: Traces) -> list[str]:
    names = [name for events in traces.values() for event in events for name in event["state"]]
    return [*COMPONENTS, *dict.fromkeys(name for name in names if name not in COMPONENTS)]


def _steps(events: Sequence[Event], *, after: int) -> list[Event]:
    return [event for event in events if event["event"] == "step" and event["step"] > after]


def _state_at(traces: Traces, step: int) -> dict[str, dict[str, Any]]:
    return _by_component(traces, lambda event: event["event"] == "step" and event["step"] == step)


def _states(traces: Traces, kind: str) -> dict[str, dict[str, Any]]:
    return _by_component(traces, lambda event: event["event"] == kind)


def _by_component(traces: Traces, wanted: Any) -> dict[str, dict[str, Any]]:
    """The last such event of each rank, by component and rank."""
    found: dict[str, dict[str, Any]] = {component: {} for component in _components(traces)}
    for rank, events in traces.items():
        chosen = [event for event in events if wanted(event)]
        for component, parts in chosen[-1]["state"].items() if chosen else ():
            found[component][f"rank {rank}"] = parts
    return found
