"""Makes Hydra use our launchers where its own would lose a point. Called by the front door for a multirun only."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

LOCAL = "hydra_plugins.pilotkit_launchers.LocalLauncher"


def use_our_launchers() -> None:
    """`hydra/launcher=submitit_local` gets a launcher that waits for every job, whatever became of the others."""
    Plugins.instance()  # loads Hydra's plugins, which store their options; ours replace them
    from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf

    @dataclass
    class OurLocalQueueConf(LocalQueueConf):  # type: ignore[misc] # the plugin has no types
        _target_: str = LOCAL

    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="submitit_local", node=OurLocalQueueConf(), provider="pilotkit")
