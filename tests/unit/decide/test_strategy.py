"""DDP or sharding: the reason in whole sentences, for every way in which it can come about."""

from __future__ import annotations

import pytest

from pilotkit.decide.strategy import recommend_strategy
from pilotkit.units import GIB


def _metrics(**strategies: tuple[float, float]) -> dict[str, float]:
    """Tokens per second and GiB at the peak, by strategy."""
    metrics = {}
    for name, (speed, peak) in strategies.items():
        metrics[f"{name}_tokens_per_second"] = speed
        metrics[f"{name}_peak_allocated_bytes"] = peak * GIB
    return metrics


def _recommend(metrics: dict[str, float], **statuses: str) -> tuple[str | None, str | None]:
    found = recommend_strategy(metrics, statuses, memory_bytes=80 * GIB, headroom=0.1)
    return found["strategy"], found["reason"]


def test_ddp_that_fits_and_is_faster_with_the_price_of_both() -> None:
    metrics = _metrics(ddp=(1000.0, 50.0), fsdp=(900.0, 20.0))
    metrics |= {"ddp_comm_seconds": 0.1, "ddp_exposed_comm_seconds": 0.02, "ddp_exposed_comm_share": 0.05}
    assert _recommend(metrics, ddp="ok", fsdp="ok") == (
        "ddp",
        "ddp holds the full training state within 72.00 GiB, which leaves 10% of a device free, and is the fastest. "
        "ddp: 1 k tokens/s at a peak of 50.00 GiB a device, 100.0 ms of communication a step, 20.0 ms of it exposed "
        "(5% of a profiled step). fsdp: 900 tokens/s at a peak of 20.00 GiB a device.",
    )


@pytest.mark.parametrize(
    ("metrics", "statuses", "strategy", "words"),
    [
        (_metrics(ddp=(1000, 50), fsdp=(1040, 20)), {"ddp": "ok", "fsdp": "ok"}, "ddp", "gain of fsdp is within"),
        (_metrics(ddp=(1000, 50), fsdp=(1100, 20)), {"ddp": "ok", "fsdp": "ok"}, "fsdp", "faster than ddp by more"),
        (_metrics(ddp=(1000, 75), fsdp=(500, 20)), {"ddp": "ok", "fsdp": "ok"}, "fsdp", "ddp needs 75.00 GiB on every"),
        (_metrics(fsdp=(500, 20)), {"ddp": "does_not_fit", "fsdp": "ok"}, "fsdp", "keeps on every device does not fit"),
        (_metrics(fsdp=(500, 20)), {"ddp": "failed", "fsdp": "ok"}, "fsdp", "ddp did not run (failed)"),
        (_metrics(ddp=(9, 79), fsdp=(7, 78)), {"ddp": "ok", "fsdp": "ok"}, "ddp", "No strategy stays below 72.00 GiB"),
        ({}, {"ddp": "does_not_fit", "fsdp": "failed"}, None, "no strategy ran: ddp does not fit, fsdp did not run"),
    ],
    ids=["gain too small", "gain", "no headroom", "does not fit", "failed", "nobody has room", "none"],
)
def test_each_reason(metrics: dict[str, float], statuses: dict[str, str], strategy: str | None, words: str) -> None:
    chosen, reason = _recommend(metrics, **statuses)
    assert chosen == strategy
    assert words in str(reason)


def test_what_the_whole_process_takes_decides() -> None:
    metrics = _metrics(ddp=(1000.0, 60.0), fsdp=(500.0, 20.0)) | {"ddp_device_own_bytes": 76.0 * GIB}
    assert _recommend(metrics, ddp="ok", fsdp="ok")[0] == "fsdp"
