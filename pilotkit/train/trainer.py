"""One optimizer step, and evaluation: the only place that runs forward and backward.

The calls of `train_step`, on every rank alike: for each micro-batch rows.next, forward, backward (gradients are reduced
in the last one, or in each); then unscale, clip, optimizer, scheduler; then one small gather, so that all ranks know
the same loss and stop together; then buffers that moved become rank 0's.
Called by the worker's phases, which pass `meter` in as `Sections`. Never saves, prints or measures.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler

from pilotkit.errors import ConfigError, PilotkitError, Problem
from pilotkit.train.buffers import MovingBuffers
from pilotkit.train.parallelism import SHARDED, free_gathered_parameters, gradient_sync
from pilotkit.train.precision import PrecisionPolicy
from pilotkit.train.ranks import gather_scalar
from pilotkit.train.rows import RowSource, RowStream, read_rows
from pilotkit.train.seeding import preserved_random_state
from pilotkit.train.sharded_forward import SameBlocksOnEveryRank, explained_dtypes, refuse_sharded_dtypes
from pilotkit.train.unused import UnusedParameters


class Sections(Protocol):
    """Told when a part of a step begins and ends: data_wait, forward, backward, optimizer."""

    def section(self, name: str) -> AbstractContextManager[None]: ...


class NoSections:
    """Listens to nothing."""

    def section(self, name: str) -> AbstractContextManager[None]:
        del name
        return nullcontext()


no_sections = NoSections()


class NonFiniteLoss(PilotkitError):
    """The loss or the gradient norm is infinite or NaN. Raised by every rank in the same step."""

    def __init__(self, *, step: int, rank: int | None, quantity: str, value: float) -> None:
        """`rank` is the first rank where it was seen. None: gradients were already those of all ranks together, which
        no longer tell where it came from."""
        self.step = step
        self.rank = rank
        where = "over all ranks together" if rank is None else f"first on rank {rank}"
        super().__init__(f"step {step}: the {quantity} is {value} ({where}); every rank stops here")


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step gave. Losses and tokens are over all ranks, rows are this rank's."""

    step: int
    """Number of this step; the first is 1."""
    loss: float
    """Mean over micro-batches and ranks."""
    grad_norm: float | None
    """Norm of all gradients before clipping; None when nothing is clipped."""
    lr: float
    """Learning rate that this step used."""
    num_tokens: int
    row_ids: tuple[int, ...]
    skipped: bool
    """The loss scaler found an overflow: weights and learning rate stayed as they were."""


class Trainer:
    """Model, optimizer and data of one rank, and how far they are. `checkpoint` saves and restores its attributes."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler,
        scaler: torch.amp.GradScaler | None,
        precision: PrecisionPolicy,
        train_rows: RowStream,
        eval_dataset: RowSource,
        device: torch.device,
        grad_accum_steps: int,
        max_grad_norm: float | None,
        strategy: str,
        find_unused_parameters: bool,
        sync_each_micro_batch: bool = False,
        rank: int,
        world_size: int,
        micro_batch_size: int,
        seq_len: int,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self.train_rows = train_rows
        self.device = device
        self.rank = rank
        self.world_size = world_size
        self.step = 0
        self.tokens_seen = 0
        self.num_skipped_steps = 0
        self._precision = precision
        self._eval_dataset = eval_dataset
        self._grad_accum_steps = grad_accum_steps
        self._max_grad_norm = max_grad_norm
        self._strategy = strategy
        self._sync_each_micro_batch = sync_each_micro_batch
        self._micro_batch_size = micro_batch_size
        self._num_tokens = micro_batch_size * seq_len * grad_accum_steps * world_size
        self._is_sharded = strategy in SHARDED
        self._same_blocks = False
        self._moving_buffers = MovingBuffers(model)
        self._unused = UnusedParameters(
            model,
            strategy=strategy,
            search=find_unused_parameters,
            adds_up_in_another_dtype=grad_accum_steps > 1
            and not sync_each_micro_batch
            and precision.compute_dtype != precision.reduce_dtype,
        )

    def train_step(self, sections: Sections = no_sections) -> StepResult:
        """One optimizer step over grad_accum_steps micro-batches.

        Raises NonFiniteLoss on all ranks together, and ConfigError when a strategy would go wrong over a parameter
        that got no gradient. A loss that is not finite passes while the scaler answers it by a skipped step.
        """
        lr = float(self.optimizer.param_groups[0]["lr"])
        self.model.train()
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        row_ids: list[int] = []
        for index in range(self._grad_accum_steps):
            with sections.section("data_wait"):
                loaded = self.train_rows.next()
                batch = self._to_device(loaded.tensors)
            row_ids.extend(loaded.row_ids)
            loss += self._forward_backward(batch, is_last=index == self._grad_accum_steps - 1, sections=sections)
        self._unused.check(step=self.step + 1)
        with sections.section("optimizer"):
            grad_norm, skipped = self._update()
        self.step += 1
        self.tokens_seen += self._num_tokens
        mean_loss = self._agree(loss / self._grad_accum_steps, grad_norm=grad_norm, skipped=skipped)
        self._moving_buffers.agree()
        return StepResult(self.step, mean_loss, grad_norm, lr, self._num_tokens, tuple(row_ids), skipped)

    def unreached(self) -> dict[str, Any]:
        """In how many of the steps so far each parameter that wants a gradient got none, on this rank."""
        return {"num_steps": self._unused.num_steps, "parameters": dict(self._unused.missed)}

    @torch.no_grad()
    def evaluate(self, num_batches: int) -> float:
        """Mean loss over `num_batches` micro-batches of every rank: the same rows each time, without dropout.

        Leaves random states, the position in the training data and each module's mode as they were.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        with preserved_random_state(self.device):
            self.model.eval()
            for index in range(num_batches):
                with self._precision.autocast(self.device, sharded=self._is_sharded):
                    loss += self.model(**self._eval_batch(index)).loss.float()
            free_gathered_parameters(self.model, strategy=self._strategy)
        for module, training in modes:
            module.training = training
        return float(gather_scalar(loss / num_batches).mean())

    @torch.no_grad()
    def evaluate_first_batch(self) -> tuple[dict[str, Tensor], float]:
        """This rank's first evaluation batch and its own loss, for a reader that has neither our data nor our ranks."""
        batch = self._eval_batch(0)
        was_training = self.model.training
        with preserved_random_state(self.device):
            self.model.eval()
            with self._precision.autocast(self.device, sharded=self._is_sharded):
                loss = float(self.model(**batch).loss)
            free_gathered_parameters(self.model, strategy=self._strategy)
        self.model.train(was_training)
        return batch, loss

    def _eval_batch(self, index: int) -> dict[str, Tensor]:
        start = (index * self.world_size + self.rank) * self._micro_batch_size
        rows = [row % len(self._eval_dataset) for row in range(start, start + self._micro_batch_size)]
        return self._to_device(read_rows(self._eval_dataset, rows))

    def _to_device(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()}

    def _forward_backward(self, batch: dict[str, Tensor], *, is_last: bool, sections: Sections) -> Tensor:
        """The micro-batch's own loss, detached; gradients are those of its share in the step's mean."""
        is_reduced = is_last or self._sync_each_micro_batch or self._unused.reduces_each_micro_batch
        with gradient_sync(self.model, strategy=self._strategy, is_last=is_reduced):
            with sections.section("forward"), self._precision.autocast(self.device, sharded=self._is_sharded):
                loss = _loss_of(self._forward(batch))
            with sections.section("backward"), self._unused.explained(step=self.step + 1):
                share = loss / self._grad_accum_steps
                backward: Any = share if self.scaler is None else self.scaler.scale(share)
                backward.backward()
        return loss.detach().float()

    def _forward(self, batch: dict[str, Tensor]) -> Any:
        if not self._is_sharded:
            with explained_dtypes(self.model, refusal=self._two_dtypes):
                return self.model(**batch)
        with ExitStack() as watched:
            watched.enter_context(explained_dtypes(self.model, refusal=partial(refuse_sharded_dtypes, self._strategy)))
            if not self._same_blocks:
                watched.enter_context(SameBlocksOnEveryRank(self.model, strategy=self._strategy))
                self._same_blocks = True
            return self.model(**batch)

    def _two_dtypes(self, met: str) -> ConfigError:
        """Without sharding: what is stored has one dtype, and a tensor that the forward makes may have another."""
        dtype = self._precision.param_dtype
        fix = (
            f"{met}: a forward that casts up (double(), float()), a constant, or a tensor that is no buffer keeps its "
            f"own dtype, and parameters are {dtype}; cast it before that module (x.to(layer.weight.dtype)), or make it "
            "a buffer (register_buffer), which follows the precision"
        )
        return ConfigError([Problem("model.factory", "a model whose forward mixes dtypes", f"{dtype} throughout", fix)])

    def _update(self) -> tuple[float | None, bool]:
        """Clip, step, clear. The scheduler moves only with the weights, so a skipped step shifts no learning rate."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = None if self._max_grad_norm is None else self._clip(self._max_grad_norm)
        skipped = False
        if self.scaler is None:
            self.optimizer.step()
        else:
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = self.scaler.get_scale() < scale
        self.optimizer.zero_grad(set_to_none=True)
        if skipped:
            self.num_skipped_steps += 1
        else:
            self.scheduler.step()
        return (None if norm is None else float(norm)), skipped

    def _clip(self, max_norm: float) -> Tensor:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _agree(self, loss: Tensor, *, grad_norm: float | None, skipped: bool) -> float:
        """The mean over ranks; every rank sees every rank's loss, so all raise or none does."""
        losses = gather_scalar(loss)
        mean = float(losses.mean())
        # A scale below 1 means that the overflow is not the scale's doing: the scaler would skip for ever.
        if skipped and self.scaler is not None and self.scaler.get_scale() >= 1.0:
            return mean
        if not math.isfinite(mean):
            bad = (~losses.isfinite()).nonzero()
            rank = int(bad[0]) if len(bad) else 0
            raise NonFiniteLoss(step=self.step, rank=rank, quantity="loss", value=float(losses[rank]))
        if grad_norm is not None and not math.isfinite(grad_norm):
            source = self.rank if self.world_size == 1 else None
            raise NonFiniteLoss(step=self.step, rank=source, quantity="gradient norm", value=grad_norm)
        return mean


def _loss_of(output: Any) -> Tensor:
    """The contract of every model. Raises ConfigError in its words, where torch would speak of a missing attribute."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    given = f"a model whose output is a {type(output).__name__} with loss {loss if loss is None else tuple(loss.shape)}"
    allowed = "model(**batch).loss is a tensor with one element"
    raise ConfigError([Problem("model.factory", given, allowed, "return an object with a scalar .loss from forward")])
