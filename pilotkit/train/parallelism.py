"""Spread one model over the ranks of a running process group: DDP, FSDP (fully_shard) or HSDP.

Called by the worker after precision and activation checkpointing, before the optimizer is built: sharding replaces
the parameters. The group is started and ended by the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from pilotkit.errors import ConfigError, Problem
from pilotkit.train.outputs import show_output, take_back_output
from pilotkit.train.precision import DTYPES, PrecisionPolicy
from pilotkit.train.ranks import rank_and_world_size
from pilotkit.train.sharded_forward import OTHERS

STRATEGIES = ("single", "ddp", "fsdp", "hsdp")
SHARDED = ("fsdp", "hsdp")


def parallelize(
    model: nn.Module,
    *,
    strategy: str,
    dp_replicate: int,
    dp_shard: int,
    precision: PrecisionPolicy,
    device: torch.device,
    blocks: nn.ModuleList | None,
    reshard_after_forward: bool,
    find_unused_parameters: bool,
) -> nn.Module:
    """The module to train; the weights are rank 0's on every rank, whatever the seeds were.

    `single` only moves the model to `device`. `ddp` wraps it. `fsdp` shards over dp_shard ranks, `hsdp` also
    replicates over dp_replicate groups; both shard each of `blocks`, then the rest as one group, in place. Batch norms
    of each stay in `param_dtype`, as a group of their own: their running statistics do, and may not differ. A model
    that is still on the CPU is moved to the device one group at a time, so that the whole never has to fit there.
    """
    assert strategy in STRATEGIES, strategy
    if strategy == "single":
        return model.to(device)
    world_size = rank_and_world_size()[1]
    assert dp_replicate * dp_shard == world_size, (dp_replicate, dp_shard, world_size)
    if strategy == "ddp":
        if find_unused_parameters:
            show_output(model)
        return DistributedDataParallel(
            model.to(device),
            device_ids=None if device.type == "cpu" else [device],
            find_unused_parameters=find_unused_parameters,
        )
    _refuse_scalars(model, strategy=strategy)
    _send_weights_of_rank_0(model, device=device)
    mesh = _mesh(device.type, strategy=strategy, dp_replicate=dp_replicate, dp_shard=dp_shard)
    policy = _sharding_policy(precision)
    for part in (*_separable_blocks(model, blocks), model):
        norms = _batch_norms(part) if precision.is_mixed else []
        if norms:
            kept = MixedPrecisionPolicy(reduce_dtype=policy.reduce_dtype, cast_forward_inputs=False)
            fully_shard(norms, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=kept)
        show_output(part)
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
        take_back_output(part)
    return model


@contextmanager
def gradient_sync(model: nn.Module, *, strategy: str, is_last: bool) -> Iterator[None]:
    """The context of one micro-batch, forward and backward: gradients are reduced only in the last one.

    Both have to be inside: DDP decides in forward whether the coming backward reduces.
    """
    wrapped = cast(Any, model)  # DDP's and FSDP's methods, also reached through a compiled module
    if strategy == "ddp" and not is_last:
        with wrapped.no_sync():
            yield
        return
    if strategy in SHARDED:
        wrapped.set_requires_gradient_sync(is_last)
    yield


def free_gathered_parameters(model: nn.Module, *, strategy: str) -> None:
    """After a forward without backward: sharded strategies would keep the root group's parameters gathered."""
    if strategy in SHARDED:
        cast(Any, model).reshard()


def _refuse_scalars(model: nn.Module, *, strategy: str) -> None:
    """fully_shard cuts along the first dimension, and a parameter such as a learned temperature has none."""
    names = [name for name, param in model.named_parameters() if param.dim() == 0]
    if names:
        fix = (
            f"{', '.join(names)} has no dimension to cut; make it a tensor with one element (torch.ones(1), not "
            "torch.tensor(1.0))"
        )
        raise ConfigError([Problem("parallelism.strategy", strategy, OTHERS, fix)])


def _mesh(device_type: str, *, strategy: str, dp_replicate: int, dp_shard: int) -> DeviceMesh:
    if strategy == "fsdp":
        return init_device_mesh(device_type, (dp_replicate * dp_shard,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(device_type, (dp_replicate, dp_shard), mesh_dim_names=("dp_replicate", "dp_shard"))


def _sharding_policy(precision: PrecisionPolicy) -> MixedPrecisionPolicy:
    if not precision.is_mixed and precision.reduce_dtype == precision.param_dtype:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute_dtype], reduce_dtype=DTYPES[precision.reduce_dtype]
    )


def _separable_blocks(model: nn.Module, blocks: nn.ModuleList | None) -> list[nn.Module]:
    """Blocks that share no parameter with anything outside themselves; the others stay in the root's group.

    One parameter in two groups is refused by torch from 2.13 on, and silently untied before.
    """
    if blocks is None:
        return []
    uses = _uses(model)
    return [block for block in blocks if all(uses[param] == count for param, count in _uses(block).items())]


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    """Those with parameters that no group has yet, each once. One that is shared is left to the other groups."""
    found = {id(child): child for child in module.modules() if isinstance(child, _BatchNorm) and child.affine}
    uses = _uses(module)
    return [
        child
        for child in found.values()
        if not isinstance(child, FSDPModule) and all(uses[param] == count for param, count in _uses(child).items())
    ]


def _uses(module: nn.Module) -> Counter[int]:
    """In how many places each parameter stands, by identity; a module that is used twice counts twice."""
    places = module.named_modules(remove_duplicate=False)
    return Counter(id(param) for _, child in places for param in child.parameters(recurse=False))


@torch.no_grad()
def _send_weights_of_rank_0(model: nn.Module, *, device: torch.device) -> None:
    """fully_shard takes each rank's own weights, unlike DDP. One tensor at a time, through the device of the group."""
    if dist.get_world_size() == 1:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_meta:
            continue
        sent = tensor.detach().to(device)
        dist.broadcast(sent, src=0)
        if sent.data_ptr() != tensor.data_ptr():
            tensor.copy_(sent)
