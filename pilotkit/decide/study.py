"""The options of a study: records that speak of the same training, grouped by what would be rented for it.

Called by stage `plan`. Reads each record's own configuration, so that a study may be judged on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilotkit.decide.evidence import void_because
from pilotkit.decide.scaling import Measured
from pilotkit.decide.timing import step_timing
from pilotkit.records.record import Record
from pilotkit.records.search import newest_by_stage

# What is trained. How it is spread, how precisely it counts and how much a device takes at once may differ.
SAME_TRAINING = ("model", "data", "optimizer", "scheduler")
SAME_RUN = ("seq_len", "total_tokens")
TOLD_APART = (
    "hardware", "parallelism", "parallelism.num_nodes", "precision", "activation_checkpointing",
    "train.micro_batch_size",
)  # fmt: skip
EVIDENCE_STAGES = ("prove", "measure", "pilot", "restore", "estimate", "budget", "qualify", "numerics")


@dataclass(frozen=True)
class Candidate:
    """One configuration with the newest record of each stage. `config` is plain, as records hold it.

    `void` says of each stage whose newest record was made under another lock, and is not among `records`, why.
    """

    config: Mapping[str, Any]
    records: Mapping[str, Record]
    void: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any], newest: Mapping[str, Record]) -> Candidate:
        """Leave out what the newest lock of this configuration voids."""
        lock = newest.get("lock")
        found = {stage: void_because(record, lock=lock) for stage, record in newest.items() if stage != "lock"}
        void = {stage: why for stage, why in found.items() if why is not None}
        return cls(config, {stage: record for stage, record in newest.items() if stage not in void}, void)

    @property
    def hardware(self) -> str:
        return str(self.config["hardware"]["name"])

    @property
    def device_type(self) -> str:
        return str(self.config["hardware"].get("device_type") or "cuda")

    @property
    def memory_bytes(self) -> float | None:
        """Of one device, as the hardware option has it."""
        found = self.config["hardware"].get("memory_bytes")
        return float(found) if found else None

    @property
    def devices_per_node(self) -> int:
        return int(self.config["parallelism"].get("nproc_per_node") or self.config["hardware"]["device_count"])

    @property
    def num_nodes(self) -> int:
        return int(self.config["parallelism"].get("num_nodes") or 1)

    @property
    def num_devices(self) -> int:
        return self.devices_per_node * self.num_nodes

    @property
    def strategy(self) -> str:
        return str(self.config["parallelism"]["strategy"])

    @property
    def precision(self) -> str:
        return str(self.config["precision"]["name"])

    @property
    def activation_checkpointing(self) -> str:
        return str((self.config.get("activation_checkpointing") or {}).get("mode") or "none")

    @property
    def keep_every(self) -> int:
        """Of selective recomputation: every n-th matrix product is kept."""
        return int((self.config.get("activation_checkpointing") or {}).get("keep_every") or 1)

    @property
    def micro_batch_size(self) -> int:
        return int(self.config["train"]["micro_batch_size"])

    @property
    def seq_len(self) -> int:
        return int(self.config["train"]["seq_len"])

    @property
    def grad_accum_steps(self) -> int:
        train = self.config["train"]
        if train.get("grad_accum_steps"):
            return int(train["grad_accum_steps"])
        at_once = self.micro_batch_size * self.num_devices
        return max(int(train.get("global_batch_size") or at_once) // at_once, 1)

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.num_devices * self.grad_accum_steps

    @property
    def label(self) -> str:
        """`8 x h100, fsdp, bf16_mixed, micro-batch 4`: what tells the options of a study apart."""
        parts = [f"{self.num_devices} x {self.hardware}", self.strategy, self.precision]
        if self.activation_checkpointing != "none":
            kept = f" (every {self.keep_every} products)" if self.keep_every > 1 else ""
            parts.append(f"{self.activation_checkpointing} recomputation{kept}")
        return ", ".join([*parts, f"micro-batch {self.micro_batch_size}"])

    def overrides(self) -> list[str]:
        """What tells this candidate apart on the command line."""
        words = [f"hardware={self.hardware}", f"parallelism={self.strategy}", f"precision={self.precision}"]
        if self.num_nodes > 1:
            words.append(f"parallelism.num_nodes={self.num_nodes}")
        if self.activation_checkpointing != "none":
            words.append(f"activation_checkpointing={self.activation_checkpointing}")
        if self.keep_every > 1:
            words.append(f"activation_checkpointing.keep_every={self.keep_every}")
        return [*words, f"train.micro_batch_size={self.micro_batch_size}"]

    def command_words(self, typed: Sequence[str]) -> list[str]:
        """What the user typed for the chosen configuration, with what makes this candidate another one."""
        return [*(word for word in typed if word.lstrip("+").partition("=")[0] not in TOLD_APART), *self.overrides()]


def candidates_of(records: Sequence[Record], *, like: Mapping[str, Any], digest: str) -> list[Candidate]:
    """Every configuration of the study that trains the same as `like`, the chosen one (`digest`) first."""
    wanted = training_of(like)
    groups: dict[str, Mapping[str, Any]] = {digest: like}
    for record in records:
        if record.stage in EVIDENCE_STAGES and record.config and training_of(record.config) == wanted:
            groups.setdefault(record.config_digest, record.config)
    return [Candidate.of(config, newest_by_stage(list(records), config_digest=name)) for name, config in groups.items()]


def training_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that two options of one study must share."""
    train = config.get("train") or {}
    # The processor stands in for an accelerator while a run is prepared; it is no option beside one.
    on_cpu = (config.get("hardware") or {}).get("device_type") == "cpu"
    return {
        "on_cpu": on_cpu,
        **{name: config.get(name) for name in SAME_TRAINING},
        **{name: train.get(name) for name in SAME_RUN},
    }


def is_sibling(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates differ in nothing but how many devices there are (and what each takes in a step)."""
    names = ("hardware", "strategy", "precision", "activation_checkpointing", "keep_every", "micro_batch_size")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def scaling_points(candidate: Candidate, study: Sequence[Candidate]) -> list[Measured]:
    """Every number of devices at which these steps ran, the candidate's own records before its siblings'."""
    found: dict[int, Measured] = {}
    siblings = [candidate, *(other for other in study if other is not candidate and is_sibling(candidate, other))]
    for other in siblings:
        for point in _points(other):
            found.setdefault(point.num_devices, point)
    return sorted(found.values(), key=lambda point: point.num_devices)


def _points(candidate: Candidate) -> list[Measured]:
    found = []
    for strategy in dict.fromkeys((candidate.strategy, "single")):
        timing = step_timing(candidate.records, strategy=strategy)
        if timing is not None and timing.num_devices:
            found.append(
                Measured(
                    timing.num_devices,
                    timing.each_seconds,
                    candidate.grad_accum_steps,
                    timing.origin,
                    timing.record.run_id,
                    timing.band or 0.0,
                )
            )
    pilot = candidate.records.get("pilot")
    alone = pilot.metrics.get("single_step_seconds") if pilot is not None else None
    if pilot is not None and alone is not None and all(point.num_devices != 1 for point in found):
        found.append(Measured(1, alone, candidate.grad_accum_steps, "measured", pilot.run_id))
    return found
