"""The trials that `benchmarks/` runs are the same ones that the tests run: loaded from there by path."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def load_benchmark(name: str) -> ModuleType:
    """One module of benchmarks/, once a process."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def faults() -> ModuleType:
    return load_benchmark("restore_faults")


@pytest.fixture(scope="session")
def corruptions() -> ModuleType:
    return load_benchmark("restore_corruptions")


@pytest.fixture(scope="session")
def workload() -> ModuleType:
    """The tiny training run of the training tests."""
    path = BENCHMARKS.parent / "tests" / "torch" / "train" / "workload.py"
    spec = importlib.util.spec_from_file_location("restore_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was() -> Iterator[None]:
    """Training sets switches of the whole process; the next test starts from the old ones."""
    deterministic, num_threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session", autouse=True)
def _inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A variable that torch sets at first use."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
