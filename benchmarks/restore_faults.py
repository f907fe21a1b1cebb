"""Faults planted into a real `stage=restore`, between the save and the new process: what a wrong saver would leave.

Used by `restore_trials.py` and by the tests. The stage, its worker processes and its checkpoint are the real ones; only
what lies on the disk is changed while no process runs. The two phases before the save are run once and used again.
"""

from __future__ import annotations

import io
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from hydra import compose, initialize_config_dir
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from pilotkit.config.load import load
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
from pilotkit.errors import ConfigError
from pilotkit.launch.worker import run_worker
from pilotkit.records import manifest
from pilotkit.records.digests import sha256_of
from pilotkit.records.record import Record
from pilotkit.records.run_dir import RunDir
from pilotkit.stages.console import Console
from pilotkit.stages.execute import Order, execute

# Dropout draws from the generators and float16 brings a loss scale: every component has something to lose.
OVERRIDES = (
    "stage=restore",
    "parallelism=single",
    "hardware.device_count=1",
    "precision=fp16_mixed",
    "model.kwargs.num_layers=1",
    "model.kwargs.hidden_size=32",
    "model.kwargs.dropout=0.1",
    "train.seq_len=32",
    "train.micro_batch_size=2",
    "train.num_eval_batches=1",
    "restore.num_steps=2",
)
CHECKPOINT = "restore"  # its name below RunDir.checkpoints


@dataclass(frozen=True)
class Fault:
    """How it is planted, and the words by which the proof has to name it: the component, then the part."""

    plant: Callable[[RunDir], None]
    component: str
    part: str


class Trial:
    """One real run up to the save; `with_fault` goes on from copies of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._phases: dict[str, Any] = {}
        self._saved: Path | None = None
        self.record = self._run(plant=None)

    def with_fault(self, fault: Fault) -> Record:
        """The record of the same stage with the fault planted before the new process starts."""
        return self._run(plant=fault.plant)

    def _run(self, *, plant: Callable[[RunDir], None] | None) -> Record:
        def work(run_dir: RunDir, *, phase: str, **options: Any) -> Any:
            if phase == "restore_after":
                self._before_the_restore(run_dir, plant)
                return run_worker(run_dir, phase=phase, **options)
            if phase not in self._phases:
                self._phases[phase] = run_worker(run_dir, phase=phase, **options)
            return self._phases[phase]

        made: list[RunDir] = []
        order = Order(
            _config(self._folder),
            self._folder,
            list(OVERRIDES),
            Console(io.StringIO()),
            on_created=made.append,
        )
        with mock.patch("pilotkit.stages.run.run_worker", work):
            try:
                return execute("restore", order)
            except ConfigError:  # recorded before it was raised
                return made[0].read_record()

    def _before_the_restore(self, run_dir: RunDir, plant: Callable[[RunDir], None] | None) -> None:
        here = run_dir.checkpoints / CHECKPOINT
        if self._saved is None:
            self._saved = self._folder / "saved"
            shutil.copytree(here, self._saved)
        elif not here.exists():
            shutil.copytree(self._saved, here)
        if plant is not None:
            plant(run_dir)


def _config(folder: Path) -> Any:
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        return load(compose(CONFIG_NAME, [*OVERRIDES, f"output_dir='{folder}'"]), launch_dir=folder)


def reseal(path: Path) -> None:
    """A manifest that fits what lies there now, as if the saver itself had written it wrong."""
    about = manifest.read_about(path)
    names = sorted(file.name for file in path.iterdir() if file.name != manifest.MANIFEST_FILE)
    manifest.write(path, [manifest.Entry(name, *sha256_of(path / name)) for name in names], about=about)


def edit_scalars(run_dir: RunDir, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change trainer.json and seal it again."""
    path = run_dir.checkpoints / CHECKPOINT
    scalars = json.loads((path / "trainer.json").read_text())
    edit(scalars)
    (path / "trainer.json").write_text(json.dumps(scalars))
    reseal(path)


def edit_tensors(run_dir: RunDir, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Read every tensor with torch's own reader, change them, and write and seal them again."""
    path = run_dir.checkpoints / CHECKPOINT
    index = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(tuple(value.size), dtype=value.properties.dtype)
        for name, value in index.items()
        if isinstance(value, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="torch.distributed is disabled"
        )  # also said when no_dist is asked for
        dcp.load(tensors, checkpoint_id=path, no_dist=True)
        edit(tensors)
        for file in (*path.glob("*.distcp"), path / ".metadata"):
            file.unlink()
        dcp.save(tensors, checkpoint_id=path, no_dist=True)
    reseal(path)


def flip_a_bit(path: Path, *, offset: int | None = None) -> None:
    """One bit of one file, by default in its middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if offset is None else offset] ^= 1
    path.write_bytes(content)


def _drop_moments(run_dir: RunDir) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith(("exp_avg", "exp_avg_sq")):
                tensor.zero_()

    edit_tensors(run_dir, edit)


def _one_step_more(scalars: dict[str, Any]) -> None:
    scalars["scheduler"]["last_epoch"] += 1
    scalars["scheduler"]["_step_count"] += 1


def _new_generators(run_dir: RunDir) -> None:
    path = run_dir.checkpoints / CHECKPOINT / "random-0.pt"
    state = torch.load(path, weights_only=True)
    state["torch"] = torch.Generator().manual_seed(1).get_state()
    torch.save(state, path)
    reseal(path.parent)


def _rename(run_dir: RunDir) -> None:
    edit_tensors(run_dir, lambda tensors: tensors.update({"model.final_norm.weight": tensors.pop("model.norm.weight")}))


def _flip_before_the_digest(run_dir: RunDir) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"].view(torch.uint8)[0] ^= 1

    edit_tensors(run_dir, edit)


def _other_learning_rate(run_dir: RunDir) -> None:
    text = run_dir.config.read_text()
    changed = text.replace("\n  lr: 0.0003\n", "\n  lr: 0.0004\n")
    assert changed != text, "optimizer.lr is not where it was"
    run_dir.config.write_text(changed)


def _set(section: str | None, name: str, value: Any) -> Callable[[RunDir], None]:
    def edit(scalars: dict[str, Any]) -> None:
        (scalars if section is None else scalars[section])[name] = value

    return lambda run_dir: edit_scalars(run_dir, edit)


FAULTS = {
    "dropped Adam moments": Fault(_drop_moments, "optimizer restored", "exp_avg"),
    "scheduler off by one": Fault(lambda run_dir: edit_scalars(run_dir, _one_step_more), "scheduler", "_step_count"),
    "missing scaler": Fault(_set(None, "scaler", None), "loading the checkpoint", "has a loss scale"),
    "loss scale that starts over": Fault(_set("scaler", "scale", 2.0), "scaler restored", "rank 0 scale"),
    "random states not restored": Fault(_new_generators, "random states restored", "rank 0 torch"),
    "loader that starts over": Fault(_set("rows", "position", 0), "data position restored", "position"),
    "flipped bit in a shard": Fault(
        lambda run_dir: flip_a_bit(run_dir.checkpoints / CHECKPOINT / "__0_0.distcp"),
        "loading the checkpoint",
        "__0_0.distcp: its content changed",
    ),
    "flipped bit before the digest": Fault(_flip_before_the_digest, "parameters restored", "norm.weight"),
    "renamed parameter": Fault(_rename, "loading the checkpoint", "model.norm.weight"),
    "changed configuration": Fault(_other_learning_rate, "optimizer.lr", "0.0003, as the checkpoint was saved with"),
}


def named_by(record: Record) -> str:
    """What the proof said of a run with a fault: its summary; `nothing` when it passed."""
    return record.problem.summary if record.problem is not None else "nothing"
