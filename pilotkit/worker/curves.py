"""One compared run of `numerics`: a few optimizer steps with everything that precision could spoil looked at.

Called by the phases of `numerics`. Times nothing: every instrument here slows the steps down.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pilotkit.config.run_sections import PrecisionConfig
from pilotkit.config.schema import PilotConfig
from pilotkit.meter.dtypes import DtypeTable, DtypeWatch
from pilotkit.meter.finite import FiniteWatch, NonFinite
from pilotkit.meter.updates import UpdateWatch
from pilotkit.train.trainer import NonFiniteLoss, Sections, Trainer, no_sections
from pilotkit.worker.build import Built, build
from pilotkit.worker.session import Session

FP32 = PrecisionConfig(
    name="fp32", param_dtype="float32", compute_dtype="float32", reduce_dtype="float32", flops_format="fp32"
)
UseGradient = Callable[[str, Tensor], None]


@dataclass
class Curve:
    """What one run left. Losses and norms are None where they were not finite, since JSON has no NaN."""

    losses: list[float | None] = field(default_factory=list)
    grad_norms: list[float | None] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    events: list[NonFinite] = field(default_factory=list)
    ended: str = ""
    eval_loss: float | None = None
    lost_share: float = 0.0
    stuck: list[str] = field(default_factory=list)
    digest: str = ""
    dtypes: DtypeTable = field(default_factory=DtypeTable)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the result."""
        return dataclasses.asdict(self)


def run_curve(
    session: Session,
    *,
    precision: PrecisionConfig,
    use_gradient: UseGradient,
    label: str,
    row_seed: int | None = None,
) -> Curve:
    """Train `numerics.num_steps` steps from the run's first weights. `use_gradient` is told each parameter's first
    gradient by name, after accumulation and without the loss scale. Nothing is compiled: the watches look at modules
    and operators, and compiled code has neither."""
    config = constant_rate(session.config, precision=precision, mode="none")
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, compile=False))
    built = build(dataclasses.replace(session, config=config), strategy="single", row_seed=row_seed)
    try:
        return _run(session, built, use_gradient=use_gradient, label=label)
    finally:
        built.close()


def constant_rate(config: PilotConfig, *, precision: PrecisionConfig, mode: str) -> PilotConfig:
    """The run with a constant learning rate: in the first steps of a warm-up nothing would move."""
    return dataclasses.replace(
        config,
        precision=precision,
        activation_checkpointing=dataclasses.replace(config.activation_checkpointing, mode=mode),
        scheduler=dataclasses.replace(config.scheduler, name="constant", lr_warmup_steps=0),
    )


def _run(session: Session, built: Built, *, use_gradient: UseGradient, label: str) -> Curve:
    trainer, curve = built.trainer, Curve()
    num_steps = session.config.numerics.num_steps
    with FiniteWatch(trainer.model) as finite, UpdateWatch(trainer.model, trainer.optimizer) as updates:
        for step in range(1, num_steps + 1):
            finite.begin_step(step)
            with ExitStack() as first_only:
                if step == 1:
                    watch = first_only.enter_context(DtypeWatch(trainer.model))
                    curve.dtypes = watch.table
                listener = _Gradients(trainer, use_gradient) if step == 1 else no_sections
                if not _step(trainer, curve, listener):
                    break
            session.progress(step, num_steps, label=label)
        curve.events = finite.events
        curve.lost_share, curve.stuck = updates.lost_share, updates.stuck()
    if not curve.ended:
        curve.eval_loss = _finite(trainer.evaluate(session.config.train.num_eval_batches))
    curve.digest = _digest(trainer)
    return curve


def _step(trainer: Trainer, curve: Curve, listener: Sections) -> bool:
    """Take one step and note it; False when it ended the run."""
    if trainer.scaler is not None:
        curve.scales.append(float(trainer.scaler.get_scale()))
    try:
        result = trainer.train_step(listener)
    except NonFiniteLoss as error:
        curve.ended = str(error)
        return False
    curve.losses.append(_finite(result.loss))
    curve.grad_norms.append(None if result.grad_norm is None else _finite(result.grad_norm))
    curve.skipped.append(result.skipped)
    return True


@dataclass
class _Gradients:
    """A listener to the sections of one step: hands each gradient on when the optimizer's begins, where it holds all
    micro-batches and is neither clipped nor without its scale. One that no micro-batch reached (an expert without a
    row) is zeros: the other run may have one."""

    trainer: Trainer
    use_gradient: UseGradient

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        if name == "optimizer":
            self._hand_on()
        yield

    def _hand_on(self) -> None:
        scale = float(self.trainer.scaler.get_scale()) if self.trainer.scaler is not None else 1.0
        for name, parameter in self.trainer.model.named_parameters():
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.use_gradient(name, gradient.detach().float() / scale)


def _digest(trainer: Trainer) -> str:
    """SHA-256 over every parameter: two runs with one digest are the same to the last bit."""
    digest = hashlib.sha256()
    for name, parameter in sorted(trainer.model.state_dict().items()):
        if isinstance(parameter, Tensor) and parameter.numel():
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
