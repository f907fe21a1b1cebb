"""The bill, computed by hand, with the prices of an example and nobody's."""

from __future__ import annotations

import pytest

from pilotkit.decide.cost import Prices, copy_seconds, cost_of, energy_kwh
from pilotkit.decide.supply import supply_of


def _cost(prices: Prices, **changed: object):  # type: ignore[no-untyped-def] # only read below
    values: dict[str, object] = {
        "hardware": "h100", "num_devices": 8, "reservation": "7d", "days": 7.0,
        "checkpoint_bytes": 84e9, "energy_kwh": 100.0, **changed,
    }  # fmt: skip
    return cost_of(prices, **values)  # type: ignore[arg-type]


def test_egress_of_twenty_checkpoints() -> None:
    # 7e9 parameters with AdamW in fp32: 12 bytes each, 84 GB.
    cost = _cost(Prices(per_gpu_hour={"h100": 0.0}, egress_per_gb=0.09, copies_out=20), checkpoint_bytes=7e9 * 12)
    assert cost.total == pytest.approx(151.20)
    assert copy_seconds(84e9, bytes_per_second=500e6) == pytest.approx(168.0)


def test_a_reservation_is_paid_whole_and_at_least_for_the_smallest_number() -> None:
    cost = _cost(Prices(per_gpu_hour={"h100": 2.5}, minimum_gpus={"h100": 32}, as_of="2026-03-01"))
    assert cost.devices == pytest.approx(32 * 168 * 2.5)
    assert cost.rented_gpus == 32
    assert cost.how == "32 x 168 h x 2.5, prices of 2026-03-01"


def test_a_price_of_the_reservation_goes_before_the_hour() -> None:
    cost = _cost(Prices(per_gpu_hour={"h100": 2.5}, per_reservation={"h100_7d": 300.0}))
    assert (cost.devices, cost.how) == (2400.0, "8 x 300.00 for 7d, undated prices")


def test_no_price_no_cost() -> None:
    assert _cost(Prices(per_gpu_hour={"a100": 1.0})) is None


def test_storage_and_energy() -> None:
    prices = Prices(per_gpu_hour={"h100": 0.0}, storage_per_gb_month=0.02, kept_checkpoints=3, energy_per_kwh=0.3)
    cost = _cost(prices, days=30.0)
    assert (cost.storage, cost.energy) == (pytest.approx(84 * 3 * 0.02), pytest.approx(30.0))
    assert energy_kwh(power_watts=700, num_devices=8, hours=10, effectiveness=1.2) == pytest.approx(67.2)
    assert energy_kwh(power_watts=None, num_devices=8, hours=10, effectiveness=1.0) is None


def test_cheaper_devices_leave_the_rest_of_the_bill() -> None:
    prices = Prices(per_gpu_hour={"h100": 2.0}, egress_per_gb=0.1).scaled(0.5)
    assert (_cost(prices).devices, _cost(prices).egress) == (pytest.approx(8 * 168), pytest.approx(8.4))


@pytest.mark.parametrize(("per_node", "limit"), [(1320.0, 3), (3200.0, None), (3199.0, 7), (100.0, 0)])
def test_devices_that_the_loaders_feed(per_node: float, limit: int | None) -> None:
    fed = supply_of(per_node=per_node, demand_per_device=400.0, devices_per_node=8)
    assert fed.max_devices_per_node == limit
    words = "input is no limit" if limit is None else f"input is the limit from {limit + 1} devices a node on"
    assert words in fed.sentence
