"""Makes Hydra use our launchers where its own would lose a point. Called by the front door for a multirun only."""

from __future__ import annotations

from dataclasses import dataclass

from hydra._internal.core_plugins.basic_launcher import BasicLauncherConf
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

HERE = "hydra_plugins.pilotkit_launchers.HereLauncher"
LOCAL = "hydra_plugins.pilotkit_launchers.LocalLauncher"


def use_our_launchers() -> None:
    """`basic`, which is Hydra's default, lets estimates share traces; `submitit_local` waits for every job, whatever
    became of the others."""
    Plugins.instance()  # loads Hydra's plugins, which store their options; ours replace them
    from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf

    @dataclass
    class OurLocalQueueConf(LocalQueueConf):  # type: ignore[misc] # the plugin has no types
        _target_: str = LOCAL

    @dataclass
    class OurBasicConf(BasicLauncherConf):
        _target_: str = HERE

    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="basic", node=OurBasicConf(), provider="pilotkit")
    store.store(group="hydra/launcher", name="submitit_local", node=OurLocalQueueConf(), provider="pilotkit")
