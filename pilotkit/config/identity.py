"""Which part of a configuration identifies the run, as opposed to how one stage looks at it.

Two records with the same digest speak about the same intended run: a plan may use them together.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from pilotkit.config.batch import batch_arithmetic
from pilotkit.config.schema import PilotConfig

IDENTITY_SECTIONS = (
    "model",
    "data",
    "train",
    "optimizer",
    "scheduler",
    "parallelism",
    "precision",
    "activation_checkpointing",
    "hardware",
    "image",
)
# Prose about a figure changes nothing, and what an estimate assumes of a device nothing that was measured there. How
# rows reach the loader does: it changes the speed that a plan rests on.
NOT_IDENTITY = {"hardware": ("sources", "efficiencies")}


def identity_of(config: PilotConfig) -> dict[str, Any]:
    """The plain sections that identify the run."""
    plain = dataclasses.asdict(config)
    identity = {name: plain[name] for name in IDENTITY_SECTIONS}
    for section, fields in NOT_IDENTITY.items():
        identity[section] = {key: value for key, value in identity[section].items() if key not in fields}
    return identity


def traced_digest(config: PilotConfig) -> str:
    """The same for two runs that one trace serves: they differ in micro-batch size and length, or in an accelerator's
    figures, which a trace knows nothing of."""
    plain = identity_of(config)
    for name in ("micro_batch_size", "seq_len"):
        del plain["train"][name]
    plain["hardware"] = {name: plain["hardware"][name] for name in ("device_type", "device_count")}
    # Of a global batch that was given, another micro-batch makes another number of micro-batches.
    plain["grad_accum_steps"] = batch_arithmetic(config).grad_accum_steps
    plain["fallback"] = config.estimate.fallback
    plain["attention"] = config.estimate.attention
    return _digest(plain)


def config_digest(config: PilotConfig) -> str:
    """SHA-256 of the identity as canonical JSON, in hex."""
    return _digest(identity_of(config))


def _digest(plain: dict[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
