"""Configurations to test with: composed by Hydra from the option files, as the front door does it, in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from pilotkit.config.load import load
from pilotkit.config.schema import PilotConfig
from pilotkit.config.store import CONFIG_NAME, conf_dir, list_groups, register_schema

LAUNCH_DIR = Path("/launched/here")
PARSER = OverridesParser.create()


@lru_cache(maxsize=64)
def _with_options(options: tuple[str, ...]) -> DictConfig:
    register_schema()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(CONFIG_NAME, overrides=list(options))


@pytest.fixture(scope="session")
def compose() -> Callable[..., DictConfig]:
    """`compose(*overrides)`: what Hydra hands to the front door.

    Options of groups are composed once; values are put in as Hydra does it, without the 0.1 s of composing again.
    """
    groups = list_groups()

    def compose(*overrides: str) -> DictConfig:
        parsed = [PARSER.parse_override(text) for text in overrides]
        options = tuple(str(item.input_line) for item in parsed if item.key_or_group in groups)
        config = copy.deepcopy(_with_options(options))
        for item in parsed:
            if item.key_or_group not in groups:
                OmegaConf.update(config, item.key_or_group, item.value(), force_add=item.is_add())
        return config

    return compose


@pytest.fixture(scope="session")
def configure(compose: Callable[..., DictConfig]) -> Callable[..., PilotConfig]:
    """`configure(*overrides)`: the typed and checked configuration; raises as the front door does."""
    return lambda *overrides: load(compose(*overrides), launch_dir=LAUNCH_DIR)


@pytest.fixture(scope="session")
def changed(configure: Callable[..., PilotConfig]) -> Callable[..., PilotConfig]:
    """`changed({"train.seq_len": 64, ...})`: the default with these values put in, unchecked and at no cost."""

    default = configure()

    def change(values: dict[str, Any], config: PilotConfig | None = None) -> PilotConfig:
        result = copy.deepcopy(config or default)
        for key, value in values.items():
            *parents, name = key.split(".")
            section: Any = result
            for parent in parents:
                section = getattr(section, parent)
            assert hasattr(section, name), key
            setattr(section, name, value)
        return result

    return change
