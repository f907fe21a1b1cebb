"""Fixtures of the estimate's tests: the scenarios, and their real runs on several gloo ranks."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import pilotkit

SCRIPT = Path(__file__).with_name("scenarios.py")
Peaks = dict[str, dict[str, int]]


@pytest.fixture(scope="session")
def scenarios() -> ModuleType:
    """Loaded by `test_against_runs`, or here: tests are imported by path, so there is no package to import it from."""
    if "estimate_scenarios" not in sys.modules:
        spec = importlib.util.spec_from_file_location("estimate_scenarios", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["estimate_scenarios"] = module
        spec.loader.exec_module(module)
    return sys.modules["estimate_scenarios"]


@pytest.fixture(scope="session")
def real_peaks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Peaks]:
    """Peaks on rank 0 of every scenario of a world size; each world size runs once."""
    known: dict[int, Peaks] = {}

    def peaks(world_size: int) -> Peaks:
        if world_size not in known:
            known[world_size] = _run(world_size, tmp_path_factory.mktemp(f"ranks{world_size}"))
        return known[world_size]

    return peaks


def _run(world_size: int, folder: Path) -> Peaks:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(pilotkit.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(rank), str(world_size), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
    found: Peaks = json.loads((folder / "0.json").read_text())
    return found


@pytest.fixture(scope="session", autouse=True)
def _quiet_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, as these shapes are too small for two; a variable that torch sets at first use; and no log of every
    operator that torch.compile looks at, which pytest's own handler switches on."""
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
