"""Failure rates against what the fleets published."""

from __future__ import annotations

import math

import pytest
from omegaconf import OmegaConf

from pilotkit.config.store import conf_dir
from pilotkit.decide.failures import FailureModel

HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(
    ("rate", "nodes", "hours"),
    [(3.79e-3, 2048, 3.09), (6.5e-3, 2048, 1.8), (6.5e-3, 16384, 0.23), (1.6e-2, 128, 11.7)],
    ids=["Llama 3", "RSC-1 at 16,384", "RSC-1 at 131,072", "OPT-175B"],
)
def test_published_times_between_failures(rate: float, nodes: int, hours: float) -> None:
    assert FailureModel("fleet", rate).mtbf_seconds(nodes) / HOUR == pytest.approx(hours, rel=0.025)


def test_a_small_job_stops_for_other_reasons_too() -> None:
    fleet = FailureModel("rsc1", 6.5e-3, small_job_factor=3.7)
    assert fleet.mtbf_seconds(128) / HOUR == pytest.approx(7.9, rel=0.02)


def test_the_rate_of_a_run_never_falls_with_its_size() -> None:
    fleet = FailureModel("fleet", 5e-3, small_job_factor=3.0, small_job_nodes=512)
    rates = [fleet.per_second(nodes) for nodes in (1, 8, 511, 512, 513, 2048)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(1.5e-2 / DAY)
    assert rates[-1] == pytest.approx(5e-3 * (2048 + 2 * 512) / DAY)


def test_a_band_is_a_spread_of_the_logarithm() -> None:
    band = FailureModel("fleet", 5e-3, low_per_node_day=2e-3, high_per_node_day=2e-2)
    assert band.sigma == pytest.approx(math.log(10) / 2 / 1.645, rel=1e-3)
    assert band.scaled(2).sigma == pytest.approx(band.sigma)
    assert band.scaled(2).per_second(4) == pytest.approx(2 * band.per_second(4))
    assert FailureModel("fleet", 5e-3).sigma == 0


def test_nothing_fails() -> None:
    assert FailureModel("none", 0.0).mtbf_seconds(16) == math.inf
    assert "never" in FailureModel("none", 0.0).sentence(16)


def test_every_option_carries_its_source() -> None:
    options = sorted((conf_dir() / "failures").glob("*.yaml"))
    assert len(options) >= 6
    for path in options:
        plain = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(plain, dict)
        model = FailureModel(**{str(key): value for key, value in plain.items()})
        assert model.name == path.stem
        assert model.source
