"""A small project that is locked: a git repository with a model and data, 300 installed distributions, a hub cache.

Made by `lock_trials.py`, which plants drifts in it. Everything lies below one temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hydra import compose, initialize_config_dir

from pilotkit.config.load import load
from pilotkit.config.schema import PilotConfig
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
from pilotkit.provenance.lock import from_yaml, lock_digest, to_yaml
from pilotkit.stages import gate

NUM_PACKAGES = 300
COMMIT = "a1" * 20
# As long as those of an environment with torch are on average, 11 kB: all of it is read.
DESCRIPTION = "What this package does, in one line of its own.\n" * 230
MODELS = "from mine.layers import Layer\n\n\ndef build():\n    return Layer()\n"


@dataclass
class World:
    """One project on the disk, and how it is locked."""

    folder: Path
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    configs: dict[tuple[Any, ...], PilotConfig] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def lock(self, *overrides: str, launch_dir: Path | None = None) -> dict[str, Any]:
        """What the gate sees, through the text that is committed."""
        start = launch_dir or self.project
        if (overrides, start) not in self.configs:  # composing takes longer than the lock
            with initialize_config_dir(str(conf_dir()), version_base="1.3"):
                self.configs[overrides, start] = load(compose(CONFIG_NAME, overrides=list(overrides)), launch_dir=start)
        config = self.configs[overrides, start]
        began, processor = time.perf_counter(), processor_seconds()
        lock = gate.current_lock(config, launch_dir=start)
        lock_digest(lock)
        self.seconds.append(time.perf_counter() - began)
        self.processor_seconds.append(processor_seconds() - processor)
        return from_yaml(to_yaml(lock))

    def git(self, *arguments: str, folder: Path | None = None) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        command = ["git", *identity, *arguments]
        subprocess.run(command, cwd=folder or self.project, check=True, capture_output=True)


def processor_seconds() -> float:
    """Of this process and of those it has waited for (git): what a busy neighbour does not change."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextlib.contextmanager
def world() -> Iterator[World]:
    """Make the project; the process sees it as its own until the end."""
    register_schema()
    variables = {
        "HF_HUB_OFFLINE": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "OMP_NUM_THREADS": "2",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, variables):
        made = World(Path(name).resolve())
        os.environ["HF_HUB_CACHE"] = str(made.folder / "hub")
        os.environ["GIT_CEILING_DIRECTORIES"] = str(made.folder)
        for variable in ("CUDA_VISIBLE_DEVICES", "PILOTKIT_IMAGE"):
            os.environ.pop(variable, None)
        _make_project(made)
        with mock.patch.object(sys, "path", [str(made.site), *sys.path]), _offline():
            yield made


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """The hub's library reads its variable once, and may have been imported before."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    with mock.patch.object(constants, "HF_HUB_OFFLINE", True):
        yield


def _make_project(made: World) -> None:
    project = made.project
    for path, text in {
        project / "mine/__init__.py": "",
        project / "mine/models.py": MODELS,
        project / "mine/layers.py": "class Layer: ...\n",
        project / "rows/a.txt": "one row\n" * 200,
        project / "rows/b.txt": "two rows\n" * 200,
        project / "weights/config.json": '{"model_type": "gpt2"}',
        project / "weights/model.safetensors": "0" * 64,
        project / "README.md": "words\n",
        project / ".gitignore": "outputs/\n",
        made.folder / "editable/setup.py": "",
        made.folder / "editable/tool.py": "x = 1\n",
        made.folder / "hub/models--org--net/refs/main": COMMIT,
        made.folder / "hub/models--org--tokens/refs/main": COMMIT,
        made.folder / "image.sif": "image",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for number in range(NUM_PACKAGES):
        install(made, f"package-{number:03}", "1.0")
    install(made, "wheel", "1.0", wheel("1" * 64))
    install(made, "source", "1.0", source(COMMIT))
    editable = (made.folder / "editable").as_uri()
    install(made, "tool", "1.0", {"url": editable, "dir_info": {"editable": True}})
    made.git("init", "--quiet")
    made.git("add", ".")
    made.git("commit", "--quiet", "--message", "first")


def install(made: World, name: str, version: str, direct: Mapping[str, Any] | None = None) -> Path:
    folder = made.site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(f"{head}\n{DESCRIPTION}", encoding="utf-8")
    (folder / "INSTALLER").write_text("pip\n", encoding="utf-8")
    if direct is not None:
        (folder / "direct_url.json").write_text(json.dumps(direct), encoding="utf-8")
    return folder


def wheel(sha256: str) -> dict[str, Any]:
    return {"url": "https://x.org/w.whl", "archive_info": {"hashes": {"sha256": sha256}}}


def source(commit: str) -> dict[str, Any]:
    return {"url": "https://x.org/r", "vcs_info": {"vcs": "git", "commit_id": commit}}
