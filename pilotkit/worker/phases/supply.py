"""Phase `budget_supply`: the loader of one rank alone, as fast as it goes. Trains nothing, builds no model."""

from __future__ import annotations

import time
from typing import Any

from pilotkit.meter.statistics import summarize
from pilotkit.worker.build import open_data
from pilotkit.worker.session import Session


def supply(session: Session) -> dict[str, Any]:
    """Time batches one after the other. Those that stood ready before anybody asked are drawn first and not counted."""
    config = session.config
    started = time.perf_counter()
    rows, _, batch_bytes = open_data(session)
    data_open_seconds = time.perf_counter() - started
    started = time.perf_counter()
    rows.next()
    first_batch_seconds = time.perf_counter() - started
    num_ready = config.data.num_workers * config.data.prefetch_factor
    for _ in range(num_ready):
        rows.next()
    waits = []
    for index in range(config.budget.num_supply_batches):
        started = time.perf_counter()
        rows.next()
        waits.append(time.perf_counter() - started)
        session.progress(index + 1, config.budget.num_supply_batches, label="supply")
    rows.close()
    found = summarize(waits)
    tokens = config.train.micro_batch_size * config.train.seq_len
    return {
        "metrics": {
            "loader_tokens_per_second": tokens * len(waits) / sum(waits),
            "loader_batch_seconds": sum(waits) / len(waits),
            "loader_batch_p95_seconds": found.p95,
            "loader_batch_max_seconds": found.maximum,
            "num_loader_batch_samples": len(waits),
            "num_ready_batches": num_ready + 1,
            "loader_first_batch_seconds": first_batch_seconds,
            "data_open_seconds": data_open_seconds,
            "batch_bytes": batch_bytes,
        }
    }
