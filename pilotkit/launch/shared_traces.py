"""Before a sweep of estimates runs here: which of its points can share a trace.

Called by the launcher that runs points one after the other in this process. The first point of a kind then estimates
all of them (`pilotkit.stages.estimate`); points in processes of their own, or on a cluster, each trace for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pilotkit.config.identity import traced_digest
from pilotkit.config.load import load
from pilotkit.errors import PilotkitError
from pilotkit.launch.compose import Composer
from pilotkit.records.shared_traces import Shape, write_shapes


def announce_shapes(launcher: Any, job_overrides: Sequence[Sequence[str]]) -> None:
    """Write down the shapes of each kind of point. A point that cannot be composed says so itself when it runs."""
    if launcher.config.stage != "estimate" and not any("stage=estimate" in words for words in job_overrides):
        return
    composer = Composer(launcher.hydra_context.config_loader, launcher.config)
    kinds: dict[str, list[Shape]] = {}
    for overrides in job_overrides:
        try:
            config = load(composer.compose(overrides), launch_dir=composer.launch_dir)
        except (PilotkitError, HydraException, OmegaConfBaseException):
            continue
        if config.stage == "estimate":
            digest = traced_digest(config)
            kinds.setdefault(digest, []).append((config.train.micro_batch_size, config.train.seq_len))
    for digest, shapes in kinds.items():
        if len(shapes) > 1:
            write_shapes(Path(launcher.config.hydra.sweep.dir).absolute(), digest, shapes)
