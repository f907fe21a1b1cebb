"""Did a run come back, and did it go on as if it had never stopped? Compares what the phases of `restore` left.

Called by the stage `restore`; pure arithmetic over plain data. Three comparisons, in the order in which a fault would
spread: two identical runs before the save, the state on both sides of it, the end beside the end of the run without a
stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, str]
Phase = Mapping[str, Any]

# The order in which a component is named when several differ: cause before consequence.
COMPONENTS = (
    "counters",
    "data position",
    "scheduler",
    "scaler",
    "parameters",
    "optimizer",
    "random states",
)
SPREADING = ("scaler", "parameters", "optimizer")
"""Components that rounding reaches: held to the tolerance at the end. The others have to be equal even then."""


def compare(uninterrupted: Phase, before: Phase, after: Phase, *, rtol: float, repeated: Phase | None) -> list[Row]:
    """One row a component. `rtol` 0 is bitwise; `repeated` is a second run without a stop, None where none was made."""
    noise = noise_of(uninterrupted, before, repeated)
    return [
        identical_runs(uninterrupted, before, noise=noise, rtol=rtol),
        *restored_state(before, after),
        *end_state(uninterrupted, after, rtol=rtol, noise=noise),
    ]


def noise_of(uninterrupted: Phase, before: Phase, repeated: Phase | None) -> float:
    """Largest relative difference of a loss between two runs that were asked to be the same."""
    other = repeated if repeated is not None else before
    return _largest_relative(_numbers(uninterrupted["steps"], "loss"), _numbers(other["steps"], "loss"))


def identical_runs(uninterrupted: Phase, before: Phase, *, noise: float, rtol: float) -> Row:
    """Nobody can say anything about a restore when the runs differ without one."""
    num_steps = len(before["steps"])
    differing = differing_in(uninterrupted["seam"], before["seam"], components=COMPONENTS)
    same_steps = uninterrupted["steps"][:num_steps] == before["steps"]
    if same_steps and not differing:
        return row("two identical runs", "PASS", f"equal bit for bit over {num_steps} steps, so nothing else differs")
    if rtol > 0:
        return row("two identical runs", "PASS", f"their losses differ by {noise:.2g} at most, relative (measured)")
    what = differing[0] if differing else "the losses"
    fix = "set train.deterministic=true, or a tolerance in restore.rtol"
    return row("two identical runs", "FAIL", f"they differ before anything was saved, first in {what}: {fix}")


def restored_state(before: Phase, after: Phase) -> list[Row]:
    """What was saved against what was loaded: nothing is computed between the two, so every bit has to be equal."""
    rows = []
    for component in COMPONENTS:
        saved, restored = before["seam"][component], after["seam"][component]
        if has_parts(saved, restored):
            rows.append(parts_row(component, saved, restored, what="restored"))
    rows.append(_equal("next batches", before["next_batches"], after["next_batches"], what="restored"))
    return rows


def end_state(uninterrupted: Phase, after: Phase, *, rtol: float, noise: float) -> list[Row]:
    """The last steps and the final state beside those of the run that never stopped."""
    continued = after["steps"]
    resumed = uninterrupted["steps"][-len(continued) :]
    rows = [
        _equal("step numbers", _values(resumed, "step"), _values(continued, "step")),
        _equal("rows of data", _values(resumed, "row_ids"), _values(continued, "row_ids")),
        _equal("learning rates", _values(resumed, "lr"), _values(continued, "lr")),
        _close("losses", _numbers(resumed, "loss"), _numbers(continued, "loss"), rtol=rtol, noise=noise),
        _close(
            "gradient norms", _numbers(resumed, "grad_norm"), _numbers(continued, "grad_norm"), rtol=rtol, noise=noise
        ),
    ]
    for component in COMPONENTS:
        expected, found = uninterrupted["end"][component], after["end"][component]
        if rtol > 0 and component in SPREADING and expected != found:
            rows.append(_near(component, uninterrupted, after, rtol=rtol))
        elif has_parts(expected, found):
            rows.append(parts_row(component, expected, found, what="at the end"))
    evaluation = [uninterrupted["eval_loss"]], [after["eval_loss"]]
    return [*rows, _close("evaluation", *evaluation, rtol=rtol, noise=noise)]


def largest_loss_difference(uninterrupted: Phase, after: Phase) -> float:
    """Absolute, over the steps that both runs made after the save."""
    continued = _numbers(after["steps"], "loss")
    pairs = zip(_numbers(uninterrupted["steps"], "loss")[-len(continued) :], continued, strict=True)
    return max(0.0 if one == other else abs(one - other) for one, other in pairs)


def relative_distance(first: Sequence[float], second: Sequence[float]) -> float:
    """|x - y| / |x| estimated from two sketches (`train.fingerprint.sketches`): a norm, then projections."""
    square = sum((one - other) ** 2 for one, other in zip(first[1:], second[1:], strict=True)) / len(first[1:])
    return math.sqrt(square) / max(first[0], 1e-30)


def _near(component: str, uninterrupted: Phase, after: Phase, *, rtol: float) -> Row:
    """A tensor component within the tolerance, by its sketches; without any it was not asked to be compared so."""
    prefix = "model." if component == "parameters" else "optimizer."
    pairs = [
        (relative_distance(sketch, after["sketches"][rank].get(name, [0.0] * len(sketch))), f"{rank} {name}")
        for rank, sketches in uninterrupted["sketches"].items()
        for name, sketch in sketches.items()
        if name.startswith(prefix)
    ]
    if not pairs or component == "scaler":
        return row(f"{component} at the end", "FAIL", "not equal")
    distance, name = max(pairs)
    verdict = "PASS" if distance <= rtol else "FAIL"
    return row(
        f"{component} at the end",
        verdict,
        f"relative distance {distance:.2g} at most (estimated from sketches; {name}), tolerance {rtol}",
    )


def parts_row(component: str, expected: Mapping[str, Any], found: Mapping[str, Any], *, what: str) -> Row:
    """One component by rank and part; the first part that differs is named."""
    num_parts = sum(len(parts) for parts in expected.values())
    differing = list(_differing_parts(expected, found))
    name = f"{component} {what}"
    if differing:
        return row(name, "FAIL", f"{len(differing)} of {num_parts} parts differ, first {differing[0]}")
    return row(name, "PASS", f"{num_parts} parts, bit for bit")


def has_parts(*states: Mapping[str, Any]) -> bool:
    """A run without a loss scale has no row about one."""
    return any(parts for state in states for parts in state.values())


def differing_in(first: Mapping[str, Any], second: Mapping[str, Any], *, components: Sequence[str]) -> list[str]:
    """Each component and part that two states have differently, in the order of `components`."""
    return [
        f"{component} ({part})"
        for component in components
        for part in _differing_parts(first[component], second[component])
    ]


def _differing_parts(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """`rank 0 blocks.0.weight`, in the order of ranks and names; a rank or part that one side lacks differs."""
    return [
        f"{rank} {part}"
        for rank in sorted(expected.keys() | found.keys())
        for part in sorted(expected.get(rank, {}).keys() | found.get(rank, {}).keys())
        if expected.get(rank, {}).get(part) != found.get(rank, {}).get(part)
    ]


def _equal(component: str, expected: Any, found: Any, *, what: str = "after the restore") -> Row:
    name = f"{component} {what}"
    if expected == found:
        return row(name, "PASS", "equal")
    return row(name, "FAIL", f"{shortened(found)} instead of {shortened(expected)}")


def _close(component: str, expected: Sequence[float], found: Sequence[float], *, rtol: float, noise: float) -> Row:
    name = f"{component} after the restore"
    if len(expected) != len(found):
        return row(name, "FAIL", f"{len(found)} values instead of {len(expected)}")
    if not expected:
        return row(name, "PASS", "there is none, on both sides")
    pairs = list(zip(expected, found, strict=True))
    wrong = [i for i, pair in enumerate(pairs) if not math.isclose(*pair, rel_tol=rtol, abs_tol=0.0)]
    if wrong:
        one, other = pairs[wrong[0]]
        beside = f"; two identical runs differ by {noise:.2g}, relative" if rtol else ""
        return row(name, "FAIL", f"value {wrong[0] + 1} of {len(pairs)}: {other!r} instead of {one!r}{beside}")
    if rtol == 0:
        return row(name, "PASS", f"{len(pairs)} values, bit for bit")
    largest = _largest_relative(expected, found)
    words = f"within {rtol}: {largest:.2g} at most; two identical runs differ by {noise:.2g}"
    return row(name, "PASS", f"{len(pairs)} values, {words}")


def _largest_relative(first: Sequence[float], second: Sequence[float]) -> float:
    pairs = zip(first, second, strict=False)  # the shorter run is a beginning of the longer one
    return max((0.0 if one == other else abs(one - other) / max(abs(one), 1e-30) for one, other in pairs), default=0.0)


def _values(steps: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """One value a step; what is not finite stands as text in a result, since JSON has no word for it."""
    return [float(step[name]) if isinstance(step[name], str) else step[name] for step in steps]


def _numbers(steps: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """What is not finite came as text, which float() reads; what a run does not have is None."""
    return [float(step[name]) for step in steps if step[name] is not None]


def shortened(value: Any) -> str:
    """A value for a note."""
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def row(component: str, verdict: str, note: str) -> Row:
    """One line of the comparison; the verdict is PASS, FAIL or NOT RUN."""
    return {"component": component, "verdict": verdict, "note": note}
