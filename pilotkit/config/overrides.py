"""Checks what the user typed before Hydra composes it, so that every mistake of one command is told in one message.

Hydra stops at the first; this looks at each override by itself: its syntax, its name (with the nearest right one),
the options of a group, and the type and range of every value of a sweep. What fields say together is `validate`'s.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pilotkit.config.load import problem_of
from pilotkit.config.schema import PilotConfig
from pilotkit.config.secret_values import find_secrets
from pilotkit.config.store import list_groups
from pilotkit.config.validate import check_value
from pilotkit.errors import Problem

MAX_CHOICES = 1000
GRAMMAR = "Hydra's syntax key=value; quote what the shell or Hydra would take apart, as in 'key=\"a, b\"'"


@dataclass(frozen=True)
class Key:
    """One name that an override may set; `free` when anything may stand below it (keyword arguments, figures)."""

    name: str
    metadata: Any = None
    free: bool = False
    is_mapping: bool = False


def with_plus(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra wants them: a key of the user's own below a mapping needs its plus signs.

    `model.kwargs.width=64` means the same whether the option already has a `width` or not; nobody should have to know.
    """
    parser = OverridesParser.create()
    mappings = {key.name for key in _keys().values() if key.is_mapping}
    spelt = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            spelt.append(text)
            continue
        parts = override.key_or_group.split(".")
        below = any(".".join(parts[:size]) in mappings for size in range(1, len(parts)))
        whole = override.key_or_group in mappings and not override.is_sweep_override()
        plain = not (override.is_add() or override.is_force_add() or override.is_delete())
        spelt.append(f"++{text}" if plain and (below or whole) else text)
    return spelt


def check_overrides(
    overrides: Sequence[str], *, multirun: bool, extra_dirs: Sequence[Path] = ()
) -> tuple[list[Problem], list[str]]:
    """All problems of the overrides one by one, and those overrides that have none.

    Options in `extra_dirs` (the user's own `--config-dir`) are as good as ours. Without `multirun`, several values
    for one name are a problem. Of a sweep, only the first choice is handed back: it stands for the others when the
    rest is composed.
    """
    problems: list[Problem] = []
    sound: list[str] = []
    parser = OverridesParser.create()
    groups = list_groups(extra_dirs=extra_dirs)
    keys = _keys()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            key, _, value = text.partition("=")
            reason = str(error).splitlines()[0]
            hidden = find_secrets(key.lstrip("+~"), value)
            problems += hidden or [Problem(key.lstrip("+~"), value, GRAMMAR, f"Hydra says: {reason}")]
            continue
        found = _check_one(override, groups=groups, keys=keys)
        if not found and override.is_sweep_override() and not multirun:
            found = [_needs_multirun(override)]
        problems += found
        if not found:
            sound.append(_first_choice(override))
    return problems, sound


@functools.cache
def _keys() -> dict[str, Key]:
    return {key.name: key for key in schema_keys()}


@functools.cache
def _root_values() -> type:
    """The root of the schema without its sections: what a value beside them is checked with, as all of it is slow."""
    hints = typing.get_type_hints(PilotConfig)
    fields = [field for field in dataclasses.fields(PilotConfig) if not dataclasses.is_dataclass(hints[field.name])]
    return dataclasses.make_dataclass(
        "RootValues", [(field.name, hints[field.name], dataclasses.field(default=field.default)) for field in fields]
    )


def schema_keys(section: Any = PilotConfig, prefix: str = "") -> Iterator[Key]:
    """Every dotted name of the schema, sections included."""
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint):
            yield Key(name)
            yield from schema_keys(hint, f"{name}.")
        else:
            kind = typing.get_origin(hint)
            yield Key(name, field.metadata, free=kind in (dict, list), is_mapping=kind is dict)


def _needs_multirun(override: Override) -> Problem:
    name, values = override.key_or_group, _shown(override)
    fix = f"add -m to run each of them, or write {name}=[{values}] where a list is meant"
    return Problem(name, values, "one value; several are a sweep", fix)


def _check_one(override: Override, *, groups: dict[str, list[str]], keys: dict[str, Key]) -> list[Problem]:
    name = override.key_or_group
    secrets = [problem for value in _choices(override) for problem in find_secrets(name, value)]
    if secrets:
        return secrets  # before anything that would show the value
    if name == "hydra" or name.startswith(("hydra.", "hydra/")):
        return []
    if override.is_delete():
        return [Problem(name, override.input_line, "an override; options cannot be removed", f"give {name} a value")]
    if name in groups:
        return _check_group(override, name=name, options=groups[name])
    free = _free_parent(name, keys)
    if override.is_add() and free is None and not (name in keys and keys[name].is_mapping):
        return [_needless_plus(override, name, keys, groups)]
    key = keys.get(name)
    if key is None and free is None:
        return [_unknown(name, _shown(override), [*keys, *groups])]
    if key is not None and key.metadata is None:
        return [
            Problem(
                name, _shown(override), "its options one by one: this is a section", f"for example {name}.<option>=..."
            )
        ]
    return [
        problem
        for value in _choices(override)
        if (problem := _check_choice(name, value, key.metadata if key else None))
    ]


def _check_group(override: Override, *, name: str, options: list[str]) -> list[Problem]:
    if override.is_add():
        return [Problem(name, _shown(override), f"{name}=<option>, without the plus sign", f"type {name}=...")]
    problems = []
    for choice in _choices(override):
        if str(choice) not in options and not (choice is None and name == "experiment"):
            nearest = _nearest(str(choice), options) or options[0]
            problems.append(Problem(name, choice, "one of " + ", ".join(options), f"for example {name}={nearest}"))
    return problems


def _check_choice(name: str, value: Any, metadata: Any) -> Problem | None:
    if isinstance(value, str) and "${" in value:
        return None  # only known once composed
    section, _, rest = name.partition(".")
    hint = typing.get_type_hints(PilotConfig)[section]
    # The one section that is concerned: to build the whole schema for every value would be slow.
    is_section = dataclasses.is_dataclass(hint)
    owner, key, prefix = (hint, rest, f"{section}.") if is_section else (_root_values(), name, "")
    typed = OmegaConf.structured(owner)
    try:
        OmegaConf.update(typed, key, value, force_add=True)
        if metadata is None or isinstance(value, (list, dict)) or value == "???":
            return None
        # The typed value, not the typed text: `1e3` is a number here.
        return check_value(name, OmegaConf.select(typed, key), metadata)
    except OmegaConfBaseException as error:
        return problem_of(error, key=key, value=value, prefix=prefix)


def _needless_plus(override: Override, name: str, keys: dict[str, Key], groups: dict[str, list[str]]) -> Problem:
    if name in keys:
        return Problem(name, override.input_line, f"{name}=..., without the plus sign: it exists", f"type {name}=...")
    return _unknown(name, _shown(override), [*keys, *groups])


def _unknown(name: str, value: object, known: list[str]) -> Problem:
    nearest = _nearest(name, known)
    fix = f"did you mean {nearest}?" if nearest else "see `pilotkit --cfg job` for every option"
    return Problem(name, value, "an option of pilotkit; there is none of this name", fix)


def _nearest(name: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if close:
        return close[0]
    # `seq_len` for `train.seq_len`: the last part is what people remember.
    last = [key for key in known if key.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    return last[0] if last else None


def _free_parent(name: str, keys: dict[str, Key]) -> Key | None:
    parts = name.split(".")
    parents = (".".join(parts[:size]) for size in range(1, len(parts)))
    return next((keys[parent] for parent in parents if parent in keys and keys[parent].free), None)


def _choices(override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [_plain(override.value())]
    if override.is_discrete_sweep():
        sweep = override.sweep_iterator()
        return [_plain(value) for _, value in zip(range(MAX_CHOICES), sweep)]  # noqa: B905 - the shorter ends it
    return []


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _shown(override: Override) -> str:
    return override.input_line.partition("=")[2] if override.input_line else ""


def _first_choice(override: Override) -> str:
    if not override.is_sweep_override():
        return str(override.input_line)
    iterator = override.sweep_string_iterator() if override.is_discrete_sweep() else iter(())
    first = next(iterator, None)
    return f"{override.key_or_group}={first}" if first is not None else str(override.input_line)


def quote_value(text: str) -> str:
    """A value as Hydra's grammar takes it: as it is where that is plain, else in double quotes."""
    if re.fullmatch(r"[A-Za-z0-9_./:+-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
