"""Hydra's own tests of a launcher, against ours on a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("on_the_cluster")]


@pytest.fixture
def on_the_cluster(cluster: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])  # type: ignore[attr-defined]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    Plugins.instance()
    yield
    os.environ.pop("HYDRA_MAIN_MODULE", None)


@pytest.mark.parametrize(("launcher_name", "overrides"), [("pilotkit_slurm", [])])
class TestLauncher(LauncherTestSuite):  # type: ignore[misc]
    """One job, two jobs, bad keys, several sweeps after one another."""


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({}, ["-m", "hydra/launcher=pilotkit_slurm"])],
)
class TestIntegration(IntegrationTestSuite):  # type: ignore[misc]
    """Whole applications in processes of their own."""
