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
    ),
    Chapter(
        "pilot",
        "pilot",
        "DDP or sharding, and what does communication cost?",
        "tokens per second of each strategy, scaling against one device, the written reason for a choice",
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
    ),
    Chapter(
        "budget",
        "budget",
        "What does everything around the step cost?",
        "a ledger: download, start, first batch, warm-up, steps, stalls, communication, evaluation, checkpoints, "
        "restart, copy-out, each with n, mean, p95 and origin",
    ),
    Chapter(
        "decide",
        "plan",
        "Which hardware, how many, and which reservation: how sure, and at what cost?",
        "probability to be done in each reservation, where adding devices stops helping, money at your prices, "
        "every option accepted or rejected with its reason, one verdict",
    ),
    Chapter(
        "tell",
        "report",
        "Can I show this to the person who pays?",
        "one HTML page and terminal tables; every number marked measured, estimated, projected, given or not run",
    ),
)


# Stages beside the chapters: asked for by name only, and no part of the verdict.
TOOLS: tuple[tuple[str, str], ...] = (
    ("sweep_status", "Where does a submitted sweep stand? Looks, and changes nothing."),
    ("sweep_collect", "What became of every point of a sweep? Fixes the truth of each."),
    ("checkpoint_verify", "Is the checkpoint in restore.path whole, unchanged and safe to load? Without torch."),
    ("replay", "Does a recorded run find the same again? (replay.run=FOLDER)"),
)


def chapter_of(stage: str) -> Chapter:
    """The chapter that a stage belongs to. Raises KeyError on a word that is not a stage."""
    for chapter in CHAPTERS:
        if chapter.stage == stage:
            return chapter
    raise KeyError(stage)
