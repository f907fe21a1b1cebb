"""Kill -9 at random moments of a run that does little but save; then look whether anything was lost.

    python benchmarks/restore_kills.py FOLDER --kills 100 --world-size 2 [--seed 0] [--async]

Prints one JSON object. This process imports torch once and forks every rank, so that a trial is short and most kills
fall into saves; the ranks train, save, publish and retain with the package's own code. Used by `restore_trials.py` and
by the tests.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pilotkit.records.checkpoint_check import check
from pilotkit.records.checkpoint_store import CheckpointStore, Retention
from pilotkit.train.async_save import AsyncSaver
from pilotkit.train.store import load_newest, save_step, save_step_async

WORKLOAD = Path(__file__).resolve().parents[1] / "tests" / "torch" / "train" / "workload.py"
READY_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 0.25
RankRun = Callable[[CheckpointStore, Any, int], None]
KEPT = Retention(keep_last=2, keep_every_steps=50)


@dataclass
class Tally:
    """What was found after the kills. Everything below `partials` has to be zero."""

    kills: int = 0
    kills_of_all_ranks: int = 0
    saves: int = 0
    partials: int = 0
    """Kills that left a save or a deletion half done; each was reported and cleaned up."""
    lost_steps: int = 0
    """A step whose save had returned, and that no checkpoint holds any more."""
    damaged: int = 0
    """Checkpoints with their name that do not verify."""
    latest_wrong: int = 0
    not_cleaned: int = 0
    not_resumed: int = 0


def main() -> int:
    """Exit code 0 when nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--async", dest="is_async", action="store_true", help="save while training goes on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = _train_and_save_async if options.is_async else _train_and_save
    tally = trials(options.folder, run, kills=options.kills, world_size=options.world_size, seed=options.seed)
    print(json.dumps(asdict(tally)))
    return int(any((tally.lost_steps, tally.damaged, tally.latest_wrong, tally.not_cleaned, tally.not_resumed)))


def trials(folder: Path, run: RankRun, *, kills: int, world_size: int, seed: int) -> Tally:
    """Start, kill, look; the next start goes on from what is there."""
    chance = random.Random(seed)
    workload = _load_workload()
    store = CheckpointStore(folder / "checkpoints")
    tally = Tally()
    _warm_up(folder, workload)
    while tally.kills < kills:
        before = max((_step_of(path) for path in store.whole()), default=0)
        ranks, pipe = _start(folder, store, workload, run, world_size=world_size, number=tally.kills)
        resumed_at, acknowledged = _kill_at_random(ranks, pipe, chance, tally)
        tally.not_resumed += resumed_at != before
        _look(store, tally, acknowledged=acknowledged)
    return tally


def _warm_up(folder: Path, workload: Any) -> None:
    """What torch imports at the first step and the first save is there before the ranks are forked."""
    store = CheckpointStore(folder / "warm-up")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    trainer = workload.build_trainer(strategy="fsdp")
    trainer.train_step()
    save_step(store, trainer, config_text="")
    load_newest(store, workload.build_trainer(strategy="fsdp"))
    dist.destroy_process_group()


def _start(
    folder: Path, store: CheckpointStore, workload: Any, run: RankRun, *, world_size: int, number: int
) -> tuple[list[int], int]:
    reader, writer = os.pipe()
    ranks = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            try:
                trainer = _join(folder / f"rendezvous-{number}", workload, rank, world_size)
                load_newest(store, trainer)
                _say(writer, rank, trainer.step)
                run(store, trainer, writer)
            except BaseException:
                # A rank whose neighbour was killed ends here; anything else is found in this file.
                with open(folder / "errors.txt", "a", encoding="utf-8") as stream:
                    traceback.print_exc(file=stream)
            os._exit(1)
        ranks.append(pid)
    os.close(writer)
    return ranks, reader


def _join(rendezvous: Path, workload: Any, rank: int, world_size: int) -> Any:
    """The trainer of one rank, among the others."""
    if world_size > 1:
        shared = dist.FileStore(str(rendezvous), world_size)
        dist.init_process_group(
            "gloo", store=shared, rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=30)
        )
    return workload.build_trainer(strategy="fsdp" if world_size > 1 else "single")


def _train_and_save(store: CheckpointStore, trainer: Any, writer: int) -> None:
    """Runs until it is killed. Rank 0 says where it goes on, then every step whose save has returned."""
    while True:
        trainer.train_step()
        save_step(store, trainer, config_text="", retention=KEPT)
        _say(writer, trainer.rank, trainer.step)


def _train_and_save_async(store: CheckpointStore, trainer: Any, writer: int) -> None:
    """The same, but the next step is trained while the last one is written; a step is said once it is on the disk."""
    saver = AsyncSaver()
    while True:
        trainer.train_step()
        saved = saver.wait()
        if saved is not None:
            _say(writer, trainer.rank, _step_of(saved.path))
        save_step_async(store, trainer, saver=saver, config_text="", retention=KEPT)


def _say(writer: int, rank: int, step: int) -> None:
    if rank == 0:
        os.write(writer, f"{step}\n".encode())


def _kill_at_random(ranks: list[int], pipe: int, chance: random.Random, tally: Tally) -> tuple[int, int]:
    """All ranks at one moment, or one of them and the rest a little later. Returns the first and the last step said."""
    steps = _listen(pipe, num_steps=chance.randint(1, 3))
    time.sleep(chance.uniform(0.0, LONGEST_WAIT_SECONDS))
    victims = list(ranks) if chance.random() < 0.5 else [chance.choice(ranks)]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if len(victims) < len(ranks):
        time.sleep(0.02)  # the others run into a collective without it
    else:
        tally.kills_of_all_ranks += 1
    for pid in ranks:
        if pid not in victims:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    tally.kills += 1
    while chunk := os.read(pipe, 65536):
        steps += [int(word) for word in chunk.decode().split()]
    os.close(pipe)
    tally.saves += len(steps) - 1
    return steps[0], steps[-1]


def _listen(pipe: int, *, num_steps: int) -> list[int]:
    """Wait until that many lines were said."""
    steps: list[int] = []
    while len(steps) < num_steps:
        if not select.select([pipe], [], [], READY_SECONDS)[0]:
            raise SystemExit(f"the ranks said nothing for {READY_SECONDS} s")
        chunk = os.read(pipe, 65536)
        if not chunk:
            raise SystemExit("the ranks ended by themselves")
        steps += [int(word) for word in chunk.decode().split()]
    return steps


def _look(store: CheckpointStore, tally: Tally, *, acknowledged: int) -> None:
    """What somebody finds who comes after the kill."""
    whole = store.whole()
    checked = [check(path) for path in whole]
    tally.damaged += sum(not one.is_sound for one in checked)
    newest = max((_step_of(path) for path in whole), default=0)
    tally.lost_steps += newest < acknowledged
    latest = store.latest()
    # A kill between the name and `latest` leaves it one behind until the next start, but never behind what was said.
    tally.latest_wrong += bool(acknowledged) and (latest is None or _step_of(latest) < acknowledged)
    partials = store.partials()
    tally.partials += bool(partials)
    store.clean()
    # A folder whose saver died before it had signed it is nobody's: it stays until it was silent for long enough.
    tally.not_cleaned += any(not left.is_in_progress for left in store.partials())
    store.clean(silent_seconds=0)
    tally.not_cleaned += bool(store.partials())


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _load_workload() -> Any:
    spec = importlib.util.spec_from_file_location("train_workload", WORKLOAD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
