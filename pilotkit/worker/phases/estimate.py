"""Phase `estimate`: from a configuration to a workload, and from that to a prediction. One process, no device.

The only place where `estimate` meets `PilotConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pilotkit.config.schema import PilotConfig
from pilotkit.estimate.grid import NotAffine, fit
from pilotkit.estimate.predict import Estimator
from pilotkit.estimate.problems import EstimateError
from pilotkit.estimate.workload import Workload
from pilotkit.train.factories import resolve
from pilotkit.worker.build import precision_policy
from pilotkit.worker.session import Session

HUGGINGFACE = "pilotkit.train.models.huggingface:build"


def estimate(session: Session) -> dict[str, Any]:
    """Predict the run's own shape, and the grid where one is asked for.

    Raises EstimateError for a model that cannot be traced.
    """
    train, options = session.config.train, session.config.estimate
    if session.config.precision.float8 != "none":
        raise EstimateError(
            "float8 layers are not traced in this version: estimate the run with precision=bf16_mixed, and measure "
            "precision=fp8 on the device"
        )
    session.progress(0, 2, label="estimate")
    estimator = Estimator(workload_of(session))
    result = estimator.predict(micro_batch_size=train.micro_batch_size, seq_len=train.seq_len).to_dict()
    session.progress(1, 2, label="estimate")
    if options.micro_batch_sizes or options.seq_lens:
        result["grid"] = _grid(session, estimator)
    session.progress(2, 2, label="estimate")
    return result


def _grid(session: Session, estimator: Estimator) -> dict[str, Any]:
    """Peaks of every point, and how they were found: fitted and verified, or each traced."""
    train, options = session.config.train, session.config.estimate
    expandable = options.allocator == "expandable"
    shapes = [
        (micro_batch_size, seq_len)
        for micro_batch_size in options.micro_batch_sizes or [train.micro_batch_size]
        for seq_len in options.seq_lens or [train.seq_len]
    ]
    try:
        grid = fit(estimator)
    except NotAffine as reason:
        points = [_traced_point(estimator, *shape, expandable=expandable) for shape in shapes]
        return {"points": points, "how": f"every point traced: {reason}"}
    sizes = np.array(shapes, dtype=np.float64)
    peaks = grid.peak_allocated_bytes(sizes[:, 0], sizes[:, 1])
    points = [
        {
            "micro_batch_size": micro_batch_size,
            "seq_len": seq_len,
            "peak_allocated_bytes": round(float(peak)),
            "peak_reserved_bytes": grid.peak_reserved_bytes(
                micro_batch_size=micro_batch_size, seq_len=seq_len, expandable=expandable
            ),
        }
        for (micro_batch_size, seq_len), peak in zip(shapes, peaks, strict=True)
    ]
    return {"points": points, "how": "fitted to a few small traces, verified at shapes that were not fitted"}


def _traced_point(estimator: Estimator, micro_batch_size: int, seq_len: int, *, expandable: bool) -> dict[str, int]:
    prediction = estimator.predict(micro_batch_size=micro_batch_size, seq_len=seq_len)
    replayed = prediction.expandable if expandable else prediction.native
    return {
        "micro_batch_size": micro_batch_size,
        "seq_len": seq_len,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "peak_reserved_bytes": replayed.peak_reserved_bytes,
    }


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
