"""What a training state is, as digests by component and part: two states are compared without keeping either.

Called by the phases of `restore`; the driver compares. Reads the trainer and changes nothing in it. Names of tensors
are those of the plain model, so that a state can be compared with one of another strategy or world size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pilotkit.train.seeding import derive_seed, random_state
from pilotkit.train.tensors import collect_tensors
from pilotkit.train.trainer import Trainer

NUM_PROJECTIONS = 8
_BLOCK = 1 << 20

Parts = dict[str, str]


def of_rank(trainer: Trainer) -> dict[str, Parts]:
    """SHA-256 of every part that this rank holds (its shards, not the whole), by component. A collective."""
    tensors = collect_tensors(trainer.model, trainer.optimizer)
    return {**_counters(trainer), **_tensor_parts(tensors, trainer, whole=False), **_generators(trainer)}


def of_whole(trainer: Trainer) -> dict[str, Parts]:
    """The same over whole tensors, without what belongs to one rank: equal for every strategy and world size.

    A collective that gathers one tensor at a time.
    """
    tensors = collect_tensors(trainer.model, trainer.optimizer)
    return {**_counters(trainer), **_tensor_parts(tensors, trainer, whole=True)}


def sketches(trainer: Trainer) -> dict[str, list[float]]:
    """Norm and random projections of each tensor this rank holds; `decide.continuation` estimates distances from them.

    The projections are on vectors of random signs, the same in every process: the mean square of the differences
    between the projections of x and y is |x - y|^2 in expectation (Achlioptas 2003, doi:10.1016/S0022-0000(03)00025-4).
    """
    tensors = collect_tensors(trainer.model, trainer.optimizer)
    return {name: _sketch(name, _local(tensor)) for name, tensor in tensors.items() if tensor.is_floating_point()}


def digest(value: Any) -> str:
    """SHA-256 in hex: of a tensor's dtype, shape and bytes; of anything else's `repr`."""
    running = hashlib.sha256()
    if isinstance(value, Tensor):
        plain = _local(value).detach().cpu().contiguous()
        running.update(f"{plain.dtype} {tuple(plain.shape)} ".encode())
        if plain.numel():
            running.update(plain.view(-1).view(torch.uint8).numpy().data)
    else:
        running.update(repr(value).encode())
    return running.hexdigest()


def _counters(trainer: Trainer) -> dict[str, Parts]:
    counters = {
        "step": trainer.step,
        "tokens_seen": trainer.tokens_seen,
        "num_skipped_steps": trainer.num_skipped_steps,
    }
    scaler = trainer.scaler.state_dict() if trainer.scaler is not None else {}
    return {
        "counters": parts_of(counters),
        "data position": parts_of(trainer.train_rows.state_dict()),
        "scheduler": parts_of(trainer.scheduler.state_dict()),
        "scaler": parts_of(scaler),
    }


def _tensor_parts(tensors: dict[str, Tensor], trainer: Trainer, *, whole: bool) -> dict[str, Parts]:
    """`model.*` and `optimizer.*`, with the optimizer's settings of each group."""
    parts: dict[str, Parts] = {"parameters": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        owner, _, part = name.partition(".")
        value = tensor.full_tensor() if whole and isinstance(tensor, DTensor) else tensor
        parts["parameters" if owner == "model" else "optimizer"][part] = digest(value)
    for index, group in enumerate(trainer.optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name != "params"}
        parts["optimizer"] |= {f"group {index}.{name}": text for name, text in parts_of(settings).items()}
    return parts


def _generators(trainer: Trainer) -> dict[str, Parts]:
    return {"random states": parts_of(random_state(trainer.device))}


def parts_of(state: Any) -> Parts:
    """Digests of the leaves of nested dictionaries and lists, by dotted name."""
    return {name: digest(value) for name, value in _flat(state)}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with dotted names; the order of a dict's keys does not matter to who compares."""
    if isinstance(value, dict):
        for key in value:
            yield from _flat(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}" if name else str(index))
    else:
        yield name, value


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


@torch.no_grad()
def _sketch(name: str, tensor: Tensor) -> list[float]:
    """In blocks, so that the signs of a large tensor never exist all at once."""
    generator = torch.Generator().manual_seed(derive_seed(0, "sketch", name))
    sums = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64)
    square = 0.0
    for block in tensor.detach().reshape(-1).split(_BLOCK):
        values = block.cpu().double()
        square += float(values.square().sum())
        signs = torch.randint(0, 2, (NUM_PROJECTIONS, len(values)), generator=generator, dtype=torch.int8)
        sums += (signs.double() * 2 - 1) @ values
    return [square**0.5, *sums.tolist()]
