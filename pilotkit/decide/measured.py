"""What was measured of a model, found in records. Called by stage `estimate`, which puts it beside an estimate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.study import Candidate
from pilotkit.records.record import Record

# Two runs that agree in these are traced by one model at two shapes.
SAME_MODEL = ("model", "optimizer", "precision", "activation_checkpointing")
SAME_STEP = ("max_grad_norm", "deterministic", "compile", "compile_scope")
STRATEGIES = ("single", "ddp", "fsdp")
"""Whose mesh follows from the number of devices: what a row of a table can name."""
HSDP = "hsdp"
"""Its mesh stands in the record of its pilot."""
FIGURES = ("step_seconds", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")


@dataclass(frozen=True)
class Measurement:
    """One measured run. `figures` are those of FIGURES that it has."""

    key: str
    source: str
    measured_at: str
    shape: dict[str, Any]
    figures: dict[str, float]
    spread: float = 0.0
    config_digest: str = ""

    def asked(self) -> dict[str, Any]:
        """What the worker needs to trace it."""
        return {"key": self.key, **self.shape}


def measurements_of(records: Iterable[Record], *, like: Mapping[str, Any]) -> list[Measurement]:
    """Runs of `measure` and `pilot` on the hardware and with the model of `like`, at any shape."""
    wanted = _model_of(like)
    found: list[Measurement] = []
    for record in records:
        if record.stage in ("measure", "pilot") and record.config and _model_of(record.config) == wanted:
            found += _of_record(record)
    return found


def family_of(config: Mapping[str, Any]) -> str:
    """What models are called that are built alike: `llama`, or the name of one that comes from a hub."""
    module = str(config["model"]["factory"]).partition(":")[0].rpartition(".")[2]
    name = str(config["model"].get("name") or "")
    return name.rstrip("/").rpartition("/")[2] or module if module == "huggingface" else module


def _model_of(config: Mapping[str, Any]) -> dict[str, Any]:
    train = config.get("train") or {}
    return {
        "hardware": (config.get("hardware") or {}).get("name"),
        "factory": (config.get("data") or {}).get("factory"),
        **{name: config.get(name) for name in SAME_MODEL},
        **{name: train.get(name) for name in SAME_STEP},
    }


def _of_record(record: Record) -> Iterator[Measurement]:
    candidate = Candidate(record.config, {})
    if record.stage == "measure":
        strategies = {"single": ("", 1)} if "step_seconds" in record.metrics else {}
    else:
        devices = int(record.metrics.get("world_size", 1))
        strategies = {
            name: (f"{name}_", devices)
            for name in (*STRATEGIES, HSDP)
            if name != "single" and f"{name}_step_seconds" in record.metrics and devices > 1
        }
    for strategy, (prefix, num_devices) in strategies.items():
        figures = {name: record.metrics[prefix + name] for name in FIGURES if record.metrics.get(prefix + name)}
        yield Measurement(
            key=f"{record.run_id}-{strategy}",
            source=f"{record.stage} {record.run_id}",
            measured_at=record.started_at,
            shape={
                "strategy": strategy,
                "num_devices": num_devices,
                "micro_batch_size": candidate.micro_batch_size,
                "seq_len": candidate.seq_len,
                "grad_accum_steps": candidate.grad_accum_steps,
                **({"dp_shard": record.details["strategies"][HSDP]["mesh"]["dp_shard"]} if strategy == HSDP else {}),
            },
            figures=figures,
            spread=_standard_error(record.metrics, prefix),
            config_digest=record.config_digest,
        )


def _standard_error(metrics: Mapping[str, float], prefix: str) -> float:
    count = metrics.get(f"{prefix}num_measured_steps") or 1.0
    return metrics.get(f"{prefix}step_spread", 0.0) / math.sqrt(count)
