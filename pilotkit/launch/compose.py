"""Compose the points of a sweep: with Hydra once for each choice of options, then value by value.

Called by the submission of a sweep. Hydra takes a tenth of a second for a point; most points of a sweep differ in
nothing but a few values, which it would set last in any case.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict


class Composer:
    """Composes points of one command. Raises what Hydra and OmegaConf raise for a point that cannot be composed."""

    def __init__(self, loader: Any, master: DictConfig) -> None:
        self._loader = loader
        self._master = master
        self._parser = OverridesParser.create(config_loader=loader)
        self._groups = set(loader.list_groups(""))
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        self.launch_dir = Path(master.hydra.runtime.cwd)

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of one point, without Hydra's own section."""
        parsed = self._parser.parse_overrides(list(overrides))
        values = [override for override in parsed if self._is_value(override)]
        others = tuple(str(override.input_line) for override in parsed if override not in values)
        if others not in self._bases:
            self._bases[others] = self._compose_whole(others)
        composed = copy.deepcopy(self._bases[others])
        for override in values:
            OmegaConf.update(composed, override.key_or_group, override.value(), merge=True)
        return composed

    def _compose_whole(self, overrides: Sequence[str]) -> DictConfig:
        composed: DictConfig = self._loader.load_sweep_config(self._master, list(overrides))
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def _is_value(self, override: Override) -> bool:
        """Plain `key=value`: nothing that adds, deletes, chooses an option or steers Hydra."""
        name = override.key_or_group
        is_option = "/" in name or "@" in str(override.input_line) or name in self._groups or name.startswith("hydra")
        return not (is_option or override.is_add() or override.is_delete() or override.is_force_add())
