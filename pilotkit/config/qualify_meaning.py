"""What the options of stage `qualify` say together. Called by `meaning`; returns problems, raises none."""

from __future__ import annotations

import re

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem

ATTENTION_BACKENDS = ("flash", "efficient", "cudnn", "math")


def check_qualify(config: PilotConfig) -> list[Problem]:
    options, problems = config.qualify, []
    unknown = [name for name in options.attention_backends if name not in ATTENTION_BACKENDS]
    if unknown:
        allowed = f"a list out of {', '.join(ATTENTION_BACKENDS)}"
        problems.append(Problem("qualify.attention_backends", unknown, allowed, "for example [flash,math]"))
    wrong = [name for name in options.kernels if not re.fullmatch(r"\w+::\w+", name)]
    if wrong:
        fix = "for example qualify.kernels=[aten::_fused_adamw_]"
        problems.append(Problem("qualify.kernels", wrong, "operators as `namespace::name`", fix))
    wrong = [name for name in options.archs if not re.fullmatch(r"sm_\d{2,3}[af]?\+?|gfx[0-9a-f]{3,4}", name)]
    if wrong:
        allowed = "architectures as torch names them: sm_90, gfx942, or sm_80+ for that one and any newer"
        problems.append(Problem("qualify.archs", wrong, allowed, "for example qualify.archs=[sm_80+]"))
    for text in options.packages:
        from packaging.requirements import InvalidRequirement, Requirement  # only for those who name some

        try:
            Requirement(text)
        except InvalidRequirement:
            allowed = "a requirement as pip writes it"
            problems.append(
                Problem("qualify.packages", text, allowed, "for example 'qualify.packages=[\"torch>=2.6\"]'")
            )
    return problems
