"""Checkpoint intervals in closed form: how long a run takes that fails at random and goes on from its last save.

Called by stage `budget` for the proposed interval and by the tests that hold the simulation of
`pilotkit.decide.finish` to it. Failures come at a constant rate (exponential times between them).
"""

from __future__ import annotations

import math

NEVER_EXPONENT = 700.0
"""exp() of more than this is beyond a double: such a run does not end."""


def young_daly_seconds(save_seconds: float, *, mtbf_seconds: float) -> float:
    """Work between saves that loses least, sqrt(2 C M): Young 1974 (CACM 17(9)), first order of Daly 2006.

    `save_seconds` C is what one save blocks, `mtbf_seconds` M the mean time between failures of the whole run.
    """
    assert save_seconds >= 0, save_seconds
    assert mtbf_seconds > 0, mtbf_seconds
    return math.sqrt(2 * save_seconds * mtbf_seconds)


def lost_share(interval_seconds: float, *, save_seconds: float, mtbf_seconds: float, restart_seconds: float) -> float:
    """Share of time lost to first order, C/tau + tau/(2 M) + R/M (Young 1974); smallest at `young_daly_seconds`."""
    return save_seconds / interval_seconds + (interval_seconds / 2 + restart_seconds) / mtbf_seconds


def seconds_without_checkpoints(work_seconds: float, *, failures_per_second: float) -> float:
    """Expected time of a run that starts from nothing after each failure: (e^(rT) - 1) / r."""
    if failures_per_second == 0:
        return work_seconds
    exponent = failures_per_second * work_seconds
    return math.inf if exponent > NEVER_EXPONENT else math.expm1(exponent) / failures_per_second


def seconds_with_checkpoints(
    work_seconds: float,
    *,
    interval_seconds: float,
    save_seconds: float,
    restart_seconds: float,
    failures_per_second: float,
) -> float:
    """Expected time with a save after each interval: Daly 2006 (FGCS 22(3)), his complete model.

    (T / tau) e^(R/M) M (e^((tau + C)/M) - 1): a restart may itself fail, and a save is lost when it is not complete.
    """
    num_segments = work_seconds / interval_seconds
    if failures_per_second == 0:
        return num_segments * (interval_seconds + save_seconds)
    segment = seconds_without_checkpoints(interval_seconds + save_seconds, failures_per_second=failures_per_second)
    exponent = failures_per_second * restart_seconds
    return math.inf if exponent > NEVER_EXPONENT else num_segments * math.exp(exponent) * segment


def expected_ettr(
    num_nodes: float,
    *,
    failures_per_node_second: float,
    interval_seconds: float,
    save_seconds: float,
    restart_seconds: float,
) -> float:
    """Expected effective training time ratio (Kokolis et al., HPCA 2025, arXiv:2410.21680).

    (1 - N r_f (u_0 + dt/2)) / (1 + w/dt): valid while failures are rare beside restart and interval; 0 at least.
    """
    lost = num_nodes * failures_per_node_second * (restart_seconds + interval_seconds / 2)
    return max(0.0, 1 - lost) / (1 + save_seconds / interval_seconds)
