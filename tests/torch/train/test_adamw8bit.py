"""AdamW with moments of 8 bits, by the real torchao: its own weights, through checkpoints, never another optimizer."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pilotkit.errors import ConfigError
from pilotkit.train import adamw8bit, checkpoint
from pilotkit.train.models import gpt
from pilotkit.train.optimizer import build_optimizer

OPTIONS: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.2}
MINE: dict[str, Any] = {**OPTIONS, "name": "adamw8bit", "momentum": 0.0, "implementation": "compiled"}


def _three_steps(optimizer: torch.optim.Optimizer, param: nn.Parameter) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()
    return param.detach()


def test_is_torchaos_optimizer_with_a_quarter_of_the_state() -> None:
    from torchao.optim import AdamW8bit

    mine, torchaos, torchs = (nn.Parameter(torch.ones(64, 80)) for _ in range(3))
    built = build_optimizer([mine], **MINE)
    plain = torch.optim.AdamW([torchs], **OPTIONS)
    found = _three_steps(built, mine)
    with torch.compiler.set_stance("force_eager"):
        expected = _three_steps(AdamW8bit([torchaos], **OPTIONS), torchaos)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert 0 < (found - _three_steps(plain, torchs)).abs().max() < OPTIONS["lr"]
    state = built.state[mine]["exp_avg"]
    num_bytes = sum(getattr(state, part).nbytes for part in state.__tensor_flatten__()[0])
    # One byte an element, a float32 scale for each 256 of them, and a table of 256 values.
    assert num_bytes == 64 * 80 + 4 * 64 * 80 // 256 + 4 * 256
    assert built.param_groups[0]["lr"] == OPTIONS["lr"], "a number, as schedulers and checkpoints know it"


def test_a_run_goes_on_from_its_checkpoint_to_the_bit(workload: ModuleType, tmp_path: Path) -> None:
    def trainer(seed: int) -> Any:
        torch.manual_seed(seed)
        # 32 x 128 weights are the fewest that have 8 bits.
        sizes = {"vocab_size": 32, "num_layers": 1, "num_heads": 2, "hidden_size": 32, "max_seq_len": 16}
        model = gpt.build(**sizes, dropout=0.1, tie_embeddings=True)
        return workload.build_trainer(model=model, optimizer=MINE)

    first = trainer(0)
    workload.run_steps(first, 2)
    checkpoint.save(first, tmp_path / "saved", config_text="")
    expected = workload.run_steps(first, 3)  # before another one sets the generators back
    second = trainer(1)
    checkpoint.load(second, tmp_path / "saved")
    assert workload.run_steps(second, 3) == expected
    codes = [state["exp_avg"].codes for state in second.optimizer.state.values() if hasattr(state["exp_avg"], "codes")]
    assert [tuple(part.shape) for part in codes] == [(128, 32), (32, 128)]


def test_shards_are_refused() -> None:
    adamw8bit.check_strategy("ddp")
    with pytest.raises(
        ConfigError, match=r"parallelism.strategy=fsdp\n    allowed: single or ddp with optimizer=adamw8"
    ):
        adamw8bit.check_strategy("fsdp")


def test_without_torchao_it_is_refused_and_nothing_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    adamw8bit._optimizer_class.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install pilotkit\[fp8\] \(importing torchao failed.*never replaced"):
        build_optimizer([nn.Parameter(torch.ones(2))], **MINE)
