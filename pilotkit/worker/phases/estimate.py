"""Phases `estimate` and `estimate_measured`: from a configuration to a workload, and from that to a prediction.

One process, no device. The only place where `estimate` meets `PilotConfig`.
"""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pilotkit.config.schema import PilotConfig
from pilotkit.estimate.analytic import analytic
from pilotkit.estimate.grid import Grid, NotAffine, fit, holds_at
from pilotkit.estimate.helper import Helper
from pilotkit.estimate.inverse import device_counts, held_of, largest_micro_batch, longest_sequence
from pilotkit.estimate.model import FakeModel
from pilotkit.estimate.points import fit_points, predict_all
from pilotkit.estimate.predict import Estimator, Shape
from pilotkit.estimate.problems import EstimateError
from pilotkit.estimate.workload import Workload
from pilotkit.train import adamw8bit
from pilotkit.train.factories import bound
from pilotkit.worker.build import data_factory, precision_policy
from pilotkit.worker.session import Session

FEWEST_FITTED = 8
"""A fit takes a dozen short traces: for fewer shapes than this, each is traced."""
FITTED_AT_ONCE = 64
HUGGINGFACE = "pilotkit.train.models.huggingface:build"


def estimate(session: Session) -> dict[str, Any]:
    """Predict the run's own shape, and answer what else is asked: the grid, what fits, other numbers of devices.

    A model that cannot be traced raises EstimateError, or where `estimate.fallback` says so is counted, its own shape
    alone.
    """
    if session.config.precision.float8 != "none":
        raise EstimateError(
            "float8 layers are not traced in this version: estimate the run with precision=bf16_mixed, and measure "
            "precision=fp8 on the device"
        )
    asked = _asked(session)
    gc.freeze()  # a trace collects garbage before it starts: what was imported need not be searched each time
    session.progress(0, 2, label="estimate")
    source = FakeModel(workload_of(session))
    with Helper(source) as helper:
        estimator = Estimator(source.workload, source=source, helper=helper)
        result = _estimate(session, estimator, limit=asked["limit_bytes"])
        if asked["shapes"] and result["details"].get("method") != "analytic":
            result["shapes"] = _other_shapes(session, estimator, [(batch, length) for batch, length in asked["shapes"]])
        return result


def _estimate(session: Session, estimator: Estimator, *, limit: float) -> dict[str, Any]:
    train, options = session.config.train, session.config.estimate
    shape = {"micro_batch_size": train.micro_batch_size, "seq_len": train.seq_len}
    try:
        result = estimator.predict(**shape, both_attentions=True).to_dict()
    except EstimateError as error:
        if options.fallback != "analytic":
            raise
        return analytic(estimator.source, reason=str(error), **shape)
    session.progress(1, 2, label="estimate")
    inverse = options.largest_micro_batch or options.longest_sequence
    if options.micro_batch_sizes or options.seq_lens or inverse:
        grid, how = _fitted(estimator)
        if options.micro_batch_sizes or options.seq_lens:
            result["grid"] = {"points": list(_points(session, estimator, grid)), "how": how}
        if inverse:
            result["answers"] = _answers(session, estimator, grid, limit=limit)
    if options.max_devices is not None:
        result["by_devices"] = list(_by_devices(session, estimator, most=options.max_devices))
    session.progress(2, 2, label="estimate")
    return result


def estimate_measured(session: Session) -> dict[str, Any]:
    """Predict every shape that was measured, for comparison. Raises as `estimate`."""
    shapes = _asked(session)["measured"]
    gc.freeze()
    source = FakeModel(workload_of(session))
    found: dict[str, Any] = {}
    with Helper(source) as helper:
        estimator = Estimator(source.workload, source=source, helper=helper)
        for number, shape in enumerate(shapes):
            session.progress(number, len(shapes), label="estimate what was measured")
            count, strategy = shape["num_devices"], shape["strategy"]
            shard = {"fsdp": count, "hsdp": shape.get("dp_shard", 1)}.get(strategy, 1)
            other = estimator.spread(
                strategy=strategy,
                grad_accum_steps=shape["grad_accum_steps"],
                dp_replicate=count // shard,
                dp_shard=shard,
            )
            predicted = other.predict(micro_batch_size=shape["micro_batch_size"], seq_len=shape["seq_len"]).to_dict()
            found[shape["key"]] = {name: predicted[name] for name in ("metrics", "work")}
    return found


def _asked(session: Session) -> dict[str, Any]:
    """What the stage asks beside the configuration."""
    found: dict[str, Any] = json.loads(session.run_dir.asked.read_text(encoding="utf-8"))
    return found


def _fitted(estimator: Estimator) -> tuple[Grid | None, str]:
    """The grid, and how its points are found; None where shapes differ too much to be fitted."""
    try:
        return fit(estimator), "fitted to a few small traces, verified at shapes that were not fitted"
    except NotAffine as reason:
        return None, f"every point traced: {reason}"


def _points(session: Session, estimator: Estimator, grid: Grid | None) -> Iterator[dict[str, int]]:
    """Peaks of every point: from the fit, or each traced."""
    train, options = session.config.train, session.config.estimate
    expandable = options.allocator == "expandable"
    shapes = [
        (micro_batch_size, seq_len)
        for micro_batch_size in options.micro_batch_sizes or [train.micro_batch_size]
        for seq_len in options.seq_lens or [train.seq_len]
    ]
    found: dict[Shape, tuple[int, int]] = {}
    fitted = [shape for shape in shapes if holds_at(shape[1])]
    if grid is not None and fitted:
        sizes = np.array(fitted, dtype=np.float64)
        peaks = grid.peak_allocated_bytes(sizes[:, 0], sizes[:, 1])
        reserved = grid.all_peak_reserved_bytes(fitted, expandable=expandable, helper=estimator.helper)
        found = {shape: (round(float(peak)), held) for shape, peak, held in zip(fitted, peaks, reserved, strict=True)}
    for shape in shapes:
        allocated, held = found[shape] if shape in found else _traced_peaks(estimator, shape, expandable=expandable)
        yield {
            "micro_batch_size": shape[0],
            "seq_len": shape[1],
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": held,
        }


def _answers(session: Session, estimator: Estimator, grid: Grid | None, *, limit: float) -> dict[str, Any]:
    """What fits into the limit, bytes that the allocator may hold."""
    train, options = session.config.train, session.config.estimate
    allocator = "none" if session.config.hardware.device_type == "cpu" else options.allocator
    held = held_of(estimator, grid, allocator=allocator)
    answers: dict[str, Any] = {}
    if options.largest_micro_batch:
        lengths = options.seq_lens or [train.seq_len]
        answers["largest_micro_batch"] = [largest_micro_batch(held, length, limit=limit) for length in lengths]
    if options.longest_sequence:
        sizes = options.micro_batch_sizes or [train.micro_batch_size]
        answers["longest_sequence"] = [longest_sequence(held, size, limit=limit, estimator=estimator) for size in sizes]
    return answers


def _by_devices(session: Session, estimator: Estimator, *, most: int) -> Iterator[dict[str, Any]]:
    """The run's own shape over other numbers of devices. A global batch that was given stays what it is."""
    train, strategy = session.config.train, session.config.parallelism.strategy
    for count in device_counts(most=most, devices_per_node=session.arithmetic.nproc_per_node):
        accumulated = session.arithmetic.grad_accum_steps
        if train.global_batch_size is not None:
            accumulated, rest = divmod(train.global_batch_size, train.micro_batch_size * count)
            if rest or not accumulated:
                continue
        # One device's run has no strategy of its own; an optimizer of 8 bits is not sharded.
        several = "ddp" if session.config.optimizer.name == adamw8bit.NAME else "fsdp"
        name = "single" if count == 1 else several if strategy == "single" else strategy
        shard = {"fsdp": count, "hsdp": min(session.arithmetic.dp_shard, count)}.get(name, 1)
        if count % shard:
            continue
        other = estimator.spread(
            strategy=name, dp_replicate=count // shard, dp_shard=shard, grad_accum_steps=accumulated
        )
        found = other.predict(micro_batch_size=train.micro_batch_size, seq_len=train.seq_len).to_dict()
        yield {
            "num_devices": count,
            "strategy": name,
            "grad_accum_steps": accumulated,
            "metrics": found["metrics"],
            "work": found["work"],
        }


def _traced_peaks(estimator: Estimator, shape: Shape, *, expandable: bool) -> tuple[int, int]:
    """Allocated and reserved, of a trace of this very shape."""
    prediction = estimator.predict(micro_batch_size=shape[0], seq_len=shape[1])
    replayed = prediction.expandable if expandable else prediction.native
    return prediction.peak_allocated_bytes, replayed.peak_reserved_bytes


def _other_shapes(session: Session, estimator: Estimator, shapes: Sequence[Shape]) -> list[dict[str, Any]]:
    """The same run at the shapes of a sweep's other points, each as `estimate` would tell it of its own.

    One that cannot be traced is left out: its own point will say why.
    """
    found: dict[Shape, dict[str, Any]] = {}
    if len(shapes) >= FEWEST_FITTED:
        with suppress(NotAffine):
            points = fit_points(estimator)
            fitted = [shape for shape in shapes if holds_at(shape[1])]
            for start in range(0, len(fitted), FITTED_AT_ONCE):
                session.progress(start, len(shapes), label="estimate the sweep's points")
                some = fitted[start : start + FITTED_AT_ONCE]
                found |= zip(some, predict_all(points, some, helper=estimator.helper), strict=True)
    for shape in shapes:
        if shape not in found:
            session.progress(len(found), len(shapes), label="estimate the sweep's points, each by a trace")
            with suppress(EstimateError):
                batch, length = shape
                prediction = estimator.predict(micro_batch_size=batch, seq_len=length, both_attentions=True)
                found[shape] = prediction.to_dict()
    return [
        {"micro_batch_size": batch, "seq_len": length, "result": result} for (batch, length), result in found.items()
    ]


def workload_of(session: Session) -> Workload:
    """The intended run as `estimate` traces it. Weights are never read: random ones have the same shapes."""
    config, arithmetic = session.config, session.arithmetic
    return Workload(
        build_model=bound(config.model.factory, section="model", kwargs=_model_kwargs(config)),
        read_row=partial(_read_row, config),
        strategy=config.parallelism.strategy,
        dp_replicate=arithmetic.dp_replicate,
        dp_shard=arithmetic.dp_shard,
        precision=precision_policy(config),
        activation_checkpointing=config.activation_checkpointing.mode,
        keep_every=config.activation_checkpointing.keep_every,
        blocks=config.model.blocks,
        optimizer=dataclasses.asdict(config.optimizer),
        reshard_after_forward=config.parallelism.reshard_after_forward,
        grad_accum_steps=arithmetic.grad_accum_steps,
        sync_each_micro_batch=config.parallelism.sync_each_micro_batch,
        max_grad_norm=config.train.max_grad_norm,
        deterministic=config.train.deterministic,
        device_type=config.hardware.device_type,
        attention=config.estimate.attention,
        compile=config.train.compile,
        compile_scope=config.train.compile_scope,
    )


def _model_kwargs(config: PilotConfig) -> dict[str, Any]:
    kwargs = dict(config.model.kwargs)
    if config.model.factory == HUGGINGFACE:
        kwargs["weights"] = "random"
    return kwargs


def _read_row(config: PilotConfig, seq_len: int) -> Mapping[str, Tensor]:
    row: Mapping[str, Tensor] = data_factory(config, split="train", seq_len=seq_len)()[0]
    return row
