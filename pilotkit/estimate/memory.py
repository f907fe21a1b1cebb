"""Peaks of a trace: how much, when, where, and what for. Called by `predict`; adds nothing to what was traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pilotkit.estimate.events import NO_BLOCK, Trace

STEPS = ("first step", "steady step", "evaluation")
MAX_PROFILE_POINTS = 160


@dataclass(frozen=True)
class Peak:
    """The largest sum of live tensors in one step."""

    num_bytes: int
    moment: str
    block: int
    """Index of the repeated block at work, NO_BLOCK outside of all."""
    operator: str
    kinds: dict[str, int]
    """What was live then, bytes by kind."""

    @property
    def words(self) -> str:
        """`backward of block 3, _log_softmax_backward_data`."""
        where = "outside the blocks" if self.block == NO_BLOCK else f"block {self.block}"
        return f"{self.moment}, {where}, {self.operator.removeprefix('aten::')}"


def peaks(trace: Trace) -> dict[str, Peak]:
    """The peak of each step by its name in STEPS; a step that was not traced is left out."""
    live: Counter[str] = Counter()
    for kind, num_bytes in trace.initial.values():
        live[kind] += num_bytes
    total = trace.initial_bytes
    found: dict[str, Peak] = {}
    for event in trace.events:
        live[trace.kind_of(event.tensor)] += event.num_bytes
        total += event.num_bytes
        name = STEPS[event.step]
        if name not in found or total > found[name].num_bytes:
            kinds = {kind: num_bytes for kind, num_bytes in live.items() if num_bytes}
            found[name] = Peak(total, event.moment, event.block, event.operator, kinds)
    return found


def static_bytes(trace: Trace) -> dict[str, int]:
    """What stays between two steps, by kind: parameters, optimizer state, buckets."""
    live: Counter[str] = Counter()
    for kind, num_bytes in trace.initial.values():
        live[kind] += num_bytes
    for event in trace.events:
        if event.step < 2:
            live[trace.kind_of(event.tensor)] += event.num_bytes
    return {kind: num_bytes for kind, num_bytes in live.items() if num_bytes}


def profile(trace: Trace) -> list[dict[str, object]]:
    """Live bytes over the steady step, thinned out; of each stretch of events the highest stands for it."""
    events = [(event, live) for event, live in trace.live() if event.step == 1]
    stride = max(len(events) // MAX_PROFILE_POINTS, 1)
    points: list[dict[str, object]] = []
    for start in range(0, len(events), stride):
        event, live = max(events[start : start + stride], key=lambda pair: pair[1])
        points.append({"moment": event.moment, "live_bytes": live})
    return points


def largest_by_moment(trace: Trace, moments: Sequence[str]) -> dict[str, int]:
    """The highest point of the steady step in each of its parts, bytes."""
    found: dict[str, int] = {}
    for event, live in trace.live():
        if event.step == 1 and event.moment in moments:
            found[event.moment] = max(found.get(event.moment, 0), live)
    return found
