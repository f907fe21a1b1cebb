"""DDP or sharding, with the reason written out: memory with headroom first, then speed, then the price in traffic.

Called by stage `pilot`. Pure arithmetic over the pilot's own metrics. Never claims that the memory of devices adds up:
what counts is what one device has to hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotkit.units import format_bytes, format_count, format_seconds

# DDP is the simplest and the easiest to debug: sharding has to be faster by more than this to be worth it.
WORTH_CHANGING = 0.05
SHARDED = ("fsdp", "hsdp")


def recommend_strategy(
    metrics: Mapping[str, float], statuses: Mapping[str, str], *, memory_bytes: float, headroom: float
) -> dict[str, str | None]:
    """`strategy` and `reason`. `metrics` are the pilot's, prefixed by strategy; `statuses` say how each one ended.

    `memory_bytes` is what one device has, `headroom` the share of it that has to stay free (0.1: 10 %). A strategy
    that ran without the headroom is only taken when none has it.
    """
    ran = {name: metrics[f"{name}_tokens_per_second"] for name, status in statuses.items() if status == "ok"}
    did_not = [f"{name} {_words(status)}" for name, status in statuses.items() if status != "ok"]
    if not ran:
        return {"strategy": None, "reason": f"no strategy ran: {', '.join(did_not)}." if did_not else "no strategy ran"}
    limit = memory_bytes * (1 - headroom)
    roomy = {name: speed for name, speed in ran.items() if peak_of(metrics, name) <= limit}
    candidates = roomy or ran
    fastest = max(candidates, key=lambda name: candidates[name])
    chosen = fastest
    if candidates.get("ddp", 0.0) >= candidates[fastest] * (1 - WORTH_CHANGING):
        chosen = "ddp"
    sentences = [_why(metrics, statuses, chosen=chosen, fastest=fastest, roomy=roomy, limit=limit, headroom=headroom)]
    sentences += [_line(metrics, name) for name in (chosen, *(name for name in ran if name != chosen))]
    if did_not:
        sentences.append(", ".join(did_not))
    return {"strategy": chosen, "reason": ". ".join(_capital(sentence) for sentence in sentences) + "."}


def peak_of(metrics: Mapping[str, float], name: str) -> float:
    """What one device has to hold under a strategy, bytes: all the process takes where known, else its tensors."""
    return metrics.get(f"{name}_device_own_bytes", metrics.get(f"{name}_peak_allocated_bytes", 0.0))


def _why(
    metrics: Mapping[str, float],
    statuses: Mapping[str, str],
    *,
    chosen: str,
    fastest: str,
    roomy: Mapping[str, float],
    limit: float,
    headroom: float,
) -> str:
    room = f"{format_bytes(limit)}, which leaves {headroom:.0%} of a device free"
    if not roomy:
        return f"no strategy stays below {room}: {chosen} is the fastest of those that ran at all"
    if chosen == "ddp":
        text = f"ddp holds the full training state within {room}"
        if fastest == "ddp":
            return f"{text}, and is the fastest"
        return f"{text}; the gain of {fastest} is within the {WORTH_CHANGING:.0%} that the simpler DDP is worth"
    if "ddp" not in statuses:
        return f"{chosen} is the fastest within {room}; ddp was not tried"
    if statuses["ddp"] == "does_not_fit":
        return "memory asks for sharding: the full training state that ddp keeps on every device does not fit"
    if statuses["ddp"] != "ok":
        return f"{chosen} is the fastest that ran within {room}"
    if "ddp" not in roomy:
        return (
            f"memory asks for sharding: ddp needs {format_bytes(peak_of(metrics, 'ddp'))} on every device, over {room}"
        )
    return f"{chosen} is faster than ddp by more than {WORTH_CHANGING:.0%}, and both fit within {room}"


def _line(metrics: Mapping[str, float], name: str) -> str:
    speed, peak = metrics[f"{name}_tokens_per_second"], peak_of(metrics, name)
    text = f"{name}: {format_count(speed)} tokens/s at a peak of {format_bytes(peak)} a device"
    total, exposed = metrics.get(f"{name}_comm_seconds"), metrics.get(f"{name}_exposed_comm_seconds")
    if total is None or exposed is None:
        return text
    share = metrics.get(f"{name}_exposed_comm_share", 0.0)
    return (
        f"{text}, {format_seconds(total)} of communication a step, {format_seconds(exposed)} of it exposed "
        f"({share:.0%} of a profiled step)"
    )


def _words(status: str) -> str:
    return "does not fit" if status == "does_not_fit" else f"did not run ({status.replace('_', ' ')})"


def _capital(sentence: str) -> str:
    """Names of strategies stay as they are written in options."""
    word = sentence.partition(" ")[0].rstrip(":")
    return sentence if word in ("ddp", *SHARDED) else sentence[0].upper() + sentence[1:]
