"""The chapters of a plan, in the order in which they are worked through: what each asks, and what it leaves behind.

Read by the front door (`--help`), by the stage that runs all of them, and by the report. Words only; runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One question: `chapter` names it on the page, `stage` in `stage=`; `built` says that this version can run it."""

    chapter: str
    stage: str
    question: str
    evidence: str
    built: bool = True


CHAPTERS: tuple[Chapter, ...] = (
    Chapter(
        "pin",
        "lock",
        "Exactly what are we running?",
        "model and data set revisions, dependency versions, configuration, seeds, container digest, git state; "
        "and a gate that names what drifted",
    ),
    Chapter(
        "think",
        "estimate",
        "Will it fit, and how fast, on hardware I do not have yet?",
        "predicted peak memory and step time for a grid of micro-batch and seq-len on any named accelerator",
    ),
    Chapter(
        "prove",
        "prove",
        "Does one complete step work on one accelerator?",
        "load, optimizer steps, evaluation, checkpoint save, checkpoint restore: one PASS/FAIL card",
    ),
    Chapter(
        "measure",
        "measure",
        "What does a representative step really cost?",
        "peak allocated, peak reserved, device-wide memory, step time with its spread, data wait, MFU",
    ),
    Chapter(
        "choose",
        "numerics",
        "Are lower precision and activation checkpointing worth it, separately?",
        "loss and gradient deviation against fp32 beside the seed-to-seed noise floor; memory saved for time added",
        built=False,
    ),
    Chapter(
        "pilot",
        "pilot",
        "DDP or sharding, and what does communication cost?",
        "tokens per second of each strategy on one node, scaling against one device, the written reason for a choice",
    ),
    Chapter(
        "restore",
        "restore",
        "Can we really resume?",
        "save, end the process, restore in a new one, resume; compared with a run that never stopped",
    ),
    Chapter(
        "qualify",
        "qualify",
        "Is this software stack, as one set, fit for this accelerator?",
        "image digest, torch, CUDA or ROCm, extensions and the kernels exercised: one verdict for the set",
        built=False,
    ),
    Chapter(
        "budget",
        "budget",
        "What does everything around the step cost?",
        "a ledger: download, start, first batch, warm-up, steps, stalls, evaluation, checkpoints, restart, copy-out",
    ),
    Chapter(
        "decide",
        "plan",
        "Which reservation is long enough, and what does it cost?",
        "hours of the run against each reservation, GPU-hours, money at the given price, one verdict",
    ),
    Chapter(
        "tell",
        "report",
        "Can I show this to the person who pays?",
        "one HTML page and terminal tables; every number marked measured, estimated, projected, given or not run",
    ),
)


def chapter_of(stage: str) -> Chapter:
    """The chapter that a stage belongs to. Raises KeyError on a word that is not a stage."""
    for chapter in CHAPTERS:
        if chapter.stage == stage:
            return chapter
    raise KeyError(stage)
