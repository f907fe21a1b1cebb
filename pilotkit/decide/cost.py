"""What a reservation costs at the user's prices: devices, copying out, storage, energy.

Called by `pilotkit.decide.option`. Knows no price of its own. GB are 10^9 bytes, as such prices
are given; a month is 30 days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GB = 1e9
DAYS_PER_MONTH = 30.0
HOURS_PER_DAY = 24.0


@dataclass(frozen=True)
class Prices:
    """All in one currency; see `PricesOptions` of the schema for each field."""

    per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    per_reservation: Mapping[str, float] = field(default_factory=dict)
    minimum_gpus: Mapping[str, int] = field(default_factory=dict)
    egress_per_gb: float = 0.0
    copies_out: int = 1
    storage_per_gb_month: float = 0.0
    kept_checkpoints: int = 1
    energy_per_kwh: float = 0.0
    power_usage_effectiveness: float = 1.0
    currency: str = "USD"
    as_of: str | None = None

    @property
    def date_words(self) -> str:
        """How old the prices are."""
        return f"prices of {self.as_of}" if self.as_of else "undated prices"

    def rented_gpus(self, hardware: str, num_devices: int) -> int:
        """Devices that are paid: at least the smallest number that can be rented."""
        return max(num_devices, self.minimum_gpus.get(hardware, 0))

    def scaled(self, factor: float) -> Prices:
        """The same with devices at `factor` times their price."""
        return Prices(
            {name: price * factor for name, price in self.per_gpu_hour.items()},
            {name: price * factor for name, price in self.per_reservation.items()},
            self.minimum_gpus,
            self.egress_per_gb,
            self.copies_out,
            self.storage_per_gb_month,
            self.kept_checkpoints,
            self.energy_per_kwh,
            self.power_usage_effectiveness,
            self.currency,
            self.as_of,
        )


@dataclass(frozen=True)
class Cost:
    """One reservation, in the currency of the prices. `devices` is paid for the whole of it, used or not."""

    devices: float
    egress: float
    storage: float
    energy: float
    rented_gpus: int
    how: str

    @property
    def total(self) -> float:
        return self.devices + self.egress + self.storage + self.energy


def cost_of(
    prices: Prices,
    *,
    hardware: str,
    num_devices: int,
    reservation: str,
    days: float,
    checkpoint_bytes: float | None,
    energy_kwh: float | None,
) -> Cost | None:
    """Cost of one reservation; None without a price for this hardware. A size that is not known costs nothing."""
    rented = prices.rented_gpus(hardware, num_devices)
    whole = prices.per_reservation.get(f"{hardware}_{reservation}")
    hourly = prices.per_gpu_hour.get(hardware)
    if whole is not None:
        devices, how = rented * whole, f"{rented} x {whole:,.2f} for {reservation}"
    elif hourly is not None:
        hours = days * HOURS_PER_DAY
        devices, how = rented * hours * hourly, f"{rented} x {hours:g} h x {hourly:g}"
    else:
        return None
    size = (checkpoint_bytes or 0.0) / GB
    return Cost(
        devices=devices,
        egress=size * prices.copies_out * prices.egress_per_gb,
        storage=size * prices.kept_checkpoints * prices.storage_per_gb_month * days / DAYS_PER_MONTH,
        energy=(energy_kwh or 0.0) * prices.energy_per_kwh,
        rented_gpus=rented,
        how=f"{how}, {prices.date_words}",
    )


def energy_kwh(*, power_watts: float | None, num_devices: int, hours: float, effectiveness: float) -> float | None:
    """Energy at the board's power limit all the time, an upper bound, times the site's share; None without a limit."""
    if power_watts is None:
        return None
    return power_watts * num_devices * hours / 1000 * effectiveness


def copy_seconds(num_bytes: float, *, bytes_per_second: float) -> float:
    """Time to bring so much out at a measured rate."""
    return num_bytes / bytes_per_second
