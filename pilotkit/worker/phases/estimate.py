"""Phase `estimate`: from a configuration to a workload, and from that to a prediction. One process, no device.

The only place where `estimate` meets `PilotConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from pilotkit.config.schema import PilotConfig
from pilotkit.estimate.predict import predict
from pilotkit.estimate.workload import Workload
from pilotkit.train.factories import resolve
from pilotkit.worker.build import precision_policy
from pilotkit.worker.session import Session

HUGGINGFACE = "pilotkit.train.models.huggingface:build"


def estimate(session: Session) -> dict[str, Any]:
    """Predict the run's own shape. Raises EstimateError for a model that cannot be traced."""
    config = session.config
    session.progress(0, 1, label="estimate")
    prediction = predict(
        workload_of(session), micro_batch_size=config.train.micro_batch_size, seq_len=config.train.seq_len
    )
    session.progress(1, 1, label="estimate")
    return prediction.to_dict()


def workload_of(session: Session) -> Workload:
    """The intended run as `estimate` traces it. Weights are never read: random ones have the same shapes."""
    config, arithmetic = session.config, session.arithmetic
    optimizer = config.optimizer
    return Workload(
        build_model=partial(resolve(config.model.factory, key="model.factory"), **_model_kwargs(config)),
        read_row=partial(_read_row, config),
        strategy=config.parallelism.strategy,
        dp_replicate=arithmetic.dp_replicate,
        dp_shard=arithmetic.dp_shard,
        precision=precision_policy(config),
        activation_checkpointing=config.activation_checkpointing.mode,
        blocks=config.model.blocks,
        optimizer={
            "name": optimizer.name,
            "lr": optimizer.lr,
            "betas": tuple(optimizer.betas),
            "eps": optimizer.eps,
            "momentum": optimizer.momentum,
            "weight_decay": optimizer.weight_decay,
            "implementation": optimizer.implementation,
        },
        reshard_after_forward=config.parallelism.reshard_after_forward,
        grad_accum_steps=arithmetic.grad_accum_steps,
        max_grad_norm=config.train.max_grad_norm,
        deterministic=config.train.deterministic,
        device_type=config.hardware.device_type,
    )


def _model_kwargs(config: PilotConfig) -> dict[str, Any]:
    kwargs = dict(config.model.kwargs)
    if config.model.factory == HUGGINGFACE:
        kwargs["weights"] = "random"
    return kwargs


def _read_row(config: PilotConfig, seq_len: int) -> Mapping[str, Tensor]:
    factory = resolve(config.data.factory, key="data.factory")
    row: Mapping[str, Tensor] = factory(
        split="train", **{"seq_len": seq_len, "seed": config.train.seed, **config.data.kwargs}
    )[0]
    return row
