"""Which part of a configuration identifies the run, as opposed to how one stage looks at it.

Two records with the same digest speak about the same intended run: a plan may use them together.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

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
# Prose about a figure changes nothing. How rows reach the loader does: it changes the speed that a plan rests on.
NOT_IDENTITY = {"hardware": ("sources",)}


def identity_of(config: PilotConfig) -> dict[str, Any]:
    """The plain sections that identify the run."""
    plain = dataclasses.asdict(config)
    identity = {name: plain[name] for name in IDENTITY_SECTIONS}
    for section, fields in NOT_IDENTITY.items():
        identity[section] = {key: value for key, value in identity[section].items() if key not in fields}
    return identity


def config_digest(config: PilotConfig) -> str:
    """SHA-256 of the identity as canonical JSON, in hex."""
    text = json.dumps(identity_of(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
