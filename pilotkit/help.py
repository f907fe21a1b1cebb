"""The text of `pilotkit --help`: stages, groups and five commands. Reads the option files, composes nothing."""

from __future__ import annotations

from pilotkit.chapters import CHAPTERS, TOOLS
from pilotkit.config.store import list_groups

EXAMPLES = (
    ("everything on this machine, no GPU and no download", "pilotkit"),
    ("one stage, with options of one's own", "pilotkit stage=measure train.micro_batch_size=8 train.seq_len=256"),
    ("a sweep: one record a point", "pilotkit -m stage=measure train.micro_batch_size=1,2,4 train.seq_len=128,256"),
    (
        "one's own model and text",
        "pilotkit model=custom model.factory=my_package.models:build data=text_folder data.path=./corpus",
    ),
    ("what would run, and with which values", "pilotkit hardware=h100 parallelism=fsdp --cfg job"),
)


def help_text() -> str:
    """The whole page of help."""
    stages = [("all", "every stage below in this order, then a verdict and a page")]
    stages += [(chapter.stage, chapter.question) for chapter in CHAPTERS if chapter.built]
    stages += TOOLS
    width = max(len(stage) for stage, _ in stages)
    lines = [
        "pilotkit: evidence before you reserve GPUs",
        "",
        "usage: pilotkit [-m] [stage=STAGE] [GROUP=OPTION ...] [KEY=VALUE ...]",
        "",
        "stages (stage=..., all by default)",
        *(f"  {stage:<{width}}  {question}" for stage, question in stages),
        "",
        "groups (GROUP=OPTION)",
        *(f"  {group:<24}  {', '.join(options)}" for group, options in list_groups().items()),
        "",
        "examples",
    ]
    for words, command in EXAMPLES:
        lines += [f"  # {words}", f"  {command}"]
    lines += [
        "",
        "flags",
        "  -m, --multirun    run every combination of comma-separated values",
        "  --cfg job         print the composed configuration and stop (every KEY is in it)",
        "  --version         print pilotkit's version",
        "  --hydra-help      Hydra's own flags",
        "",
        "exit codes: 0 done (a run that does not fit is a result), 1 a stage failed, 2 the configuration is wrong",
    ]
    return "\n".join(lines) + "\n"
