"""May a run go on from a checkpoint of another lock? Called by the phases of `restore` before anything is loaded.

The configuration is compared by `config.resume`; here is what else decides how training goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilotkit.config.resume import is_allowed
from pilotkit.errors import ConfigError, Problem
from pilotkit.provenance.drift import RESTORE, Drift, compare_locks
from pilotkit.provenance.lock import from_yaml

CONFIG_PREFIX = "config."


def refuse_lock_drift(saved_text: str, here_text: str, *, allowed: Sequence[str]) -> list[Drift]:
    """What differs between the lock of the checkpoint and the one of here, and is allowed by name.

    Nothing when one of the two was never locked. Raises ConfigError naming every other field, as `lock.<field>`.
    """
    if not saved_text.strip() or not here_text.strip():
        return []
    try:
        saved = from_yaml(saved_text)
    except ValueError as error:
        fix = f"the lock in it cannot be read: {error}"
        raise ConfigError([Problem("restore.path", "this checkpoint", "one that pilotkit saved", fix)]) from error
    found = [
        item
        for item in compare_locks(saved, from_yaml(here_text)).drift
        if RESTORE in item.voids and not item.field.startswith(CONFIG_PREFIX)
    ]
    refused = [item for item in found if not is_allowed(f"lock.{item.field}", allowed)]
    if refused:
        raise ConfigError([_problem(item) for item in refused])
    return found


def _problem(item: Drift) -> Problem:
    section = item.field.partition(".")[0]
    fix = f"bring it back, or allow it by name: restore.allow_changes=[lock.{section}]"
    return Problem(f"lock.{item.field}", item.now, f"{item.was}, as the checkpoint was saved with", fix)
