"""Everything that docs/restore.md claims about checkpoints, tried again: kills, corruptions, planted faults, shapes.

    python benchmarks/restore_trials.py [--kills 100] [--corruptions 200] [--seed 0]

Prints the table of docs/restore.md. Exits 1 when a fault was not caught, or when anything was lost. Takes about ten
minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import restore_corruptions
import restore_faults
from machine import describe

HERE = Path(__file__).resolve().parent
Line = tuple[str, int, int, str]  # what was tried, how often, how often it went right, what "right" is
SHAPES = (
    "stage=restore",
    "hardware.device_count=4",
    "parallelism.nproc_per_node=2",
    "model.kwargs.num_layers=2",
    "model.kwargs.hidden_size=32",
    "train.seq_len=32",
    "train.num_eval_batches=1",
    "restore.num_steps=2",
    "restore.world_sizes=[1,2,4]",
    "restore.strategies=[ddp,fsdp,hsdp]",
)


def main() -> int:
    """One table, one line a kind of trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--corruptions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    print(describe("torch"), flush=True)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines += kills(folder / "kills", count=options.kills, seed=options.seed)
        trial = restore_faults.Trial(folder / "faults")
        assert trial.record.status == "ok", trial.record.problem
        lines += faults(trial)
        saved = folder / "faults" / "saved"
        lines += corruptions(saved, folder / "corruptions", count=options.corruptions, seed=options.seed)
        lines += shapes(folder / "shapes")
    print("\n| trial | tried | right | what is right |\n|---|---|---|---|")
    for what, tried, right, meaning in lines:
        print(f"| {what} | {tried} | {right} | {meaning} |")
    print(f"\n{time.monotonic() - started:.0f} s")
    return int(any(tried != right for _, tried, right, _ in lines))


def kills(folder: Path, *, count: int, seed: int) -> list[Line]:
    """Half of them on one process, half on two ranks; then half as many again while the save is asynchronous."""
    lines = []
    for world_size, how, share in (
        (1, [], count - count // 2),
        (2, [], count // 2),
        (1, ["--async"], count // 4),
        (2, ["--async"], count // 4),
    ):
        here = folder / f"{world_size}{''.join(how)}"
        here.mkdir(parents=True)
        command = [sys.executable, str(HERE / "restore_kills.py"), str(here), "--kills", str(share)]
        command += ["--world-size", str(world_size), "--seed", str(seed), *how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        assert done.stdout, done.stderr
        tally = json.loads(done.stdout.splitlines()[-1])
        lost = max(tally[name] for name in ("lost_steps", "damaged", "latest_wrong", "not_cleaned", "not_resumed"))
        where = f"kill -9 at a random moment, {world_size} rank{'s' if world_size > 1 else ''}"
        where += ", asynchronous saves" if how else ""
        meaning = (
            f"nothing lost of {tally['saves']} saves; {tally['partials']} kills left a part, "
            f"reported and cleaned; {tally['kills_of_all_ranks']} of all ranks at once"
        )
        lines.append((where, tally["kills"], tally["kills"] - lost, meaning))
    return lines


def faults(trial: restore_faults.Trial) -> list[Line]:
    """One line a fault, with the words of the proof."""
    lines = []
    for name, fault in restore_faults.FAULTS.items():
        record = trial.with_fault(fault)
        said = restore_faults.named_by(record)
        rows = record.details.get("comparison") or [{"component": ""}]
        named = fault.component in said or fault.component == rows[-1]["component"]
        caught = record.status != "ok" and named and fault.part in said
        lines.append((f"planted: {name}", 1, int(caught), f"{record.status}, naming {fault.component}: {fault.part}"))
    return lines


def corruptions(saved: Path, folder: Path, *, count: int, seed: int) -> list[Line]:
    """One line a kind; the file is named each time, and nothing was executed."""
    folder.mkdir()
    tally = restore_corruptions.trials(saved, folder, count=count, seed=seed)
    executed = (folder / "executed").exists()
    return [
        (f"corrupted: {kind}", done, 0 if executed else found, "found before use, the file named")
        for kind, (done, found) in tally.items()
    ]


def shapes(folder: Path) -> list[Line]:
    """The real stage, all pairs in one run."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pilotkit", *SHAPES], cwd=folder, capture_output=True, text=True, timeout=3600
    )
    found = list(folder.glob("outputs/default/restore/*/record.json"))
    assert found, done.stdout + done.stderr
    rows = [row for row in json.loads(found[0].read_text())["details"]["comparison"] if " to " in row["component"]]
    by_size = [row for row in rows if row["component"].count("ddp") == 2]
    by_strategy = [row for row in rows if row not in by_size]
    meaning = "state bit for bit, the next rows the same and in order"
    return [
        (what, len(part), sum(row["verdict"] == "PASS" for row in part), meaning)
        for what, part in (("saved on N ranks, restored on M (1, 2, 4)", by_size), ("across strategies", by_strategy))
    ]


if __name__ == "__main__":
    sys.exit(main())
