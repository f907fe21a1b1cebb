"""What torch.compile did while it was watched: how often, how long, which function, and why again.

Called around the steps of a measurement when the model is compiled. Reads torch's own list of compilations; compiles
nothing and needs no compiler.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Compilation:
    """One compilation of one function: the `number`-th that torch holds ready for it.

    `reason` says which guard failed when the function had been compiled before; else it is empty.
    """

    function: str
    number: int
    seconds: float
    reason: str


class CompileWatch:
    """Context manager; `compilations` lists those that happened inside, oldest first.

    torch keeps only the last 64 compilations; a watch over more of them misses the oldest. Where nothing was compiled
    inside, it costs a look at the newest at each edge.
    """

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []
        self._newest: Any = None

    def __enter__(self) -> CompileWatch:
        self._newest = _newest()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _newest() is not self._newest:
            self.compilations += [
                _described(metrics) for metrics in _since(self._newest) if getattr(metrics, "co_name", None)
            ]

    @property
    def seconds(self) -> float:
        """Of all compilations together."""
        return sum(found.seconds for found in self.compilations)

    @property
    def recompilations(self) -> list[Compilation]:
        """Those of a function that had been compiled before."""
        return [found for found in self.compilations if found.reason]

    def at_limit(self) -> list[str]:
        """Functions that reached torch's limit: their next new shape runs uncompiled, and slower."""
        return at_limit(self.compilations)


def at_limit(compilations: list[Compilation]) -> list[str]:
    """Functions of these that reached torch's limit: their next new shape runs uncompiled, and slower."""
    if not compilations:
        return []  # nothing was compiled: importing torch's compiler for its limit costs seconds
    import torch._dynamo.config as dynamo_config

    limit: int = getattr(dynamo_config, "recompile_limit", 8)
    return sorted({found.function for found in compilations if found.number >= limit})


def compile_metrics(warmup: list[Compilation], counted: list[Compilation]) -> dict[str, float]:
    """Compile time apart from step time; empty where nothing was compiled."""
    if not warmup and not counted:
        return {}
    return {
        "compile_seconds": sum(found.seconds for found in warmup),
        "recompile_seconds": sum(found.seconds for found in counted),
        "num_recompilations": len(counted),
    }


def length_metrics(compilations: list[Compilation]) -> dict[str, float]:
    """Of steps on rows of every length, beside steps of one; empty where nothing was compiled."""
    if not compilations:
        return {}
    return {
        "length_recompile_seconds": sum(found.seconds for found in compilations),
        "num_length_recompilations": len(compilations),
    }


def _kept() -> list[Any]:
    """What torch remembers of compilations, oldest first."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    # Without it nothing was compiled in this process; importing it costs seconds.
    return dynamo.get_compilation_metrics() if dynamo is not None else []


def _newest() -> Any:
    kept = _kept()
    return kept[-1] if kept else None


def _since(known: Any) -> list[Any]:
    """Those after `known`; all of them where torch no longer has it."""
    kept = _kept()
    positions = [position for position, metrics in enumerate(kept) if metrics is known]
    return kept[positions[0] + 1 :] if positions else kept


def _described(metrics: Any) -> Compilation:
    microseconds = getattr(metrics, "duration_us", None)
    seconds = (
        microseconds / 1e6 if microseconds else float(getattr(metrics, "entire_frame_compile_time_s", None) or 0.0)
    )
    reason = getattr(metrics, "recompile_reason", None) or ""
    number = int(getattr(metrics, "cache_size", None) or 0) + 1
    return Compilation(str(metrics.co_name), number, seconds, _in_one_line(str(reason)))


def _in_one_line(reason: str) -> str:
    """The guard that failed, without torch's advice on its own settings."""
    first = (reason.splitlines() or [""])[0].partition("(HINT:")[0]
    return " ".join(first.split())
