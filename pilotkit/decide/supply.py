"""Data supply against demand: how many devices the measured loaders can feed.

Called by stage `budget`. A node's ranks each have loaders of their own; whole nodes bring theirs along.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilotkit.units import format_count


@dataclass(frozen=True)
class Supply:
    """Tokens per second. `max_devices_per_node` is None when a whole node can be fed."""

    per_node: float
    demand_per_device: float
    devices_per_node: int
    max_devices_per_node: int | None

    @property
    def sentence(self) -> str:
        demand, supply = format_count(self.demand_per_device), format_count(self.per_node)
        if self.max_devices_per_node is None:
            share = self.demand_per_device * self.devices_per_node / self.per_node
            return (
                f"the loaders of a node deliver {supply} tokens/s, {self.devices_per_node} devices of it take "
                f"{100 * share:.0f} % of that: input is no limit at any number of nodes"
            )
        return (
            f"the loaders of a node deliver {supply} tokens/s and each device takes {demand}: input is the limit from "
            f"{self.max_devices_per_node + 1} devices a node on"
        )


def supply_of(*, per_node: float, demand_per_device: float, devices_per_node: int) -> Supply:
    """Compare; `demand_per_device` is what one device trains in a second when it never waits."""
    enough_for = math.floor(per_node / demand_per_device * (1 + 1e-9))
    limit = None if enough_for >= devices_per_node else enough_for
    return Supply(per_node, demand_per_device, devices_per_node, limit)
