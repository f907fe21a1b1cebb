"""Trace two optimizer steps and an evaluation of one rank, on fake tensors: the real module, optimizer and sharding.

Called by `predict` and the worker's phase, in a process of its own: it sets switches of torch. In order: build the
model, keep `depth` of its blocks, checkpoint, shard, make the optimizer and `train`'s own Trainer, then run it under
the recorder. DDP's C++ reducer does not take fake tensors: its buckets are added to the trace of one device.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pilotkit.estimate.events import NO_BLOCK, Trace
from pilotkit.estimate.fake import build_fake, fake_group, fake_mode, quiet
from pilotkit.estimate.kernels import accelerator_kernels
from pilotkit.estimate.problems import explained
from pilotkit.estimate.recorder import Recorder, returned
from pilotkit.estimate.workload import Workload
from pilotkit.train import activation_checkpointing
from pilotkit.train.blocks import find_blocks
from pilotkit.train.optimizer import build_optimizer
from pilotkit.train.parallelism import SHARDED, parallelize
from pilotkit.train.precision import DTYPES
from pilotkit.train.rows import LoadedBatch
from pilotkit.train.scheduler import build_scheduler
from pilotkit.train.trainer import Trainer

MOMENT_OF_SECTION = {"data_wait": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
CPU = torch.device("cpu")
MAX_PERIOD = 6


def trace_step(workload: Workload, *, micro_batch_size: int, seq_len: int, counts_operators: bool = False) -> Trace:
    """The memory events of two steps and an evaluation at one shape.

    Raises EstimateError, with what to do, for a model that cannot be traced, and ConfigError as the factories do.
    """
    source = FakeModel(workload)
    return trace_fake(source, micro_batch_size=micro_batch_size, seq_len=seq_len, counts_operators=counts_operators)


class FakeModel:
    """The model on fake tensors, built once for any number of traces. Facts about it need no trace."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.mode = fake_mode()
        with quiet(), explained("building the model"):
            self._model = build_fake(workload.build_model, self.mode, dtype=DTYPES[workload.precision.param_dtype])
        blocks = find_blocks(self._model, path=workload.blocks)
        self.num_blocks = len(blocks) if blocks is not None else 0
        self.period = _period([_signature(block) for block in blocks or ()])
        """Blocks in the shortest run that repeats; 0 when none does."""
        self.num_params = sum(param.numel() for param in self._model.parameters())

    def like(self, workload: Workload) -> FakeModel:
        """The same model, to be traced as another workload of it."""
        other = copy.copy(self)
        other.workload = workload
        return other

    def keep(self, num_blocks: int) -> None:
        """Drop all blocks but the first; the facts above stay those of the whole model."""
        blocks = find_blocks(self._model, path=self.workload.blocks)
        assert blocks is not None
        del blocks[num_blocks:]

    def copy(self, *, num_blocks: int | None) -> tuple[nn.Module, nn.ModuleList | None]:
        """A model to wrap and train, with its blocks."""
        with self.mode:
            model = copy.deepcopy(self._model, _copied_tensors(self._model))
        blocks = find_blocks(model, path=self.workload.blocks)
        if blocks is not None and num_blocks is not None:
            del blocks[num_blocks:]
        return model, blocks


def _copied_tensors(model: nn.Module) -> dict[int, Any]:
    """Copies of tensors that are no parameters, for `copy.deepcopy` to find: it would copy their storages."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return {id(tensor): tensor.detach().clone() for tensor in (*model.buffers(), *held)}


def trace_fake(
    source: FakeModel,
    *,
    micro_batch_size: int,
    seq_len: int,
    num_blocks: int | None = None,
    counts_operators: bool = False,
) -> Trace:
    """Trace one shape; `num_blocks` keeps only so many of the blocks. Raises as `trace_step`."""
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
        recorder = Recorder(trace)
        optimizer = build_optimizer(model.parameters(), **workload.optimizer)
        trainer = _trainer(workload, model, optimizer, recorder, row=row, batch_size=micro_batch_size)
        _add_initial(recorder, model, blocks, strategy=workload.strategy)
        _follow_blocks(recorder, model, blocks)
        stack.enter_context(mode)
        if workload.device_type != "cpu":
            stack.enter_context(accelerator_kernels())
        stack.enter_context(recorder)
        with explained("a step"):
            _run(recorder, trainer, optimizer, model, workload, counts_operators=counts_operators)
    return trace


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


def _signature(block: nn.Module) -> tuple[object, ...]:
    """What makes two blocks alike: types, shapes, and plain settings other than the block's own number."""
    found: list[object] = []
    for name, module in block.named_modules():
        plain = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, (int, float, str)) and not key.endswith(("idx", "index", "layer_id"))
        }
        found.append((name, type(module), sorted(plain.items(), key=lambda item: item[0])))
    tensors = (*block.named_parameters(), *block.named_buffers())
    found += [(name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in tensors]
    return tuple(map(str, found))


def _period(signatures: list[tuple[object, ...]]) -> int:
    for period in range(1, MAX_PERIOD + 1):
        if len(signatures) % period == 0 and all(
            signature == signatures[index % period] for index, signature in enumerate(signatures)
        ):
            return period
    return 0


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


def _add_initial(recorder: Recorder, model: nn.Module, blocks: nn.ModuleList | None, *, strategy: str) -> None:
    for index, module in enumerate(blocks or ()):
        for tensor in (*module.parameters(), *module.buffers()):
            recorder.add_initial(tensor.detach(), kind="parameters", block=index)
    for tensor in (*model.parameters(), *model.buffers()):
        recorder.add_initial(tensor.detach(), kind="parameters")
    if strategy != "ddp":
        return
    # One bucket holds about 25 MiB of gradients; together they are as large as all of them (`gradient_as_bucket_view`
    # is off, so the gradients stand beside them).
    owners = {id(param): index for index, block in enumerate(blocks or ()) for param in block.parameters()}
    for number, param in enumerate((param for param in model.parameters() if param.requires_grad), 1):
        block = owners.get(id(param), NO_BLOCK)
        recorder.trace.initial[-number] = ("buckets", param.numel() * param.element_size())
        recorder.trace.initial_blocks[-number] = block


def _follow_blocks(recorder: Recorder, model: nn.Module, blocks: nn.ModuleList | None) -> None:
    """Tell the recorder which block is at work. Tensor hooks in backward: they leave the graph as it is."""

    def at(index: int, *_: Any) -> None:
        recorder.block = index

    def enter(index: int, _module: nn.Module, args: Any) -> None:
        recorder.block = index
        if index == 0:
            _hook(args, partial(at, NO_BLOCK))

    def follow(index: int, _module: nn.Module, _args: Any, output: Any) -> None:
        _hook(output, partial(at, index))

    def leave(index: int, *_: Any) -> None:
        recorder.block, recorder.block_before = NO_BLOCK, index

    def inside(value: bool, *_: Any) -> None:
        recorder.in_model = value

    for index, block in enumerate(blocks or ()):
        block.register_forward_pre_hook(partial(enter, index), prepend=True)
        # The first of the hooks on the output, so that in backward it comes before FSDP gathers for this block.
        block.register_forward_hook(partial(follow, index), prepend=True)
        block.register_forward_hook(partial(leave, index))
    model.register_forward_pre_hook(partial(inside, True), prepend=True)
    model.register_forward_hook(partial(inside, False), always_call=True)


def _hook(value: Any, function: Any) -> None:
    for tensor in returned(value):
        if tensor.requires_grad:
            tensor.register_hook(function)


class _Sections:
    """`train.trainer.Sections`: names the moment, and what the live tensors are at its edges."""

    def __init__(self, recorder: Recorder, model: nn.Module) -> None:
        self._recorder = recorder
        self._model = model

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        recorder = self._recorder
        recorder.moment, recorder.block, recorder.block_before = MOMENT_OF_SECTION[name], NO_BLOCK, NO_BLOCK
        if name == "optimizer":
            self._name_gradients()
        first = len(recorder.trace.events)
        yield
        recorder.block = recorder.block_before = NO_BLOCK
        if name == "forward":
            self._name_activations(first)
        recorder.moment = "data" if name == "optimizer" else recorder.moment

    def _name_gradients(self) -> None:
        for param in self._model.parameters():
            if param.grad is not None:
                for number in self._recorder.number_of(param.grad):
                    self._recorder.trace.kinds[number] = "gradients"

    def _name_activations(self, first: int) -> None:
        """What this forward made and has not freed is kept for backward."""
        trace = self._recorder.trace
        new = trace.events[first:]
        freed = {event.tensor for event in new if event.num_bytes < 0}
        for event in new:
            if event.num_bytes > 0 and event.tensor not in freed and event.operator != "resize":
                trace.kinds.setdefault(event.tensor, "activations")


def _name_state(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    for param, state in optimizer.state.items():
        block = recorder.block_of(param)
        for value in state.values():
            if isinstance(value, Tensor):
                recorder.assign(value, kind="optimizer_state", block=block)


def _run(
    recorder: Recorder,
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    workload: Workload,
    *,
    counts_operators: bool,
) -> None:
    sections = _Sections(recorder, model)
    for step in range(2):
        recorder.step, recorder.moment = step, "data"
        recorder.counts_operators = counts_operators and step == 1
        trainer.train_step(sections)
        if step == 0:
            _name_state(recorder, optimizer)
    recorder.counts_operators = False
    if workload.num_eval_batches:
        recorder.step, recorder.moment, recorder.block = 2, "evaluation", NO_BLOCK
        trainer.evaluate(workload.num_eval_batches)
    recorder.finish()
