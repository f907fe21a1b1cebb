"""What differs between two locks: each field as it was and as it is, and which evidence that voids.

Called by the gate of the stages and by `replay`. Compares what identifies a run and nothing else; decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pilotkit.provenance.lock import identity_of_lock

NUMERICS, MEMORY, SPEED, RESTORE = GROUPS = ("numerics", "memory", "speed", "restore")
ABSENT = "absent"

# What a change of a field may have changed, the first pattern that fits. What is not listed may change everything.
_VOIDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("config.train.seed", (NUMERICS, RESTORE)),
    ("config.train.total_tokens", (NUMERICS, RESTORE)),  # the length of the schedule
    ("config.train.eval_every_steps", (SPEED,)),
    ("config.train.num_eval_batches", (NUMERICS, SPEED)),
    ("config.train.checkpoint_every_steps", (SPEED,)),
    ("config.train.max_grad_norm", (NUMERICS, RESTORE)),
    ("config.train.deterministic", (NUMERICS, SPEED, RESTORE)),
    ("config.optimizer.implementation", (MEMORY, SPEED, RESTORE)),
    ("config.optimizer.name", GROUPS),
    ("config.optimizer.*", (NUMERICS, RESTORE)),
    ("config.scheduler.*", (NUMERICS, RESTORE)),
    ("config.data.num_workers", (MEMORY, SPEED)),
    ("config.data.prefetch_factor", (MEMORY, SPEED)),
    ("config.data.pin_memory", (MEMORY, SPEED)),
    ("config.activation_checkpointing.*", (MEMORY, SPEED)),
    ("config.hardware.*", (MEMORY, SPEED)),
    ("config.image", ()),  # a name; what it stands for is container.digest
    ("data.*", (NUMERICS, SPEED, RESTORE)),
    ("environment.*VISIBLE_DEVICES", (MEMORY, SPEED)),
    ("environment.CUDA_DEVICE_ORDER", (MEMORY, SPEED)),
    ("environment.*ALLOC_CONF", (MEMORY, SPEED)),
    ("environment.PYTORCH_NO_CUDA_MEMORY_CACHING", (MEMORY, SPEED)),
    ("environment.MALLOC_*", (MEMORY, SPEED)),
    ("environment.NCCL_*", (NUMERICS, SPEED)),  # ring or tree: another order of additions
    ("environment.RCCL_*", (NUMERICS, SPEED)),
    ("environment.GLOO_*", (SPEED,)),
    ("environment.CUDA_LAUNCH_BLOCKING", (SPEED,)),
    ("environment.CUDA_MODULE_LOADING", (MEMORY, SPEED)),
    ("environment.PYTHONHASHSEED", (NUMERICS, RESTORE)),
    ("environment.*_OFFLINE", (RESTORE,)),
    ("environment.TOKENIZERS_PARALLELISM", (SPEED,)),
    ("environment.*", (NUMERICS, SPEED, RESTORE)),
    ("machine.cores", (SPEED,)),
    ("machine.*", (NUMERICS, MEMORY, SPEED)),
)


@dataclass(frozen=True)
class Drift:
    """One field. `voids` are those of `GROUPS` that rest on it; `reason` says why it is allowed, empty when not."""

    field: str
    was: str
    now: str
    voids: tuple[str, ...]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.was} -> {self.now}"


@dataclass(frozen=True)
class Comparison:
    """What differs, what of it was allowed with a reason, and what could not be compared here."""

    drift: tuple[Drift, ...] = ()
    allowed: tuple[Drift, ...] = ()
    not_compared: tuple[str, ...] = ()

    def by_group(self) -> dict[str, list[str]]:
        """The lines of `drift` under each kind of evidence that they void; a field may stand under several."""
        return {group: lines for group in GROUPS if (lines := [str(d) for d in self.drift if group in d.voids])}

    def by_voids(self) -> dict[str, list[str]]:
        """The lines of `drift`, each once, under the kinds of evidence that they void together."""
        lines: dict[str, list[str]] = {}
        for item in self.drift:
            lines.setdefault(", ".join(item.voids), []).append(str(item))
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        return {
            "drift": [dataclasses.asdict(item) for item in self.drift],
            "voids": self.by_group(),
            "allowed": [dataclasses.asdict(item) for item in self.allowed],
            "not_compared": list(self.not_compared),
        }


def compare_locks(
    old: Mapping[str, Any], new: Mapping[str, Any], *, allow: Mapping[str, str] | None = None
) -> Comparison:
    """Compare two locks field by field.

    `allow` maps a field, or a pattern such as `packages.*`, to the reason why its drift is accepted. Devices are not
    compared where one side had none (a login node). A lock of another version differs in `lock_version` alone.
    """
    if old.get("lock_version") != new.get("lock_version"):
        was, now = (_text(lock.get("lock_version")) for lock in (old, new))
        return Comparison((Drift("lock_version", was, now, GROUPS),))
    before, after = identity_of_lock(old), identity_of_lock(new)
    not_compared: tuple[str, ...] = ()
    if before["machine"] is None or after["machine"] is None:
        if before["machine"] != after["machine"]:
            not_compared = ("machine: one of the two was looked at where there is no such device",)
        before, after = ({**side, "machine": {}} for side in (before, after))
    flat_before, flat_after = _flatten(before), _flatten(after)
    found = [
        Drift(name, flat_before.get(name, ABSENT), flat_after.get(name, ABSENT), voids_of(name))
        for name in dict.fromkeys([*flat_before, *flat_after])
        if flat_before.get(name, ABSENT) != flat_after.get(name, ABSENT)
    ]
    found = [item for item in found if item.voids]
    reasons = {item.field: reason_for(item.field, allow or {}) for item in found}
    return Comparison(
        tuple(item for item in found if not reasons[item.field]),
        tuple(dataclasses.replace(item, reason=reasons[item.field]) for item in found if reasons[item.field]),
        not_compared,
    )


def voids_of(field: str) -> tuple[str, ...]:
    """Which kinds of evidence rest on a field."""
    return next((groups for pattern, groups in _VOIDS if fnmatchcase(field, pattern)), GROUPS)


def reason_for(field: str, allow: Mapping[str, str]) -> str:
    """Why a field is allowed to be other than it should; empty when it is not. `allow` as in `compare_locks`."""
    return next((reason for pattern, reason in allow.items() if fnmatchcase(field, pattern)), "")


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat.update(_flatten(item, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = _text(item)
    return flat


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return str(value)
