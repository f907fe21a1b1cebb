"""Peak of what a piece of work takes of the processor's memory, by torch's own allocator and not by its operators.

Called for the memory of a compiled step on the CPU: code of torch.compile allocates its buffers itself, and no dispatch
mode may look on (`meter.uncompiled`). Rests on torch.profiler, which makes the work slower; changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def peak_growth(work: Callable[[], object]) -> int:
    """Run `work` once; the most bytes that were allocated inside and not freed, at any moment.

    What existed before counts nothing, also when it is freed inside. Sizes are what was asked of the allocator, and
    an allocation of a kernel's scratch memory through it is one. Raises RuntimeError where this torch's profiler has
    no record of allocations.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        work()
    results = getattr(getattr(profile, "profiler", None), "kineto_results", None)
    if results is None:
        raise RuntimeError(f"torch {torch.__version__} has no record of allocations in its profiler")
    return peak_of(
        (int(event.start_time_ns), int(event.extra_fields.ptr), int(event.extra_fields.alloc_size))
        for event in _allocations(results.experimental_event_tree())
    )


def peak_of(events: Iterable[tuple[int, int, int]]) -> int:
    """Highest sum of `(time, address, bytes)`; fewer than 0 bytes is the end of what lies at the address. A free whose
    allocation is not among them is passed over."""
    live: dict[int, int] = {}
    total = peak = 0
    for _, address, size in sorted(events, key=lambda event: event[0]):
        if size > 0:
            live[address] = size
            total += size
            peak = max(peak, total)
        else:
            total -= live.pop(address, 0)
    return peak


def _allocations(events: Iterable[Any]) -> Iterator[Any]:
    """Of the processor, wherever they stand in the tree of what called what."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            yield event
