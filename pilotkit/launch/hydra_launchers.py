"""Makes Hydra use our launchers where its own would lose a point. Called by the front door before it composes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

LOCAL = "hydra_plugins.pilotkit_launchers.LocalLauncher"
SWEEPER = "hydra_plugins.pilotkit_launchers.SlurmSweeper"
SLURM = "hydra_plugins.pilotkit_launchers.SlurmLauncher"


def use_our_launchers() -> None:
    """`hydra/launcher=submitit_local` gets a launcher that waits for every job, whatever became of the others."""
    Plugins.instance()  # loads Hydra's plugins, which store their options; ours replace them
    from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf

    @dataclass
    class OurLocalQueueConf(LocalQueueConf):  # type: ignore[misc] # the plugin has no types
        _target_: str = LOCAL

    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="submitit_local", node=OurLocalQueueConf(), provider="pilotkit")


def register_slurm_launcher(*, entry: str | None = None, name: str = "pilotkit_slurm") -> None:
    """Add the option `hydra/launcher=<name>`. Costs no import of the plugins, as every command composes with it.

    `entry` (`module:function`) is what a job calls with the folder of its point; None: Hydra's own way of running a
    task. What a field leaves null follows from the configuration of each point.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeperConf
    from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf

    @dataclass
    class OurSlurmQueueConf(SlurmQueueConf):  # type: ignore[misc] # the plugin has no types
        _target_: str = SLURM
        entry: Optional[str] = None  # noqa: UP045
        timeout_min: Optional[int] = None  # noqa: UP045
        tasks_per_node: Optional[int] = None  # noqa: UP045
        nodes: Optional[int] = None  # noqa: UP045
        name: Optional[str] = None  # noqa: UP045
        signal_delay_s: Optional[int] = None  # noqa: UP045
        max_num_timeout: Optional[int] = None  # noqa: UP045
        array_parallelism: Optional[int] = None  # noqa: UP045
        # Known to submitit, unknown to the plugin's own option.
        srun_args: Optional[List[str]] = None  # noqa: UP006, UP045
        use_srun: Optional[bool] = None  # noqa: UP045
        nodelist: Optional[str] = None  # noqa: UP045
        exclusive: Optional[bool] = None  # noqa: UP045
        dependency: Optional[str] = None  # noqa: UP045
        wckey: Optional[str] = None  # noqa: UP045
        mail_user: Optional[str] = None  # noqa: UP045
        mail_type: Optional[str] = None  # noqa: UP045
        python: Optional[str] = None  # noqa: UP045

    @dataclass
    class OurSweeperConf(BasicSweeperConf):
        _target_: str = SWEEPER

    # The dataclass is made where its base is known; OmegaConf looks its names up in this module.
    node: Any = OurSlurmQueueConf(entry=entry)
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="pilotkit")
    ConfigStore.instance().store(group="hydra/sweeper", name=name, node=OurSweeperConf(), provider="pilotkit")
