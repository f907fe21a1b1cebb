"""Hydra finds launchers only in this namespace. What they do is in `pilotkit.launch`; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import LocalLauncher as HydraLocalLauncher
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher as HydraSlurmLauncher

from pilotkit.config.slurm_options import register_slurm_options

# Hydra imports its plugins to learn of their options: any application may say hydra/launcher=pilotkit_slurm.
register_slurm_options()


class HereLauncher(BasicLauncher):  # type: ignore[misc] # Hydra's plugins have no types
    """Points one after the other in this process, as Hydra's own does; those of estimates share their traces."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pilotkit.launch.shared_traces import announce_shapes

        announce_shapes(self, job_overrides)
        done: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        return done


class LocalLauncher(HydraLocalLauncher):  # type: ignore[misc] # the plugin has no types
    """Jobs as processes of this machine. A job that dies becomes a row of the sweep, not the end of it."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pilotkit.launch.local_jobs import launch_and_account

        return launch_and_account(self, job_overrides, initial_job_idx)


class SlurmLauncher(HydraSlurmLauncher):  # type: ignore[misc] # the plugin has no types
    """Jobs of a Slurm cluster: one array a shape of resources, and the terminal is free after submission."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        if self.params.get("entry"):
            from pilotkit.launch.slurm_sweep import submit_sweep

            return submit_sweep(self, job_overrides, initial_job_idx)
        from pilotkit.launch.slurm_tasks import run_tasks

        return run_tasks(self, job_overrides, initial_job_idx)


class SlurmSweeper(BasicSweeper):  # type: ignore[misc] # Hydra's plugins have no types
    """Hydra's sweeper without its trial composition of every point: the launcher composes and checks them itself."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher, which refuses the whole sweep for one wrong point."""


class FrontierSweeper(BasicSweeper):  # type: ignore[misc] # Hydra's plugins have no types
    """The largest value of one key that fits, for each choice of the others."""

    def __init__(self, over: str, max_batch_size: int | None = None, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=max_batch_size, params=params)
        self.over = over

    def sweep(self, arguments: list[str]) -> Any:
        from pilotkit.launch.frontier import search

        return search(self, arguments)
