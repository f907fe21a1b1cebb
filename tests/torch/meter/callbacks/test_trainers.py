"""The callbacks inside the real trainers: as many steps as the trainer took, and their sleep in the step time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pilotkit.meter.callbacks.optimizer_steps import OptimizerMeter

ROW_SECONDS = 0.25
NUM_STEPS, ACCUMULATION, WARMUP = 6, 2, 2


class Rows(Dataset[dict[str, Tensor]]):
    """Eight features and a label a row; every row takes its time on the meter's clock."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.device.host_work(ROW_SECONDS)
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(index % 2)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What these libraries warn about (a missing GPU, few loader processes) is not ours to fail on."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # Lightning sets it and leaves it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check(result: dict[str, Any] | None, *, num_steps: int) -> None:
    assert result is not None
    metrics = result["metrics"]
    assert metrics["num_measured_steps"] + metrics["num_warmup_steps"] == num_steps
    # Two micro-batches of two rows: all of them within one optimizer step.
    assert metrics["step_seconds"] == 4 * ROW_SECONDS
    assert result["time"]["settled"] in (True, False)


def test_transformers_trainer(tmp_path: Path, device: Any) -> None:
    import transformers

    from pilotkit.meter.callbacks.transformers_trainer import TrainerMeter

    meter = TrainerMeter(tmp_path / "meter.json", tokens_per_step=32, num_warmup_steps=WARMUP)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=NUM_STEPS, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        gradient_accumulation_steps=ACCUMULATION, save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    rows = Rows(device)
    trainer = transformers.Trainer(Net(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[meter])
    trainer.evaluate()
    assert meter.result is None  # nothing was trained
    trainer.train()
    _check(meter.result, num_steps=NUM_STEPS)
    assert (tmp_path / "meter.json").is_file()
    assert meter.result["metrics"]["data_wait_seconds"] > 0
    # As most scripts end: what comes after training is told to callbacks, too.
    first = meter.result
    trainer.evaluate()
    trainer.save_model()
    assert meter.result is first
    trainer.train()
    assert meter.result is not first
    _check(meter.result, num_steps=NUM_STEPS)


def test_a_step_with_an_evaluation_in_it_is_left_out(tmp_path: Path, device: Any) -> None:
    import transformers

    from pilotkit.meter.callbacks.transformers_trainer import TrainerMeter

    meter = TrainerMeter(tokens_per_step=32, num_warmup_steps=0)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        eval_strategy="steps", eval_steps=2, save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    rows = Rows(device)
    transformers.Trainer(Net(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[meter]).train()
    assert meter.result is not None
    # Evaluation reads 64 rows, 16 s: no step has that in it. The first one reads a batch ahead.
    assert meter.result["metrics"]["step_max_seconds"] == 4 * ROW_SECONDS
    assert meter.result["metrics"]["num_measured_steps"] == 4


def test_lightning_trainer(tmp_path: Path, device: Any) -> None:
    import lightning.pytorch as pl

    from pilotkit.meter.callbacks.lightning_trainer import LightningMeter

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    meter = LightningMeter(tmp_path / "meter.json", tokens_per_step=32, num_warmup_steps=WARMUP)
    trainer = pl.Trainer(
        max_steps=NUM_STEPS, accumulate_grad_batches=ACCUMULATION, accelerator="cpu", callbacks=[meter], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    module, loader = Module(), DataLoader(Rows(device), batch_size=2)
    trainer.validate(module, loader, verbose=False)
    trainer.fit(module, loader)
    _check(meter.result, num_steps=NUM_STEPS)
    first = meter.result
    trainer.validate(module, loader, verbose=False)
    assert meter.result is first
    trainer.fit_loop.epoch_loop.max_steps = 2 * NUM_STEPS
    trainer.fit(module, loader)
    assert meter.result is not first
    _check(meter.result, num_steps=NUM_STEPS)


def test_accelerate(tmp_path: Path, device: Any) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    net = Net()
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), DataLoader(Rows(device), batch_size=2)
    )
    with OptimizerMeter(optimizer, tmp_path / "meter.json", tokens_per_step=32, num_warmup_steps=WARMUP) as meter:
        for number, batch in enumerate(loader, 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if number == NUM_STEPS * ACCUMULATION:
                break
    _check(meter.result, num_steps=NUM_STEPS)


def test_a_plain_loop_with_a_pause(device: Any) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with OptimizerMeter(optimizer, tokens_per_step=32, num_warmup_steps=0) as meter:
        for step in range(4):
            net(torch.ones(2, 8), torch.tensor([0, 1]))["loss"].backward()
            device.host_work(1.0)
            optimizer.step()
            if step == 1:
                device.host_work(30.0)
                meter.pause()
    assert meter.result is not None
    assert meter.result["metrics"]["num_measured_steps"] == 4
    assert meter.result["metrics"]["step_max_seconds"] == 1.0
