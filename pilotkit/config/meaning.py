"""What several fields of a configuration say together, each of them right by itself. Returns problems, raises none.

Called by `pilotkit.config.load` once every value has its type.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pilotkit.config.batch import check_batch
from pilotkit.config.estimate_meaning import check_estimate
from pilotkit.config.nodes import check_nodes
from pilotkit.config.optimizer_meaning import check_optimizer
from pilotkit.config.qualify_meaning import check_qualify
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Each is the name of the module, too."""
PILOT_STRATEGIES = ("ddp", "fsdp", "hsdp")
RECOMPUTATION_MODES = ("none", "full", "selective")
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_meaning(config: PilotConfig) -> list[Problem]:
    """Everything that is wrong although each field alone is right."""
    return [
        *_check_plain(dataclasses.asdict(config)),
        *_check_name(config),
        *_check_device_pattern(config),
        *_check_data_path(config),
        *_check_precision(config),
        *_check_lengths(config),
        *check_optimizer(config),
        *_check_numerics(config),
        *_check_lock(config),
        *_check_replay(config),
        *check_qualify(config),
        *_check_tokenizer(config),
        *_check_trackers(config),
        *_check_pilot(config),
        *_check_script(config),
        *_check_restore(config),
        *_check_plan(config),
        *_check_prices(config),
        *_check_loader(config),
        *check_estimate(config),
        *check_batch(config),
        *check_nodes(config),
    ]


def _check_plain(value: Any, key: str = "") -> Iterator[Problem]:
    """Records are JSON, which has no infinity and no key but text; free sections (`model.kwargs`) could hold both."""
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(name, str):
                yield from _check_plain(item, f"{key}.{name}" if key else name)
            else:
                yield Problem(key, value, "names that are text", f"quote the name {name!r} in {key}")
    elif isinstance(value, list):
        for item in value:
            yield from _check_plain(item, key)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(key, value, "a finite number", f"give {key} a number that can be written out")


def _check_device_pattern(config: PilotConfig) -> list[Problem]:
    try:
        re.compile(config.hardware.device_name_pattern or "")
    except re.error as error:
        key, pattern = "hardware.device_name_pattern", config.hardware.device_name_pattern
        return [Problem(key, pattern, f"a regular expression ({error})", f"mend it, or drop {key}")]
    return []


def _check_data_path(config: PilotConfig) -> list[Problem]:
    # An option's `path: ???` does not survive the schema's null, so the argument that rests on it is looked at.
    if "path" not in config.data.kwargs or config.data.kwargs["path"] is not None:
        return []
    allowed = f"a folder or file: data={config.data.name} reads its rows from there"
    return [Problem("data.path", "null", allowed, "add data.path=... to the command", ("data.kwargs.path", "data"))]


def _check_name(config: PilotConfig) -> list[Problem]:
    if NAME_PATTERN.fullmatch(config.name):
        return []
    allowed = "letters, digits, dot, dash and underscore, starting with a letter or digit: it becomes a folder"
    return [Problem("name", repr(config.name), allowed, "for example name=my-study")]


def _check_precision(config: PilotConfig) -> list[Problem]:
    precision, hardware = config.precision, config.hardware
    fp8 = precision.float8 != "none"
    if precision.float8_emulate:
        if config.stage == "numerics":
            return []
        allowed = "false in every stage but numerics: emulated products are slower and larger than real ones"
        return [Problem("precision.float8_emulate", True, allowed, "add stage=numerics, or drop it")]
    if precision.name in hardware.precisions:
        return []
    return [
        Problem(
            "precision",
            precision.name,
            f"{', '.join(hardware.precisions) or 'nothing'} on hardware={hardware.name}",
            f"choose another precision, or add it to hardware.precisions if this {hardware.name} can run it"
            + ("; stage=numerics judges it anywhere with precision.float8_emulate=true" if fp8 else ""),
            ("precision.name", "hardware.precisions", "hardware.name"),
        )
    ]


def _check_lengths(config: PilotConfig) -> list[Problem]:
    limit = config.model.kwargs.get("max_seq_len")
    if not isinstance(limit, int) or config.train.seq_len <= limit:
        return []
    return [
        Problem(
            "train.seq_len",
            config.train.seq_len,
            f"at most model.kwargs.max_seq_len = {limit}",
            f"shorten train.seq_len, or set model.kwargs.max_seq_len={config.train.seq_len}",
            ("model.kwargs.max_seq_len", "model"),
        )
    ]


def _check_numerics(config: PilotConfig) -> list[Problem]:
    modes = config.numerics.modes
    known = all(name in RECOMPUTATION_MODES for name in modes) and len(set(modes)) == len(modes)
    if known and (not modes or "none" in modes):
        return []
    return [
        Problem(
            "numerics.modes",
            modes,
            f"an empty list, or different names out of {', '.join(RECOMPUTATION_MODES)}, none among them",
            "for example numerics.modes=[none,full]",
        )
    ]


def _check_lock(config: PilotConfig) -> list[Problem]:
    lock, problems = config.lock, []
    if lock.mode != "write" and lock.path is None:
        allowed = "write where no lock.path is given: there is no file to compare with"
        problems.append(Problem("lock.mode", lock.mode, allowed, "add lock.path=lock.pilotkit.yaml", ("lock.path",)))
    wrong = [text for text in lock.allow if not all(part.strip() for part in text.partition(": ")[::2])]
    if wrong:
        fix = "for example 'lock.allow=[\"packages.rich: it only prints\"]'"
        problems.append(Problem("lock.allow", wrong, "a list of `field: reason`, as records keep the reason", fix))
    return problems


def _check_replay(config: PilotConfig) -> list[Problem]:
    if config.stage != "replay" or config.replay.run is not None:
        return []
    fix = "add replay.run=outputs/<name>/<stage>/<run id>"
    return [Problem("replay.run", "null", "the folder of a run: stage=replay runs one again", fix, ("stage",))]


def _check_tokenizer(config: PilotConfig) -> list[Problem]:
    """A repository has one revision in a run: tokens of another one are other numbers to the same weights."""
    kwargs, revision = config.data.kwargs, config.model.revision
    given = kwargs.get("tokenizer_revision")
    if kwargs.get("tokenizer") != config.model.name or given == revision or "tokenizer_revision" not in kwargs:
        return []
    allowed = f"the revision of the model, whose repository this is: {revision}"
    fix = "leave it out, and it is the model's, or give both the same commit"
    return [Problem("data.kwargs.tokenizer_revision", given, allowed, fix, factors=("model.revision",))]


def _check_trackers(config: PilotConfig) -> list[Problem]:
    names = config.report.trackers
    if not set(names) <= set(TRACKERS):
        return [Problem("report.trackers", names, f"a list out of {', '.join(TRACKERS)}", "for example [tensorboard]")]
    # A folder of that name here (W&B makes one) is no library: it has no file of its own.
    missing = [name for name in names if not (spec := importlib.util.find_spec(name)) or spec.origin is None]
    if not missing:
        return []
    # Known now and not when hours of measuring are over.
    fix = "pip install 'pilotkit[trackers]'"
    return [Problem("report.trackers", missing, "trackers that are installed in this Python", fix)]


def _check_pilot(config: PilotConfig) -> list[Problem]:
    strategies = config.pilot.strategies
    unknown = [name for name in strategies if name not in PILOT_STRATEGIES]
    if strategies and not unknown and len(set(strategies)) == len(strategies):
        return []
    return [
        Problem(
            "pilot.strategies",
            strategies,
            f"a list of different names out of {', '.join(PILOT_STRATEGIES)}",
            "for example pilot.strategies=[ddp,fsdp]",
        )
    ]


def _check_script(config: PilotConfig) -> list[Problem]:
    return _check_one_script(config.pilot.script, config.pilot.args, section="pilot")


def _check_one_script(script: str | None, args: list[str], *, section: str) -> list[Problem]:
    key = f"{section}.script"
    if script is None:
        fix = f"name the script they are for with {key}=..."
        return [Problem(f"{section}.args", args, f"nothing without {key}", fix, (key,))] if args else []
    if Path(script).is_file():
        return []
    fix = "give its path from where pilotkit is started"
    return [Problem(key, script, "a Python file that exists", fix)]


def _check_restore(config: PilotConfig) -> list[Problem]:
    sizes, strategies = config.restore.world_sizes, config.restore.strategies
    problems = _check_one_script(config.restore.script, config.restore.args, section="restore")
    if any(size < 1 for size in sizes) or len(set(sizes)) != len(sizes):
        allowed = "a list of different whole numbers from 1 on"
        problems.append(Problem("restore.world_sizes", sizes, allowed, "for example restore.world_sizes=[1,2,4]"))
    if not set(strategies) <= set(PILOT_STRATEGIES) or len(set(strategies)) != len(strategies):
        allowed = f"a list of different names out of {', '.join(PILOT_STRATEGIES)}"
        problems.append(Problem("restore.strategies", strategies, allowed, "for example restore.strategies=[ddp,fsdp]"))
    return problems


def _check_plan(config: PilotConfig) -> list[Problem]:
    from pilotkit.config.store import list_groups

    known = list_groups()["reservation"]
    unknown = [name for name in config.plan.reservations if name not in known]
    if config.plan.reservations and not unknown:
        return []
    return [
        Problem(
            "plan.reservations",
            config.plan.reservations,
            f"a list of reservation options: {', '.join(known)}",
            "for example plan.reservations=[7d,30d]",
        )
    ]


def _check_prices(config: PilotConfig) -> list[Problem]:
    problems = []
    prices = config.prices
    for name in ("per_gpu_hour", "per_reservation", "minimum_gpus"):
        for key, value in getattr(prices, name).items():
            if value is not None and value < 0:
                problems.append(Problem(f"prices.{name}.{key}", value, "a number >= 0", "give a price of yours"))
    if prices.as_of is not None:
        try:
            datetime.date.fromisoformat(prices.as_of)
        except ValueError:
            fix = "for example prices.as_of=2026-03-31"
            problems.append(Problem("prices.as_of", prices.as_of, "a date, YYYY-MM-DD", fix))
    counts = [count for count in config.plan.device_counts if count < 1]
    if counts:
        fix = "for example plan.device_counts=[8,16,32]"
        problems.append(Problem("plan.device_counts", config.plan.device_counts, "a list of numbers >= 1", fix))
    return problems


def _check_loader(config: PilotConfig) -> list[Problem]:
    if not config.data.pin_memory or config.hardware.device_type != "cpu":
        return []
    return [
        Problem(
            "data.pin_memory",
            True,
            "false on hardware.device_type=cpu: page-locked memory is for copies to an accelerator",
            "drop data.pin_memory=true, or choose another hardware",
            ("hardware.device_type", "hardware"),
        )
    ]
