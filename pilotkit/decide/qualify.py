"""One verdict for one set of software and hardware: what was found, against what the hardware option promises. Pure.

Called by stage `qualify`. A row is `{check, subject, verdict, note}`; the worker's rows come in as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pilotkit.provenance.builds import fits, has_kernels
from pilotkit.units import format_bytes, format_count

PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"
Row = dict[str, str]
BUILT_FOR = {"cuda": "cuda", "rocm": "hip"}

# What somebody can do about it, by the kind of check that failed.
MENDS = {
    "build": "install a torch that is built for this device",
    "architecture": "take a device that the application supports, or correct qualify.archs",
    "package": "install that version, or correct qualify.packages",
    "step": "mend the model, or take a build that has this operator",
    "operator": "take another version of what brings this operator, or keep it out of the model",
    "gradient": "correct the backward of what lies between there and the loss",
    "extension": "build it for this device and have the model call it, or take it out of qualify.extensions",
    "kernel": "install what registers it and have the model use it, or correct qualify.kernels",
    "attention backend": "install a build that has it, or correct qualify.attention_backends",
    "collective": "take another version of the collectives library, or a strategy that does without",
    "speed": "have the card looked at, or correct the figures of the hardware option",
    "cards": "have that card exchanged, or leave it out",
}


def row(check: str, subject: str, verdict: str, note: str = "") -> Row:
    """One line of the card."""
    return {"check": check, "subject": subject, "verdict": verdict, "note": note}


def is_qualified(rows: Sequence[Mapping[str, str]]) -> bool:
    """Nothing failed, and operators were really exercised: what only imports is not qualified."""
    exercised = any(r["check"] == "operator" and r["verdict"] == PASS for r in rows)
    return exercised and not any(r["verdict"] == FAIL for r in rows)


def with_mends(rows: Sequence[Row]) -> list[Row]:
    """The same rows, each that failed with what can be done about it."""
    return [
        {**r, "note": f"{r['note']}; {MENDS[r['check']]}"} if r["verdict"] == FAIL and r["check"] in MENDS else r
        for r in rows
    ]


def reasons(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Why the set is not qualified, one sentence each."""
    failed = [f"{r['check']} {r['subject']}: {r['note']}" for r in rows if r["verdict"] == FAIL]
    if not failed and not is_qualified(rows):
        return ["no operator was exercised"]
    return failed


def judge_stack(stack: Mapping[str, Any], *, device_type: str, archs: Sequence[str]) -> list[Row]:
    """Is this torch built for this device at all? `archs` are those that the application accepts; empty is any."""
    build = f"torch {stack['torch']}"
    if device_type == "cpu":
        rows = [row("build", build, PASS, "runs on the CPU")]
        if archs:
            note = f"the CPU has no architecture to compare with {' or '.join(archs)}"
            rows.append(row("architecture", "cpu", NOT_RUN, note))
        return rows
    if not stack[BUILT_FOR[device_type]]:
        built_for = "ROCm" if stack["hip"] else "CUDA" if stack["cuda"] else "the CPU only"
        return [row("build", build, FAIL, f"is built for {built_for}, and the device needs {device_type}")]
    arch, kernels = str(stack["arch"]), [str(name) for name in stack["built_for"]]
    rows = []
    if has_kernels(arch, kernels):
        rows.append(row("build", build, PASS, f"has kernels for {arch}"))
    else:
        rows.append(row("build", build, FAIL, f"has no kernels for {arch} (built for {', '.join(kernels)})"))
    if archs and not any(fits(arch, wanted) for wanted in archs):
        rows.append(row("architecture", arch, FAIL, f"the application needs {' or '.join(archs)}"))
    return rows


def judge_speed(subject: str, *, found: float, promised: float | None, min_ratio: float, unit: str) -> Row:
    """A measured rate against the hardware option's; `unit` is `FLOP` or `bytes`."""
    shown = _rate(found, unit)
    if promised is None:
        return row("speed", subject, NOT_RUN, f"{shown}; the hardware option promises nothing to compare with")
    ratio = found / promised
    note = f"{shown}, {ratio:.1%} of the {_rate(promised, unit)} that the hardware option promises"
    if ratio < min_ratio:
        return row("speed", subject, FAIL, f"{note}; at least {min_ratio:.0%} is expected: a slow card, or another one")
    return row("speed", subject, PASS, note)


def judge_cards(rates: Sequence[float], names: Sequence[str], *, min_share: float, shared: bool) -> Row:
    """Whether one card of the node is slower than its neighbours; `shared` when the ranks share one processor."""
    middle = _rate(median(rates), "FLOP")
    if shared:
        return row("cards", f"{len(rates)} ranks", NOT_RUN, f"{middle} at the median; the ranks share one processor")
    fastest = max(rates)
    slow = [
        f"rank {rank} ({name}) at {_rate(rate, 'FLOP')}, {rate / fastest:.0%} of the fastest"
        for rank, (rate, name) in enumerate(zip(rates, names, strict=True))
        if rate < min_share * fastest
    ]
    if slow:
        return row("cards", f"{len(rates)} ranks", FAIL, f"slow: {'; '.join(slow)}")
    return row("cards", f"{len(rates)} ranks", PASS, f"{middle} at the median, the slowest {min(rates) / fastest:.0%}")


def judge_package(requirement: str, *, installed: str | None, fits: bool) -> Row:
    """A requirement against what is installed."""
    if installed is None:
        return row("package", requirement, FAIL, "is not installed")
    return row("package", requirement, PASS if fits else FAIL, f"{installed} is installed")


def _rate(value: float, unit: str) -> str:
    return f"{format_bytes(value)}/s" if unit == "bytes" else f"{format_count(value)}FLOP/s"
