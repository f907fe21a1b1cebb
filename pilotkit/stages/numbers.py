"""What stages that time steps make of the worker's numbers: their origins."""

from __future__ import annotations

from collections.abc import Mapping

from pilotkit.records.record import Metrics

# Not measured in any sense: settings, and sizes that follow from the configuration.
GIVEN = ("num_warmup_steps", "num_measured_steps", "tokens_per_step", "memory_limit_bytes")


def as_metrics(found: Mapping[str, float], *, prefix: str = "") -> Metrics:
    """Worker's numbers with their origins."""
    metrics = Metrics()
    given = {name: value for name, value in found.items() if name in GIVEN}
    metrics.add("given", {f"{prefix}{name}": value for name, value in given.items()})
    metrics.add("measured", {f"{prefix}{name}": value for name, value in found.items() if name not in GIVEN})
    return metrics
