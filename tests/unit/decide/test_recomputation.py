"""Memory saved for time added, and what differs, from results written by hand."""

from __future__ import annotations

from typing import Any

from pilotkit.decide.recomputation import trade

PRINTS = {"random_states": "a", "losses": [1.0], "grad_norms": [2.0], "parameters": "p"}


def _found(peak: float, seconds: float, **changed: Any) -> dict[str, Any]:
    metrics = {"peak_allocated_bytes": peak, "step_seconds": seconds, "step_stddev_seconds": 0.001}
    return {"metrics": metrics, "fingerprints": {**PRINTS, **changed}}


def test_saved_for_added() -> None:
    traded = trade("full", _found(4e9, 0.13), _found(10e9, 0.10))
    assert (traded.saved_bytes, traded.differs) == (6e9, "")
    assert traded.saved_per_second is not None
    assert abs(traded.saved_per_second - 6e9 / 0.03) < 1
    assert traded.text == (
        "full saves 5.59 GiB (60 %) of the peak and adds 30.0 ms a step, 0.2 GB for each ms; "
        "computes the same to the last bit, random states included"
    )


def test_time_within_the_spread_gives_no_rate() -> None:
    traded = trade("full", _found(4e9, 0.102), _found(10e9, 0.10))
    assert traded.saved_per_second is None
    assert "adds no time beyond the spread of the steps" in traded.text


def test_nothing_saved() -> None:
    assert "saves no memory" in trade("full", _found(10e9, 0.2), _found(10e9, 0.1)).text


def test_the_first_difference_is_named() -> None:
    traded = trade("full", _found(4e9, 0.2, losses=[1.1], random_states="b"), _found(10e9, 0.1))
    assert traded.differs == "random_states"
    assert traded.text.endswith("its random states differ")
