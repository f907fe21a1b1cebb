"""May a run go on from a checkpoint that was saved under another configuration? Only what decides the result counts.

Called by the stage `restore` before anything starts, and by its phases before anything is loaded. Reads text, no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pilotkit.config.batch import batch_arithmetic
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError, Problem

BATCH_FACTORS = ("parallelism", "hardware")  # of which only the rows of an optimizer step are compared
SECTIONS = ("model", "data", "optimizer", "scheduler", "precision", "train")
# How fast, how often and in which pieces: the same rows go through the same arithmetic.
FREE = (
    "data.num_workers",
    "data.prefetch_factor",
    "data.pin_memory",
    "data.path",  # where the rows lie; whether they are the same ones is checked by their number and order
    "optimizer.implementation",
    "model.kwargs.loss_chunks",
    "precision.flops_format",
    "train.micro_batch_size",
    "train.grad_accum_steps",
    "train.global_batch_size",  # compared below, with its factors multiplied out
    "train.eval_every_steps",
    "train.num_eval_batches",
    "train.checkpoint_every_steps",
    "train.deterministic",
    "train.compile",
    "train.compile_scope",
)
GLOBAL_BATCH = "train.global_batch_size"


@dataclass(frozen=True)
class Difference:
    """One option that decides the result, as the checkpoint was saved with and as this run has it."""

    key: str
    saved: object
    here: object


def binding_options(config: PilotConfig) -> dict[str, object]:
    """Dotted name and value of every option that a continued run has to keep."""
    plain = asdict(config)
    options = {
        key: value
        for section in SECTIONS
        for key, value in _leaves(plain[section], section)
        if key not in FREE and not key.startswith("data.kwargs.path")
    }
    options[GLOBAL_BATCH] = batch_arithmetic(config).global_batch_size
    return options


def differences(saved: PilotConfig, here: PilotConfig) -> list[Difference]:
    """In the order of names; an option that only one side has is None on the other."""
    there, own = binding_options(saved), binding_options(here)
    return [
        Difference(key, there.get(key), own.get(key))
        for key in sorted(there.keys() | own.keys())
        if there.get(key) != own.get(key)
    ]


def refuse_differences(saved_text: str, here: PilotConfig, *, allowed: Sequence[str]) -> list[Difference]:
    """The differences that `allowed` names (an option, or a section with all of its options).

    Raises ConfigError naming every other one. A checkpoint without a configuration has none.
    """
    if not saved_text.strip():
        return []
    found = differences(read_saved(saved_text), here)
    refused = [item for item in found if not is_allowed(item.key, allowed)]
    if refused:
        raise ConfigError([_problem(item) for item in refused])
    return found


def is_allowed(key: str, allowed: Sequence[str]) -> bool:
    """Whether `key` or a section above it is in the list."""
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def read_saved(text: str) -> PilotConfig:
    """The sections of a checkpoint's configuration that decide the result; the others are as in the schema.

    Options that are new since take their defaults, old ones are passed over: a section that did not exist when the
    checkpoint was saved must not keep it from being loaded. Raises ConfigError on text that is no configuration.
    """
    config = PilotConfig(stage="restore")
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.create(text))
        for section in (*SECTIONS, *BATCH_FACTORS):
            schema = OmegaConf.structured(getattr(config, section))
            typed = OmegaConf.merge(schema, _known(plain.get(section, {}), schema))
            setattr(config, section, OmegaConf.to_object(typed))
    except (OmegaConfBaseException, AttributeError, TypeError, ValueError) as error:
        fix = f"the configuration in it cannot be read: {str(error).splitlines()[0]}"
        raise ConfigError([Problem("restore.path", "this checkpoint", "one that pilotkit saved", fix)]) from error
    return config


def _known(value: Any, node: Any) -> Any:
    """A section without the options that this version does not have."""
    if not isinstance(value, dict) or not OmegaConf.is_dict(node) or OmegaConf.get_type(node) is dict:
        return value
    # Not `in`: an option without a default counts as absent there.
    names = set(node.keys())
    return {key: _known(item, node._get_node(key)) for key, item in value.items() if key in names}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}")
    else:
        yield name, value


def _problem(item: Difference) -> Problem:
    section = item.key.partition(".")[0]
    fix = f"continue with {item.key}={item.saved}, or allow it by name: restore.allow_changes=[{item.key}]"
    if section == "precision":
        fix = f"continue with {item.key}={item.saved}, or allow all of it: restore.allow_changes=[precision]"
    return Problem(item.key, item.here, f"{item.saved}, as the checkpoint was saved with", fix)
