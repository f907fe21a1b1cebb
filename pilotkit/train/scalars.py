"""The numbers of one training state that are not tensors, as JSON. Used by `checkpoint`; touches no file.

Python writes a float so that it reads back to the same bits, so a learning rate survives exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from pilotkit.errors import CheckpointError
from pilotkit.train.tensors import plain_name
from pilotkit.train.trainer import Trainer

SCALARS_VERSION = 1
NAMES = {
    *("version", "world_size", "step", "tokens_seen", "num_skipped_steps", "rows", "scheduler", "scaler"),
    *("param_groups", "config_text", "lock_text", "frozen"),
}
ADDED_SINCE = {"lock_text", "frozen"}
"""What a checkpoint of this version may lack: it was saved before these were written down."""


def collect(trainer: Trainer, *, config_text: str, lock_text: str = "") -> dict[str, Any]:
    """What `restore` needs, in JSON's types."""
    groups = [
        {name: value for name, value in group.items() if name != "params"} for group in trainer.optimizer.param_groups
    ]
    plain: dict[str, Any] = {
        "version": SCALARS_VERSION,
        "world_size": trainer.world_size,
        "step": trainer.step,
        "tokens_seen": trainer.tokens_seen,
        "num_skipped_steps": trainer.num_skipped_steps,
        "rows": trainer.train_rows.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
        "param_groups": groups,
        "config_text": config_text,
        "lock_text": lock_text,
        "frozen": frozen_names(trainer.model),
    }
    assert plain.keys() == NAMES, plain.keys() ^ NAMES
    return plain


def read(path: Path) -> dict[str, Any]:
    """What `collect` gave, from its file. Raises CheckpointError when it is not that, OSError as the disk does."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if not isinstance(saved, dict):
        raise CheckpointError(f"{path}: holds no training state")
    if saved.get("version") != SCALARS_VERSION:
        raise CheckpointError(
            f"{path}: version {saved.get('version')!r} is not known (this pilotkit reads {SCALARS_VERSION})"
        )
    missing = sorted(NAMES - ADDED_SINCE - saved.keys())
    if missing:
        raise CheckpointError(f"{path}: lacks {', '.join(missing)}")
    return saved


def frozen_names(model: nn.Module) -> list[str]:
    """Parameters that training leaves as they are; an optimizer without state would not tell them apart."""
    return sorted(plain_name(name) for name, parameter in model.named_parameters() if not parameter.requires_grad)


def check(trainer: Trainer, saved: dict[str, Any], *, path: Path) -> None:
    """Raises CheckpointError when this run cannot take what was saved, ConfigError when the data are others."""
    trainer.train_rows.check_state_dict(saved["rows"])
    problems: list[str] = []
    expected = collect(trainer, config_text="")
    problems += [f"saved but not known to this run: {name}" for name in sorted(saved.keys() - NAMES)]
    then, now = set(saved.get("frozen", expected["frozen"])), set(expected["frozen"])
    problems += [f"frozen when it was saved, trained here: {name}" for name in sorted(then - now)]
    problems += [f"trained when it was saved, frozen here: {name}" for name in sorted(now - then)]
    if (saved["scaler"] is None) != (trainer.scaler is None):
        has, lacks = ("this run", "the checkpoint") if saved["scaler"] is None else ("the checkpoint", "this run")
        problems.append(f"{has} has a loss scale, {lacks} has none: precision")
    for here, there in zip(expected["param_groups"], saved["param_groups"], strict=False):
        problems += [f"param_groups: only one side has {name}" for name in sorted(here.keys() ^ there.keys())]
    if len(expected["param_groups"]) != len(saved["param_groups"]):
        problems.append(f"{len(saved['param_groups'])} param groups saved, here {len(expected['param_groups'])}")
    if problems:
        raise CheckpointError("\n".join([f"{path}: does not fit this run", *problems]))


def param_groups(saved: dict[str, Any]) -> list[dict[str, Any]]:
    """The optimizer's param groups without their parameters; JSON's lists are the tuples they were (betas)."""
    return [
        {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}
        for group in saved["param_groups"]
    ]


def restore(trainer: Trainer, saved: dict[str, Any]) -> None:
    """Position, counters, schedule and loss scale, after `check`."""
    trainer.train_rows.load_state_dict(saved["rows"])
    trainer.scheduler.load_state_dict(saved["scheduler"])
    if trainer.scaler is not None:
        trainer.scaler.load_state_dict(saved["scaler"])
    trainer.step = saved["step"]
    trainer.tokens_seen = saved["tokens_seen"]
    trainer.num_skipped_steps = saved["num_skipped_steps"]
