"""Whether docs/measuring.md speaks of every figure of a real record. Used by the tests that make one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measuring.md"
RUNS = re.compile(r"^(?:single|ddp|fsdp|hsdp|script)_")
PLACEHOLDERS = {
    "<mode>": "(?:none|full|selective)",
    "<kind>": "(?:all_reduce|all_gather|reduce_scatter|broadcast|all_to_all|reduce|send_recv|collective)",
}


def undocumented(metrics: Iterable[str]) -> list[str]:
    """Names of metrics that the page does not have in code style, a strategy's prefix left off."""
    told = re.findall(r"`([a-z0-9_<>]+)`", PAGE.read_text(encoding="utf-8"))
    patterns = []
    for name in told:
        for placeholder, pattern in PLACEHOLDERS.items():
            name = name.replace(placeholder, pattern)
        patterns.append(name)
    known = re.compile("|".join(f"(?:{pattern})" for pattern in patterns if "<" not in pattern))
    return [name for name in metrics if not known.fullmatch(RUNS.sub("", name)) and not known.fullmatch(name)]
