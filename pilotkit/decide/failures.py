"""How often a run is interrupted: a rate per node and day, carried to a number of nodes.

Called by the stages `budget` and `plan`. Holds no rate of its own: published ones are options in `conf/failures/`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilotkit.units import DAY, format_seconds

NINETY_PERCENT = 1.6448536269514722
"""Standard deviations on either side of the middle that hold 90 % of a normal distribution."""


@dataclass(frozen=True)
class FailureModel:
    """Interruptions of a node a day, of all causes. `low` and `high` hold the true rate with 90 %, or are None.

    Small jobs are interrupted for reasons beside the hardware `small_job_factor` times as often; that extra grows
    with the nodes up to `small_job_nodes` and stays there, so that the rate of a run never falls with its size.
    """

    name: str
    per_node_day: float
    low_per_node_day: float | None = None
    high_per_node_day: float | None = None
    small_job_factor: float = 1.0
    small_job_nodes: int = 512
    source: str = ""

    def per_second(self, num_nodes: float) -> float:
        """Interruptions of a run on `num_nodes` nodes, per second."""
        extra = (self.small_job_factor - 1) * min(num_nodes, self.small_job_nodes)
        return self.per_node_day * (num_nodes + extra) / DAY

    def mtbf_seconds(self, num_nodes: float) -> float:
        """Mean time between interruptions of the run; infinite when nothing fails."""
        rate = self.per_second(num_nodes)
        return 1 / rate if rate else math.inf

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the rate, from the band; 0 without one."""
        if not self.low_per_node_day or not self.high_per_node_day:
            return 0.0
        return math.log(self.high_per_node_day / self.low_per_node_day) / (2 * NINETY_PERCENT)

    def scaled(self, factor: float) -> FailureModel:
        """The same fleet, failing `factor` times as often."""

        def times(rate: float | None) -> float | None:
            return None if rate is None else rate * factor

        return FailureModel(
            f"{self.name} x {factor:g}",
            self.per_node_day * factor,
            times(self.low_per_node_day),
            times(self.high_per_node_day),
            self.small_job_factor,
            self.small_job_nodes,
            self.source,
        )

    def sentence(self, num_nodes: float) -> str:
        """What is assumed, for a reader of the plan."""
        mtbf = self.mtbf_seconds(num_nodes)
        every = "never" if math.isinf(mtbf) else f"once in {format_seconds(mtbf)}"
        return f"{self.name}: {self.per_node_day:g} a node and day, so this run is interrupted {every} ({self.source})"
