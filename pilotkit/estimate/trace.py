"""Trace two optimizer steps and an evaluation of one rank, on fake tensors: the real module, optimizer and sharding.

Called by `predict` and the worker's phase, in a process of its own: it sets switches of torch. In order: build the
model, keep `depth` of its blocks, checkpoint, shard, make the optimizer and `train`'s own Trainer, then run it under
the recorder. DDP's C++ reducer does not take fake tensors: its buckets are added to the trace of one device.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from pilotkit.estimate.compiled import compiled
from pilotkit.estimate.events import NO_BLOCK, Trace
from pilotkit.estimate.fake import fake_group, nothing_packed, quiet
from pilotkit.estimate.kernels import accelerator_kernels, compiled_update
from pilotkit.estimate.model import FakeModel
from pilotkit.estimate.naming import Sections, add_initial, follow_blocks, name_state
from pilotkit.estimate.problems import A_STEP, EstimateError, compiler_words, explained
from pilotkit.estimate.recorder import Recorder
from pilotkit.estimate.workload import Workload
from pilotkit.train import activation_checkpointing, adamw8bit
from pilotkit.train.optimizer import build_optimizer
from pilotkit.train.parallelism import SHARDED, parallelize
from pilotkit.train.rows import LoadedBatch
from pilotkit.train.scheduler import build_scheduler
from pilotkit.train.trainer import Trainer

CPU = torch.device("cpu")


def trace_step(workload: Workload, *, micro_batch_size: int, seq_len: int, counts_operators: bool = False) -> Trace:
    """The memory events of two steps and an evaluation at one shape.

    Raises EstimateError, with what to do, for a model that cannot be traced, and ConfigError as the factories do.
    """
    source = FakeModel(workload)
    return trace_fake(source, micro_batch_size=micro_batch_size, seq_len=seq_len, counts_operators=counts_operators)


def trace_fake(
    source: FakeModel,
    *,
    micro_batch_size: int,
    seq_len: int,
    num_blocks: int | None = None,
    counts_operators: bool = False,
) -> Trace:
    """Trace one shape; `num_blocks` keeps only so many of the blocks. Raises as `trace_step`.

    A model that torch.compile does not take on fake tensors is traced as it runs uncompiled, and the trace says so.
    """
    shape: dict[str, Any] = {"micro_batch_size": micro_batch_size, "seq_len": seq_len}
    options: dict[str, Any] = {**shape, "num_blocks": num_blocks, "counts_operators": counts_operators}
    try:
        return _trace(source, **options)
    except EstimateError as error:
        reason = compiler_words(error)
        if not source.workload.compile or not reason:
            raise
    trace = _trace(source.like(dataclasses.replace(source.workload, compile=False)), **options)
    trace.not_compiled = reason
    return trace


def _trace(
    source: FakeModel, *, micro_batch_size: int, seq_len: int, num_blocks: int | None, counts_operators: bool
) -> Trace:
    workload, mode = source.workload, source.mode
    row = dict(workload.read_row(seq_len))
    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(_process_switches(workload))
        if workload.strategy in SHARDED:
            stack.enter_context(fake_group(workload.world_size))
        with explained("building the model"):
            model, blocks = _wrap(workload, *source.copy(num_blocks=num_blocks))
        trace = Trace(num_blocks=len(blocks) if blocks is not None else 0)
        recorder = Recorder(trace, compiles=workload.compile)
        optimizer = build_optimizer(model.parameters(), **workload.optimizer)
        trainer = _trainer(workload, model, optimizer, recorder, row=row, batch_size=micro_batch_size)
        add_initial(recorder, model, blocks, strategy=workload.strategy)
        _follow(recorder, stack, workload, model, blocks)
        stack.enter_context(mode)
        if "position_ids" not in row:
            stack.enter_context(nothing_packed())
        if workload.device_type != "cpu":
            stack.enter_context(
                accelerator_kernels(fused_attention=workload.attention != "math", saw=recorder.saw_attention)
            )
            if workload.optimizer["name"] == adamw8bit.NAME:
                stack.enter_context(compiled_update())
        stack.enter_context(recorder)
        with explained(A_STEP):
            _run(recorder, trainer, optimizer, model, workload, counts_operators=counts_operators)
    return trace


def _follow(
    recorder: Recorder, stack: ExitStack, workload: Workload, model: nn.Module, blocks: nn.ModuleList | None
) -> None:
    """Which block is at work. A hook on a compiled module cuts its graph, so only those follow that sharding cuts too:
    it gathers for each of its blocks by hooks of its own."""
    if not workload.compile:
        follow_blocks(recorder, model, blocks)
        return
    cuts, by_blocks = workload.strategy in SHARDED, workload.compile_scope == "blocks"
    if by_blocks:
        follow_blocks(recorder, model, blocks)  # only their forwards are compiled, hooks stay outside
    elif cuts:
        follow_blocks(recorder, model, blocks, only=FSDPModule)
    stack.enter_context(
        compiled(
            recorder,
            model,
            scope=workload.compile_scope,
            blocks=blocks,
            fuses=workload.fuses,
            follows_blocks=not (cuts or by_blocks),
        )
    )


@contextmanager
def _process_switches(workload: Workload) -> Iterator[None]:
    """Garbage is collected before and not in between: when it is, is chance."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    collecting = gc.isenabled()
    torch.use_deterministic_algorithms(workload.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # through a module class
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        if collecting:
            gc.enable()


def _wrap(workload: Workload, model: nn.Module, blocks: nn.ModuleList | None) -> tuple[nn.Module, nn.ModuleList | None]:
    activation_checkpointing.apply(
        model, mode=workload.activation_checkpointing, blocks=blocks, keep_every=workload.keep_every
    )
    if workload.strategy in SHARDED:
        model = parallelize(
            model,
            strategy=workload.strategy,
            dp_replicate=workload.dp_replicate,
            dp_shard=workload.dp_shard,
            precision=workload.precision,
            device=CPU,
            blocks=blocks,
            reshard_after_forward=workload.reshard_after_forward,
            find_unused_parameters=False,
        )
    return model, blocks


def _trainer(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recorder: Recorder,
    *,
    row: Mapping[str, Tensor],
    batch_size: int,
) -> Trainer:
    rows: Any = _FakeRows(recorder, row, batch_size=batch_size)
    trainer = Trainer(
        model,
        optimizer=optimizer,
        scheduler=build_scheduler(optimizer, name="constant", lr_warmup_steps=0, num_steps=2, min_lr_ratio=0.0),
        scaler=workload.precision.build_scaler(CPU),
        precision=workload.precision,
        train_rows=rows,
        eval_dataset=rows,
        device=CPU,
        grad_accum_steps=workload.grad_accum_steps,
        max_grad_norm=workload.max_grad_norm,
        # DDP does what one device does, but for its buckets.
        strategy=workload.strategy if workload.strategy in SHARDED else "single",
        sync_each_micro_batch=workload.sync_each_micro_batch,
        find_unused_parameters=False,
        rank=0,
        world_size=workload.world_size,
        micro_batch_size=batch_size,
        seq_len=1,
    )
    # A batch at once: reading and stacking single rows is the host's work, and no memory of a device.
    replaceable: Any = trainer
    replaceable._eval_batch = lambda _index: rows.next().tensors
    return trainer


class _FakeRows:
    """Stands for the stream of rows: batches of the right shapes."""

    def __init__(self, recorder: Recorder, row: Mapping[str, Tensor], *, batch_size: int) -> None:
        self._recorder = recorder
        self._shapes = {name: (tuple(value.shape), value.dtype) for name, value in row.items()}
        self._batch_size = batch_size

    def next(self) -> LoadedBatch:
        tensors = {
            name: torch.empty((self._batch_size, *shape), dtype=dtype) for name, (shape, dtype) in self._shapes.items()
        }
        for tensor in tensors.values():
            for number in self._recorder.number_of(tensor):
                self._recorder.trace.kinds[number] = "batch"
        return LoadedBatch((), tensors)


def _run(
    recorder: Recorder,
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    workload: Workload,
    *,
    counts_operators: bool,
) -> None:
    sections = Sections(recorder, model)
    for step in range(2):
        recorder.step, recorder.moment = step, "data"
        recorder.counts_operators = counts_operators and step == 1
        trainer.train_step(sections)
        if step == 0:
            name_state(recorder, optimizer)
    recorder.counts_operators = False
    if workload.num_eval_batches:
        recorder.step, recorder.moment, recorder.block = 2, "evaluation", NO_BLOCK
        trainer.evaluate(workload.num_eval_batches)
    recorder.finish()
