"""The options of Hydra that `cluster=slurm` chooses: its launcher and its sweeper, as names and fields only.

Called by `pilotkit.config.store` with the schema, as every command composes with them. What they do is in
`pilotkit.launch`; nothing of it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from hydra.core.config_store import ConfigStore

SWEEPER = "hydra_plugins.pilotkit_launchers.SlurmSweeper"
FRONTIER = "hydra_plugins.pilotkit_launchers.FrontierSweeper"
SLURM = "hydra_plugins.pilotkit_launchers.SlurmLauncher"


def register_slurm_options(*, name: str = "pilotkit_slurm") -> None:
    """Add `hydra/launcher=<name>` and `hydra/sweeper=<name>`. Imports no plugin but the one that holds the base.

    `entry` (`module:function`) is what a job calls with the folder of its point; null: Hydra's own way of running a
    task. What another field leaves null follows from the configuration of each point.
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

    @dataclass
    class OurFrontierConf(BasicSweeperConf):
        _target_: str = FRONTIER
        over: str = "train.micro_batch_size"

    # The dataclass is made where its base is known; OmegaConf looks its names up in this module.
    node: Any = OurSlurmQueueConf()
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="pilotkit")
    ConfigStore.instance().store(group="hydra/sweeper", name=name, node=OurSweeperConf(), provider="pilotkit")
    ConfigStore.instance().store(group="hydra/sweeper", name="frontier", node=OurFrontierConf(), provider="pilotkit")
