"""The trace against the same step run for real on the CPU: equal to the byte, for every kind of run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pilotkit.estimate.memory import peaks
from pilotkit.estimate.trace import trace_step
from pilotkit.train import checkpoint
from pilotkit.train.trainer import Trainer


def _names() -> tuple[list[str], dict[int, list[str]]]:
    """Names are needed before fixtures are: the module is loaded here, and the fixture hands on this one."""
    path = Path(__file__).with_name("scenarios.py")
    spec = importlib.util.spec_from_file_location("estimate_scenarios", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["estimate_scenarios"] = module
    spec.loader.exec_module(module)
    return list(module.SINGLE), {size: list(module.spread_scenarios(size)) for size in (2, 4)}


SINGLE, SPREAD = _names()


@pytest.mark.parametrize("name", SINGLE)
def test_one_device(name: str, scenarios: ModuleType) -> None:
    workload = scenarios.SINGLE[name]
    real = scenarios.run_for_real(workload)
    traced = peaks(trace_step(workload, micro_batch_size=scenarios.BATCH, seq_len=scenarios.SEQ_LEN))
    assert {step: peak.num_bytes for step, peak in traced.items()} == {
        "first step": real["first_step"],
        "steady step": real["steady_step"],
        "evaluation": real["evaluation"],
    }


def test_a_resumed_run_starts_where_a_steady_one_is(scenarios: ModuleType, tmp_path: Path) -> None:
    """Its first step has the moments, like every step but a fresh run's first; to restore them needs no more."""
    workload = scenarios.SINGLE["gpt"]

    def save(trainer: Trainer) -> None:
        trainer.train_step()
        checkpoint.save(trainer, tmp_path / "saved", config_text="")

    scenarios.run_for_real(workload, first=save)
    real = scenarios.run_for_real(workload, first=lambda trainer: checkpoint.load(trainer, tmp_path / "saved"))
    steady = peaks(trace_step(workload, micro_batch_size=scenarios.BATCH, seq_len=scenarios.SEQ_LEN))["steady step"]
    assert real["first_step"] == real["steady_step"] == steady.num_bytes
    assert real["before"] <= steady.num_bytes


@pytest.mark.parametrize(("world_size", "name"), [(size, name) for size, names in SPREAD.items() for name in names])
def test_several_ranks(
    world_size: int, name: str, scenarios: ModuleType, real_peaks: Callable[[int], dict[str, dict[str, int]]]
) -> None:
    """The steady step. In the first one torch's own lazy set-up, once a process, is in what really happened."""
    real = real_peaks(world_size)[name]
    workload = scenarios.spread_scenarios(world_size)[name]
    traced = peaks(trace_step(workload, micro_batch_size=scenarios.BATCH, seq_len=scenarios.SEQ_LEN))
    assert traced["steady step"].num_bytes == real["steady_step"]
