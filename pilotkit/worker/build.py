"""From a configuration to everything that one rank trains with. The only place where `train` meets `PilotConfig`.

Every phase builds through here, so that what is proven, measured, piloted and restored is one and the same thing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pilotkit.config.batch import largest_part
from pilotkit.config.schema import PilotConfig
from pilotkit.cpus import shared_memory_free_bytes, shared_memory_needed_bytes
from pilotkit.errors import ConfigError, PilotkitError, Problem
from pilotkit.train import activation_checkpointing, adamw8bit, float8
from pilotkit.train.blocks import find_blocks
from pilotkit.train.compilation import compile_model
from pilotkit.train.factories import bound
from pilotkit.train.optimizer import build_optimizer
from pilotkit.train.parallelism import parallelize
from pilotkit.train.precision import PrecisionPolicy
from pilotkit.train.rows import RowSource, RowStream
from pilotkit.train.scheduler import build_scheduler
from pilotkit.train.seeding import seed_everything
from pilotkit.train.tf32 import settings_against
from pilotkit.train.trainer import Trainer
from pilotkit.units import format_bytes
from pilotkit.worker.lengths import ChosenRows, RowLengths, lengths_of_run
from pilotkit.worker.session import Session


class SharedMemoryTooSmall(PilotkitError):
    """Loader processes would die with a bus error in the middle of training."""


@dataclass(frozen=True)
class Built:
    """A trainer, how long its parts took (seconds), and what they are made of."""

    trainer: Trainer
    model_load_seconds: float
    data_open_seconds: float
    num_params: int
    batch_bytes: int
    """Bytes of one micro-batch on one rank."""
    lengths: RowLengths | None = None
    """How long the rows are; looked at only with `longest_rows`."""
    all_rows: RowStream | None = None
    """The rows as they come, where the trainer has the longest alone."""
    overridden: tuple[str, ...] = ()
    """What the user's own code or environment had set, and the configuration set otherwise: a sentence each."""

    def close(self) -> None:
        """End the loader's processes."""
        self.trainer.train_rows.close()
        if self.all_rows is not None:
            self.all_rows.close()


def build(
    session: Session,
    *,
    strategy: str,
    dp_replicate: int = 1,
    dp_shard: int = 1,
    grad_accum_steps: int | None = None,
    row_seed: int | None = None,
    longest_rows: bool = False,
) -> Built:
    """Seed, load the data and the model, spread it, and make the trainer.

    `grad_accum_steps` None takes the intended run's; another world size needs another for the same rows a step.
    `row_seed` orders the rows, and seeds dropout once the weights are there; None is `train.seed` for all of it.
    `longest_rows` trains and evaluates on the longest rows alone, where rows differ: they decide whether the run fits.
    """
    config = session.config
    train = config.train
    seed_everything(train.seed, rank=session.rank, deterministic=train.deterministic)
    data = open_data(session, row_seed=row_seed, longest_rows=longest_rows)
    started = time.perf_counter()
    precision = precision_policy(config)
    if config.optimizer.name == adamw8bit.NAME:
        adamw8bit.check_strategy(strategy)  # a pilot's or a restore's may be another than the run's
    model, num_params = _load_model(session, precision)
    # After the factories: many a module says torch.set_float32_matmul_precision("high") where it is imported.
    overridden = settings_against(config.precision.name, allow_tf32=precision.allow_tf32)
    precision.apply_to_backend(session.device.torch_device)
    blocks = find_blocks(model, path=config.model.blocks)
    _convert_to_float8(session, model, precision, blocks)
    recomputation = config.activation_checkpointing
    activation_checkpointing.apply(model, mode=recomputation.mode, blocks=blocks, keep_every=recomputation.keep_every)
    model = parallelize(
        model,
        strategy=strategy,
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        precision=precision,
        device=session.device.torch_device,
        blocks=blocks,
        reshard_after_forward=config.parallelism.reshard_after_forward,
        find_unused_parameters=config.parallelism.find_unused_parameters,
    )
    if train.compile:
        compile_model(model, scope=train.compile_scope, blocks=blocks)
    optimizer = build_optimizer(model.parameters(), **dataclasses.asdict(config.optimizer))
    trainer = Trainer(
        model,
        optimizer=optimizer,
        scheduler=build_scheduler(
            optimizer,
            name=config.scheduler.name,
            lr_warmup_steps=config.scheduler.lr_warmup_steps,
            num_steps=session.arithmetic.num_steps,
            min_lr_ratio=config.scheduler.min_lr_ratio,
        ),
        scaler=precision.build_scaler(session.device.torch_device),
        precision=precision,
        train_rows=data.train_rows,
        eval_dataset=data.eval_dataset,
        device=session.device.torch_device,
        grad_accum_steps=grad_accum_steps or session.arithmetic.grad_accum_steps,
        max_grad_norm=train.max_grad_norm,
        strategy=strategy,
        sync_each_micro_batch=config.parallelism.sync_each_micro_batch,
        find_unused_parameters=config.parallelism.find_unused_parameters,
        rank=session.rank,
        world_size=session.world_size,
        micro_batch_size=train.micro_batch_size,
        seq_len=train.seq_len,
    )
    if row_seed is not None:
        seed_everything(row_seed, rank=session.rank, deterministic=train.deterministic)
    session.device.synchronize()
    seconds = time.perf_counter() - started
    return Built(
        trainer,
        seconds,
        data.seconds,
        num_params,
        data.batch_bytes,
        lengths=data.lengths,
        all_rows=data.all_rows,
        overridden=tuple(overridden),
    )


def precision_policy(config: PilotConfig) -> PrecisionPolicy:
    """The precision section as `train` knows it."""
    precision = config.precision
    return PrecisionPolicy(
        param_dtype=precision.param_dtype,
        compute_dtype=precision.compute_dtype,
        reduce_dtype=precision.reduce_dtype,
        allow_tf32=precision.allow_tf32,
        grad_scaler=precision.grad_scaler,
        float8=precision.float8,
        float8_emulate=precision.float8_emulate,
    )


def mesh_of(session: Session, *, strategy: str) -> tuple[int, int]:
    """`(dp_replicate, dp_shard)` of a strategy over the ranks that are here, one node of the intended run."""
    world_size = session.world_size
    if strategy == "ddp":
        return world_size, 1
    if strategy == "fsdp":
        return 1, world_size
    if strategy == "hsdp":
        shard = min(session.arithmetic.dp_shard, world_size)
        # A group that spans nodes does not fit on one; a part of the node keeps both kinds of traffic.
        if shard in (1, world_size) or world_size % shard:
            shard = largest_part(world_size)
        return world_size // shard, shard
    return 1, 1


def _load_model(session: Session, precision: PrecisionPolicy) -> tuple[nn.Module, int]:
    config = session.config
    model: nn.Module = bound(config.model.factory, section="model", kwargs=config.model.kwargs)()
    _check_model(model, config)
    precision.cast(model)
    # `parameters()` gives a tied one once.
    return model, sum(parameter.numel() for parameter in model.parameters())


def _convert_to_float8(
    session: Session, model: nn.Module, precision: PrecisionPolicy, blocks: nn.ModuleList | None
) -> None:
    """Refused by name where the device lacks it: a silent bf16 would be measured as fp8."""
    if precision.float8 == "none":
        return
    problem = "" if precision.float8_emulate else session.device.float8_problem
    if problem:
        fix = f"{session.device.name}: {problem}"
        raise ConfigError([Problem("precision", session.config.precision.name, float8.OTHERS, fix)])
    float8.convert(model, recipe=precision.float8, blocks=blocks, emulate=precision.float8_emulate)


def _check_model(model: object, config: PilotConfig) -> None:
    """What a factory has to return, told before torch tells it in other words."""
    allowed, fix = "a factory that returns an nn.Module with parameters to train", "see the contract in README.md"
    if not isinstance(model, nn.Module):
        given = f"{config.model.factory}, which returned {type(model).__name__}"
        raise ConfigError([Problem("model.factory", given, allowed, fix)])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        given = f"{config.model.factory}, whose module has no parameter that requires a gradient"
        raise ConfigError([Problem("model.factory", given, allowed, fix)])


def _check_row(row: object, config: PilotConfig) -> None:
    allowed = "a factory whose rows are dictionaries of tensors"
    values = row.values() if isinstance(row, dict) else ()
    if values and all(isinstance(value, torch.Tensor) for value in values):
        return
    kinds = ", ".join(f"{key}: {type(value).__name__}" for key, value in row.items()) if isinstance(row, dict) else ""
    given = f"{config.data.factory}, whose first row is {f'{{{kinds}}}' if kinds else type(row).__name__}"
    raise ConfigError([Problem("data.factory", given, allowed, "turn each value into a tensor in the data set")])


@dataclass(frozen=True)
class OpenedData:
    """The rows of this rank, the evaluation set, the bytes of one micro-batch; how long rows are, if it was asked.

    `seconds` is what the factories took and the first row, without that look.
    """

    train_rows: RowStream
    eval_dataset: Any
    batch_bytes: int
    seconds: float
    lengths: RowLengths | None
    all_rows: RowStream | None = None
    """The rows as they come, where `train_rows` are the longest alone."""


def data_factory(config: PilotConfig, *, split: str, seq_len: int | None = None) -> Callable[..., Any]:
    """Makes the rows of a split, of `seq_len` tokens where that is not the run's own. Raises ConfigError."""
    if "split" in config.data.kwargs:
        fix = "drop it: with one split for both, a run would be evaluated on what it trains on"
        given = config.data.kwargs["split"]
        raise ConfigError([Problem("data.kwargs.split", given, "not given: each split is asked for", fix)])
    length = config.train.seq_len if seq_len is None else seq_len
    own = {"split": split, "seq_len": length, "seed": config.train.seed}
    return bound(config.data.factory, section="data", kwargs=config.data.kwargs, **own)


def open_data(session: Session, *, row_seed: int | None = None, longest_rows: bool = False) -> OpenedData:
    """Rows come in the order of `row_seed`; with `longest_rows` only the longest do, where rows differ."""
    config = session.config
    started = time.perf_counter()
    dataset, eval_dataset = (data_factory(config, split=split)() for split in ("train", "eval"))
    row = dataset[0]
    seconds = time.perf_counter() - started
    _check_row(row, config)
    lengths = all_rows = None
    if longest_rows:
        found = lengths_of_run(session, {"train": dataset, "eval": eval_dataset})
        lengths = found["train"]
        all_rows = _stream(session, dataset, row_seed=row_seed) if lengths.longest_rows else None
        dataset, eval_dataset = _longest(dataset, lengths), _longest(eval_dataset, found["eval"])
        row = dataset[0]
    row_bytes = sum(value.nbytes for value in row.values() if isinstance(value, torch.Tensor))
    batch_bytes = row_bytes * config.train.micro_batch_size
    _check_shared_memory(session, batch_bytes)
    rows = _stream(session, dataset, row_seed=row_seed)
    return OpenedData(rows, eval_dataset, batch_bytes, seconds, lengths, all_rows)


def _stream(session: Session, dataset: RowSource, *, row_seed: int | None) -> RowStream:
    config = session.config
    return RowStream(
        dataset,
        micro_batch_size=config.train.micro_batch_size,
        seed=config.train.seed if row_seed is None else row_seed,
        rank=session.rank,
        world_size=session.world_size,
        position=0,
        num_workers=config.data.num_workers,
        prefetch_factor=config.data.prefetch_factor,
        pin_memory=config.data.pin_memory,
    )


def _longest(rows: RowSource, lengths: RowLengths) -> RowSource:
    return ChosenRows(rows, lengths.longest_rows) if lengths.longest_rows else rows


def _check_shared_memory(session: Session, batch_bytes: int) -> None:
    data = session.config.data
    needed = session.world_size * shared_memory_needed_bytes(
        batch_bytes, num_workers=data.num_workers, prefetch_factor=data.prefetch_factor
    )
    free = shared_memory_free_bytes()
    if not data.num_workers or free is None or free >= needed:
        return
    loaders = f"{session.world_size} ranks x data.num_workers {data.num_workers}"
    raise SharedMemoryTooSmall(
        f"the shared memory has {format_bytes(free)} free, and the loaders need {format_bytes(needed)}: {loaders} "
        f"x data.prefetch_factor {data.prefetch_factor}, {format_bytes(batch_bytes)} a batch. "
        "Make /dev/shm larger (docker run --shm-size=...), or lower data.num_workers"
    )
