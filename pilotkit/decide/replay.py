"""Whether a run that was run again found the same: component by component, from what its phases left. Pure.

Called by stage `replay`. Three words: `same` is bit for bit; `within noise` differs less than the given tolerance;
`different` more. Times are judged by the step and the tokens per second alone: how long a start takes says nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SAME, NOISE, DIFFERENT = "same", "within noise", "different"
_WORDS = (SAME, NOISE, DIFFERENT)
_SPEEDS = ("step_seconds", "tokens_per_second")
_LOOSE_BYTES = ("rss_bytes", "reserved_bytes", "used_bytes", "own_bytes", "caching_bytes", "overhead_bytes")


@dataclass(frozen=True)
class Tolerance:
    """Relative differences that count as noise: of losses and norms, of step times, of what the system counts."""

    numerics: float
    time: float
    memory: float = 0.10


@dataclass(frozen=True)
class Compared:
    """One component of one phase."""

    component: str
    verdict: str
    note: str


def compare_results(before: Mapping[str, Any], after: Mapping[str, Any], *, tolerance: Tolerance) -> list[Compared]:
    """Compare two results of one phase; a part that only one of them has is different."""
    parts: dict[str, list[tuple[str, str]]] = {}
    left, right = dict(_leaves(before)), dict(_leaves(after))
    for path in dict.fromkeys([*left, *right]):
        component = _component(path, left.get(path, right.get(path)))
        if component is not None:
            parts.setdefault(component, []).append(
                (path, _judge(component, path, left.get(path), right.get(path), tolerance))
            )
    return [_summary(name, leaves, left, right) for name, leaves in parts.items()]


def overall(rows: list[Compared]) -> str:
    """The worst of the words; `same` of nothing."""
    return _WORDS[max((_WORDS.index(row.verdict) for row in rows), default=0)]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{path}/{name}" if path else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index}")
    else:
        yield path, value


def _component(path: str, value: Any) -> str | None:
    """Which component a leaf belongs to; None for what no comparison rests on (clock times, names, texts).

    A digest belongs to what is named ahead of its rank (`end/parameters/rank 0/embed.weight`), else to its parent.
    """
    words = path.split("/")
    if words[0] == "fingerprints":
        return words[1].replace("_", " ")
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        ranks = [index for index, word in enumerate(words) if re.fullmatch(r"rank \d+", word)]
        named = words[: ranks[0]] if ranks else words[:-1]
        return next((word for word in reversed(named) if not word.isdigit()), "digests").replace("_", " ")
    name = next((word for word in reversed(words) if not word.isdigit()), "")
    if name == "loss" or name.endswith(("_loss", "losses")):
        return "losses"
    if name in ("grad_norm", "grad_norms"):
        return "gradient norms"
    if name == "row_ids":
        return "rows"
    if name == "lr":
        return "learning rate"
    if name.endswith(_LOOSE_BYTES):
        return "memory that the system counts"
    if name == "checkpoint_bytes":  # holds the configuration's text, folders included; its tensors have fingerprints
        return None
    if name.endswith("_bytes"):
        return "memory"
    if name in _SPEEDS:
        return "step time"
    if name.startswith("num_") or name in ("step", "tokens_seen", "tokens_per_step", "skipped", "restored_step"):
        return "counts"
    return None


def _judge(component: str, path: str, one: Any, other: Any, tolerance: Tolerance) -> str:
    if one == other:
        return SAME
    if not isinstance(one, (int, float)) or not isinstance(other, (int, float)):
        return DIFFERENT
    allowed = {
        "losses": tolerance.numerics,
        "gradient norms": tolerance.numerics,
        "step time": tolerance.time,
        "memory that the system counts": tolerance.memory,
    }.get(component, 0.0)
    return NOISE if math.isclose(one, other, rel_tol=allowed, abs_tol=0.0) else DIFFERENT


def _summary(name: str, leaves: list[tuple[str, str]], left: Mapping[str, Any], right: Mapping[str, Any]) -> Compared:
    verdict = _WORDS[max(_WORDS.index(word) for _, word in leaves)]
    if verdict == SAME:
        return Compared(name, SAME, f"{len(leaves)} value{'s' if len(leaves) > 1 else ''}, equal")
    path = next(path for path, word in leaves if word == verdict)
    count = sum(word != SAME for _, word in leaves)
    values = f"{_shown(left.get(path, 'absent'))} before, {_shown(right.get(path, 'absent'))} now"
    return Compared(name, verdict, f"{count} of {len(leaves)} values differ, first {path}: {values}")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
