"""Saving and loading against plain torch.distributed.checkpoint, and against raw writes and reads of the same bytes.

    python benchmarks/bench_checkpoint.py [--gigabytes 0.1 1 4] [--repeats 3] [--folder /where/the/disk/is]

One process; weights with the state of AdamW; medians. Plain DCP is torch's recipe: `get_state_dict`, save or load,
`set_state_dict`. The two savers change places from repeat to repeat, and so do the
loaders: many disks take the first bytes faster than those that follow at once. Reads come from the disk: the files are
dropped from the page cache first. Exits 1 when saving or loading takes over 1.15 times plain DCP.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from machine import describe
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from pilotkit.records import digests
from pilotkit.records.digests import sha256_of
from pilotkit.train import checkpoint
from pilotkit.train.async_save import AsyncSaver

LIMIT = 1.15
TENSOR_BYTES = 64_000_000
WORKLOAD = Path(__file__).resolve().parents[1] / "tests" / "torch" / "train" / "workload.py"
ADAMW = {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.0}
ADAMW_BYTES = 3  # of a weight: itself, and two moments as large
Way = tuple[str, Callable[[], Any]]


class Weights(torch.nn.Module):
    """Nothing but bytes."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        count = max(round(num_bytes / TENSOR_BYTES), 1)
        self.parts = torch.nn.ParameterList(torch.randn(num_bytes // count // 4) for _ in range(count))


def main() -> int:
    """One line a size and a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1, 1, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    print(describe("torch"))
    print("\n| GB | what | seconds | GB/s | times plain DCP |\n|---|---|---|---|---|")
    ratios = [ratio for size in options.gigabytes for ratio in compare(size, options.repeats, options.folder)]
    return int(any(ratio > LIMIT for ratio in ratios))


def compare(gigabytes: float, repeats: int, where: Path | None) -> list[float]:
    """Ratios of save and load to plain DCP; the ways take turns, so that a busy disk meets all of them."""
    num_bytes = int(gigabytes * 1e9)
    trainer = _trainer_with(num_bytes)
    content = memoryview(os.urandom(TENSOR_BYTES))
    found: dict[str, list[float]] = {}

    def save_async() -> float:
        saver = AsyncSaver()
        saved = saver.save(trainer, folder / "async", config_text="").result()
        saver.close()
        return saved.blocking_seconds

    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        for repeat in range(repeats):
            savers: list[Way] = [
                ("plain DCP save", lambda: plain_save(trainer, folder / "dcp")),
                ("save", lambda: checkpoint.save(trainer, folder / "own", config_text="")),
                ("save without digests", lambda: save_without_digests(trainer, folder / "bare")),
            ]
            loaders: list[Way] = [
                ("plain DCP load", lambda: plain_load(trainer, folder / "dcp")),
                ("load", lambda: checkpoint.load(trainer, folder / "own")),
            ]
            ways: list[Way] = [
                ("raw write", lambda: _write(folder / "raw", content, num_bytes)),
                *(savers if repeat % 2 else reversed(savers)),
                ("digests alone", lambda: [sha256_of(path) for path in (folder / "own").glob("*.distcp")]),
                ("asynchronous save", save_async),
                ("raw read", lambda: _read(folder / "raw")),
                *(loaders if repeat % 2 else reversed(loaders)),
            ]
            for what, way in ways:
                os.sync()
                if "read" in what or "load" in what:
                    _drop_from_cache(folder)
                started = time.perf_counter()
                blocking_seconds = way()
                found.setdefault(what, []).append(time.perf_counter() - started)
                if what == "asynchronous save":
                    found.setdefault("of it blocking", []).append(blocking_seconds)
            for path in ("dcp", "own", "bare", "async"):
                shutil.rmtree(folder / path)
    return _tell(gigabytes, found)


def plain_save(trainer: Any, path: Path) -> None:
    """As torch's own recipe does it."""
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=path, no_dist=True)


def save_without_digests(trainer: Any, path: Path) -> None:
    """The same way to the disk with nothing summed up: what is left of a save is what the digests cost."""

    class Nothing:
        def update(self, piece: Any) -> None:
            pass

        def hexdigest(self) -> str:
            return "0" * 64

    with mock.patch.object(digests.hashlib, "sha256", side_effect=lambda *_: Nothing()):
        checkpoint.save(trainer, path, config_text="")


def plain_load(trainer: Any, path: Path) -> None:
    """As torch's own recipe does it."""
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    set_state_dict(
        trainer.model, trainer.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def _trainer_with(num_bytes: int) -> Any:
    """A state of so many bytes, as it is after a step."""
    trainer = _load_workload().build_trainer(model=Weights(num_bytes // ADAMW_BYTES), optimizer=ADAMW)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return trainer


def _tell(gigabytes: float, found: dict[str, list[float]]) -> list[float]:
    ratios = []
    for what, seconds in found.items():
        ratio = ""
        if plain := found.get(f"plain DCP {what}"):
            # Of each repeat, as the disk is not as fast in all of them.
            ratios.append(statistics.median(own / other for own, other in zip(seconds, plain, strict=True)))
            ratio = f"{ratios[-1]:.2f}"
        median = statistics.median(seconds)
        print(f"| {gigabytes:g} | {what} | {median:.2f} | {gigabytes / median:.2f} | {ratio} |", flush=True)
    shares = [1 - bare / own for own, bare in zip(found["save"], found["save without digests"], strict=True)]
    print(f"| {gigabytes:g} | digests, of a save | {statistics.median(shares):.0%} |  |  |", flush=True)
    return ratios


def _write(path: Path, content: memoryview, num_bytes: int) -> None:
    with open(path, "wb") as stream:
        for _ in range(max(num_bytes // len(content), 1)):
            stream.write(content[: min(len(content), num_bytes)])
        stream.flush()
        os.fsync(stream.fileno())


def _read(path: Path) -> None:
    buffer = bytearray(TENSOR_BYTES)
    with open(path, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _drop_from_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _load_workload() -> Any:
    spec = importlib.util.spec_from_file_location("train_workload", WORKLOAD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
