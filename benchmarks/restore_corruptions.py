"""Corrupt a copy of a real checkpoint at random, again and again, and ask whether the verification finds it.

Used by `restore_trials.py` and by the tests. Needs no torch, as the verification needs none.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from pilotkit.records.checkpoint_check import check


def flip(path: Path, chance: random.Random) -> None:
    """One bit anywhere."""
    with open(path, "r+b") as stream:
        place = chance.randrange(path.stat().st_size)
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ (1 << chance.randrange(8))]))


def truncate(path: Path, chance: random.Random) -> None:
    """Cut off at any length, one byte short included."""
    size = path.stat().st_size
    os.truncate(path, chance.choice([size - 1, chance.randrange(size)]))


def lose(path: Path, chance: random.Random) -> None:
    """The file is gone."""
    del chance
    path.unlink()


def blank(path: Path, chance: random.Random) -> None:
    """A block that never reached the disk: as long as it was, with zeros in it."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    stop = min(start + 4096, len(content))
    if not any(content[start:stop]):
        content[start] = 255
    else:
        content[start:stop] = bytes(stop - start)
    path.write_bytes(content)


def add(path: Path, chance: random.Random) -> None:
    """A file that nobody saved."""
    path.with_name(f"__{chance.randrange(1000) + 7}_0.distcp").write_bytes(b"foreign")


def swap(path: Path, chance: random.Random) -> None:
    """The content of another file of the same checkpoint."""
    others = sorted(file for file in path.parent.iterdir() if file != path)
    path.write_bytes(chance.choice(others).read_bytes())


class Payload:
    """What a pickle must never be allowed to do."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.proof),)


def poison(path: Path, chance: random.Random) -> None:
    """A pickle that runs something."""
    del chance
    path.write_bytes(pickle.dumps(Payload(path.parent.parent / "executed")))


KINDS = {
    "flipped bit": flip,
    "truncated": truncate,
    "missing": lose,
    "block of zeros": blank,
    "foreign file": add,
    "content of another file": swap,
    "pickled payload": poison,
}


def trials(checkpoint: Path, folder: Path, *, count: int, seed: int) -> dict[str, tuple[int, int]]:
    """(corruptions, found and named) by kind. A corruption counts as found when a problem names its file."""
    chance = random.Random(seed)
    tally = dict.fromkeys(KINDS, (0, 0))
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        copy = shutil.copytree(checkpoint, folder / f"copy-{number}")
        before = {path.name for path in copy.iterdir()}
        victim = copy / chance.choice(sorted(before))
        KINDS[kind](victim, chance)
        added = {path.name for path in copy.iterdir()} - before
        problems = check(copy).problems
        named = any(str(copy / (added.pop() if added else victim.name)) in problem for problem in problems)
        done, found = tally[kind]
        tally[kind] = (done + 1, found + named)
        shutil.rmtree(copy)
    return tally
