"""Phases in this process: a run directory as the driver leaves it, a user's module, and torch left as it was."""

from __future__ import annotations

import copy
import faulthandler
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch

from pilotkit.config.load import dump, load
from pilotkit.config.schema import PilotConfig
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
from pilotkit.records.run_dir import RunDir
from pilotkit.worker import session

MINE = """
from types import SimpleNamespace

import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, width, fault):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.fault, self.kept = fault, []

    def forward(self, input_ids, labels):
        hidden = self.embed(input_ids)
        if self.fault == "cut":
            hidden = hidden.round().long().to(hidden.dtype)
        if self.fault == "in double":
            logits = (hidden.double() @ self.head.weight.double().T).to(hidden.dtype)
        elif self.fault == "to double":
            logits = self.head(hidden.double())
        elif self.fault == "leave autocast":
            with torch.autocast("cpu", enabled=False):
                logits = self.head(hidden.float())
        else:
            logits = self.head(hidden)
        if self.fault == "keep logits" and not self.training:
            self.kept.append(logits)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if self.fault == "overflow" and self.training:
            loss = loss + (loss - loss.detach()) * 1e30  # only its gradient
        if self.fault == "nan in evaluation" and not self.training:
            loss = loss * float("nan")
        if self.fault == "raise":
            raise ValueError("bad row 17")
        return SimpleNamespace(loss=loss, logits=logits)


def build(width=8, fault=""):
    if fault == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = "tf32"
    model = Mine(width, fault)
    model.head.weight.requires_grad_(fault != "frozen head")
    return model
"""


@pytest.fixture(scope="session", autouse=True)
def _quiet_torch(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A variable that torch sets at first use."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A phase sets what belongs to the whole process; the limit of memory could not be taken back."""
    monkeypatch.setattr(session, "limit_cpu_memory", lambda _: None)
    monkeypatch.setattr(faulthandler, "enable", lambda: None)  # pytest has its own, to another stream
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PILOTKIT_DRIVER_PID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    num_threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


@pytest.fixture(scope="session")
def default_config() -> PilotConfig:
    register_schema()
    overrides = [
        *("model=custom", "model.factory=mine:build", "data=synthetic", "parallelism=single"),
        *("train.micro_batch_size=2", "train.seq_len=32", "train.num_eval_batches=2"),
        *("measure.num_warmup_steps=1", "measure.num_measured_steps=3", "pilot.num_measured_steps=3"),
    ]
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return load(hydra.compose(CONFIG_NAME, overrides=overrides), launch_dir=Path("/launched/here"))


@pytest.fixture
def make_run_dir(
    tmp_path: Path, default_config: PilotConfig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunDir]]:
    """`make_run_dir({"train.seq_len": 64}, phase="measure")`: what the driver leaves for a worker."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(values: dict[str, Any] | None = None, *, phase: str) -> RunDir:
        config = copy.deepcopy(default_config)
        for key, value in (values or {}).items():
            section_name, _, name = key.rpartition(".")
            setattr(getattr(config, section_name) if section_name else config, name, value)
        run_dir = RunDir(tmp_path / "run")
        run_dir.phase(phase).path.mkdir(parents=True, exist_ok=True)
        run_dir.config.write_text(dump(config), encoding="utf-8")
        return run_dir

    yield make
    sys.modules.pop("mine", None)
