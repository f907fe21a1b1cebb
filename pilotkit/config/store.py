"""Where the option files are, and how Hydra learns the types.

Called by the front door before anything is composed. Never reads a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore

from pilotkit.config.schema import PilotConfig
from pilotkit.config.slurm_options import register_slurm_options

SCHEMA_NAME = "schema"
CONFIG_NAME = "config"


def conf_dir() -> Path:
    """The folder of option files: inside the package when it was installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / f"{CONFIG_NAME}.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"pilotkit's option files are missing: no conf/{CONFIG_NAME}.yaml in or beside {package}")


def register_schema() -> None:
    """Make the dataclasses the root that `conf/config.yaml` builds on, so that Hydra refuses a wrong key or type."""
    ConfigStore.instance().store(name=SCHEMA_NAME, node=PilotConfig, provider="pilotkit")
    register_slurm_options()


def list_groups(*, extra_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Every group with its options, as the folders and files of `conf/`, and of further folders, name them."""
    groups: dict[str, set[str]] = {}
    for root in (conf_dir(), *extra_dirs):
        for folder in root.iterdir() if root.is_dir() else ():
            if folder.is_dir() and not folder.name.startswith((".", "_")):
                groups.setdefault(folder.name, set()).update(file.stem for file in folder.glob("*.yaml"))
    return {name: sorted(groups[name]) for name in sorted(groups)}
