"""Fixtures of the training tests: the tiny workload, and one run of all its scenarios on two gloo ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pilotkit

WORKLOAD = Path(__file__).with_name("workload.py")
SCRIPT = Path(__file__).with_name("rank_scenarios.py")


@pytest.fixture(scope="session")
def workload() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_workload", WORKLOAD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TwoRanks:
    """What each rank found, by scenario, and the folder that holds their checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]

    def __getitem__(self, scenario: str) -> list[dict[str, Any]]:
        results = [found[scenario] for found in self._found]
        for result in results:
            assert "traceback" not in result, result["traceback"]
        return results


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> TwoRanks:
    folder = tmp_path_factory.mktemp("two_ranks")
    command = [sys.executable, "-W", "error", str(SCRIPT), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(pilotkit.__file__).parents[1])}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
    return TwoRanks(folder)


@pytest.fixture(scope="session", autouse=True)
def _quiet_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, as these shapes are too small for two; and a variable that torch sets at first use."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was() -> Iterator[None]:
    """Training sets switches of the whole process; the next test starts from the old ones."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    state = torch.get_rng_state()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_rng_state(state)
