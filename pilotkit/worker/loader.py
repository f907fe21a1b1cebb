"""How fast the loader is by itself: beside the data wait it tells whether a faster device would starve.

Called after the timed steps. Takes batches and throws them away; trains nothing.
"""

from __future__ import annotations

import time

from pilotkit.train.rows import RowStream
from pilotkit.worker.session import Session

MIN_BATCHES = 3


def loader_rate(session: Session, rows: RowStream) -> float:
    """Micro-batches a second that one rank's loader can deliver when nobody makes it wait.

    What its processes hold ready was made in somebody else's time and is taken out first; the clock then runs over
    whole rounds of the processes, as they deliver in bursts.
    """
    data = session.config.data
    for _ in range(data.num_workers * data.prefetch_factor):
        rows.next()
    round_length = max(data.num_workers, 1)
    num_batches, started = 0, time.perf_counter()
    while True:
        for _ in range(round_length):
            rows.next()
        num_batches += round_length
        seconds = time.perf_counter() - started
        if num_batches >= MIN_BATCHES and seconds >= session.config.measure.loader_seconds:
            return num_batches / seconds
