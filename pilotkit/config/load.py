"""From a composed configuration, or a run's `run.yaml`, to a typed and checked `PilotConfig`, for driver and worker.

Interpolations are resolved here once, so that what is recorded is literal and means the same in every process.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from pilotkit.config.meaning import check_meaning
from pilotkit.config.schema import PilotConfig
from pilotkit.config.secret_values import find_secrets
from pilotkit.config.validate import check_ranges
from pilotkit.errors import ConfigError, Problem
from pilotkit.transfer import is_url

PATH_KEYS = (
    *("output_dir", "data.path", "lock.path", "pilot.script", "restore.path", "replay.run"),
    *("restore.script", "sweep.dir", "budget.copy_out_to", "estimate.measured_csv"),
)
# Options that may name a folder or something on a hub: only a value written as a path is one.
MAYBE_PATH_KEYS = ("model.name", "data.name")
INTERPOLATION = re.compile(r"(\\*)\$\{")


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # libyaml's writer where there is one
    """Writes YAML that OmegaConf reads back: it takes more text for a number (`1e5`) than YAML itself does."""


def _represent_text(dumper: Any, text: str) -> Any:
    is_like_a_number = text[:1] in tuple("0123456789.+-")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if is_like_a_number else None)


_Dumper.add_representer(str, _represent_text)


def load(composed: DictConfig, *, launch_dir: Path) -> PilotConfig:
    """Resolve, type and check; relative paths are taken from where pilotkit was started.

    Raises ConfigError with every problem found.
    """
    problems = [*_missing(composed), *_unresolved(composed)]
    if problems:
        raise ConfigError(problems)
    config = OmegaConf.to_object(composed)
    if not isinstance(config, PilotConfig):  # a configuration of the user's own, without our schema at its root
        plain = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(plain, dict)
        config = _typed(_escaped(plain))
    _make_absolute(config, launch_dir)
    _derive_tokenizer_revision(config)
    return _checked(config, found=find_secrets("", dataclasses.asdict(config)))


def load_file(path: Path) -> PilotConfig:
    """Read a run's own `run.yaml`. Everything in it is literal already."""
    plain = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(plain, dict), f"{path} is not a configuration"
    return _checked(_typed(plain))


def dump(config: PilotConfig) -> str:
    """The YAML that `load_file` reads back to an equal configuration."""
    # Not OmegaConf's own writer: it types every field again, which takes longer than composing a point.
    plain = _escaped(dataclasses.asdict(config))
    return str(yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False))


def _escaped(value: Any) -> Any:
    """The same plain data, with text that only looks like an interpolation (`${x}`) written so that it stays text."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return INTERPOLATION.sub(lambda found: 2 * found[1] + "\\${", value)
    return value


def _typed(plain: dict[Any, Any]) -> PilotConfig:
    try:
        typed = OmegaConf.merge(OmegaConf.structured(PilotConfig), plain)
    except OmegaConfBaseException:
        raise ConfigError(_typing_problems(plain)) from None
    config = OmegaConf.to_object(typed)
    assert isinstance(config, PilotConfig)
    return config


def _checked(config: PilotConfig, *, found: Sequence[Problem] = ()) -> PilotConfig:
    """The configuration, when neither what was `found` before nor what is found here speaks against it."""
    # The meaning is looked at even when a range is wrong, as far as it goes: everything is told at once.
    problems = [*found, *check_ranges(config)]
    wrong = {problem.key for problem in problems}
    problems += [problem for problem in check_meaning(config) if wrong.isdisjoint((problem.key, *problem.factors))]
    if problems:
        raise ConfigError(problems)
    return config


def _typing_problems(plain: dict[Any, Any]) -> list[Problem]:
    """What is wrong in each section; OmegaConf itself stops at the first, and one by one is slow when nothing is."""
    problems = []
    typed = OmegaConf.structured(PilotConfig)
    for key, value in plain.items():
        try:
            OmegaConf.merge(typed, {key: value})
        except OmegaConfBaseException as error:
            given = value
            for name in str(error.full_key or key).partition("[")[0].split(".")[1:]:
                given = given.get(name, given) if isinstance(given, dict) else given
            problems.append(problem_of(error, key=str(key), value=given))
    return problems


def problem_of(error: OmegaConfBaseException, *, key: str, value: object, prefix: str = "") -> Problem:
    """A typing error of OmegaConf in our words. `prefix` is what stands before the key that OmegaConf knows."""
    # An item of a list is `betas[1]` to OmegaConf; the option is the list.
    full_key = prefix + str(getattr(error, "full_key", None) or key).partition("[")[0]
    text = str(error).splitlines()[0]
    if "is not Optional" in text:
        return Problem(full_key, "null", "a value: this option is never empty", f"give {full_key} a value")
    if "is not a ListConfig, list or tuple" in text:
        return Problem(full_key, value, "a list", f"for example {full_key}=[{value}]")
    if "could not be converted to Integer" in text:
        whole = isinstance(value, float) and value.is_integer()
        fix = f"write {full_key}={int(value)}" if isinstance(value, float) and whole else f"for example {full_key}=1"
        return Problem(full_key, value, "a whole number, written out in digits", fix)
    if "could not be converted to Float" in text:
        if isinstance(value, list):
            return Problem(full_key, value, "a list of numbers", f"for example {full_key}=[0.5]")
        return Problem(full_key, value, "a number", f"for example {full_key}=0.5")
    if "is not a valid bool" in text:
        return Problem(full_key, value, "true or false", f"for example {full_key}=true")
    return Problem(full_key, value, f"what the schema says: {text}", f"see `pilotkit --cfg job` for {full_key}")


def _missing(composed: DictConfig) -> list[Problem]:
    return [
        Problem(key, "???", "a value: this option has no default", f"add {key}=... to the command")
        # Not OmegaConf.missing_keys, which raises on the first interpolation that does not resolve.
        for key, container, name in sorted(_leaves(composed), key=lambda leaf: leaf[0])
        if OmegaConf.is_missing(container, name)
    ]


def _unresolved(composed: DictConfig) -> list[Problem]:
    problems = []
    for key, container, name in _leaves(composed):
        try:
            _ = container[name]
        except (MissingMandatoryValue, InterpolationToMissingValueError):
            continue  # the missing value itself is reported by `_missing`
        except OmegaConfBaseException as error:
            raw: Any = OmegaConf.to_container(container, resolve=False)
            reason = str(error).splitlines()[0]
            problems.append(Problem(key, raw[name], f"something that resolves ({reason})", f"give {key} a value"))
    return problems


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every value that is not itself a container, as (dotted name, its container, its name there)."""
    for name in list(node.keys()) if isinstance(node, DictConfig) else list(range(len(node))):
        child = node._get_node(name)
        is_container = isinstance(child, (DictConfig, ListConfig))
        if not is_container or child._is_interpolation():
            yield prefix + str(name), node, name
        elif not child._is_none() and not child._is_missing():
            yield from _leaves(child, prefix + str(name) + ".")


def _derive_tokenizer_revision(config: PilotConfig) -> None:
    """The tokenizer of the model's own repository is that of the model's revision, unless another is named."""
    kwargs = config.data.kwargs
    own = kwargs.get("tokenizer") is not None and kwargs["tokenizer"] == config.model.name
    if own and kwargs.get("tokenizer_revision", "") is None:
        kwargs["tokenizer_revision"] = config.model.revision


def _make_absolute(config: PilotConfig, launch_dir: Path) -> None:
    for key in (*PATH_KEYS, *MAYBE_PATH_KEYS):
        section: Any = config
        *parents, name = key.split(".")
        for parent in parents:
            section = getattr(section, parent)
        value = getattr(section, name)
        looks_like_path = isinstance(value, str) and value.startswith((".", "~", "/"))
        if value is None or (key in MAYBE_PATH_KEYS and not looks_like_path):
            continue
        if key == "restore.path" and is_url(value):
            continue
        absolute = os.path.normpath(launch_dir / os.path.expanduser(value))
        setattr(section, name, absolute)
        # The factories were told through an interpolation, which is literal text by now.
        kwargs = getattr(section, "kwargs", {})
        for argument in ("name", "path"):
            if kwargs.get(argument) == value:
                kwargs[argument] = absolute
