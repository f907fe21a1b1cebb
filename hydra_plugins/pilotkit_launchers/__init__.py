"""Hydra finds launchers only in this namespace. What they do is in `pilotkit.launch`; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import LocalLauncher as HydraLocalLauncher


class LocalLauncher(HydraLocalLauncher):  # type: ignore[misc] # the plugin has no types
    """Jobs as processes of this machine. A job that dies becomes a row of the sweep, not the end of it."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pilotkit.launch.local_jobs import launch_and_account

        return launch_and_account(self, job_overrides, initial_job_idx)
