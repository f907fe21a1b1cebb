"""How long a study of 2,000 records takes to find, read and tabulate. Aim: under 2 seconds.

    python benchmarks/bench_records.py [--records 2000] [--repeats 5]

Each record carries a whole composed configuration, as the stages write it. Exits 1 when the median misses the aim.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path

from hydra import compose, initialize_config_dir
from machine import describe

from pilotkit.config.load import load
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
from pilotkit.records.record import Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.search import find_records
from pilotkit.report.tables import sweep_table, to_text

LIMIT_SECONDS = 2.0


def write_records(output_dir: Path, *, count: int) -> int:
    """Write `count` points of a sweep over micro-batch and sequence length; returns the bytes of one record."""
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        config = dataclasses.asdict(load(compose(CONFIG_NAME), launch_dir=output_dir))
    for number in range(count):
        run = RunDir.create(output_dir, name="sweep", stage="measure")
        config["train"] = {**config["train"], "micro_batch_size": number % 50 + 1, "seq_len": 128 * (number // 50 + 1)}
        metrics = {"step_seconds": 0.01 * (number + 1), "tokens_per_second": 1e5, "peak_allocated_bytes": 1e6 * number}
        run.write_record(
            Record(
                run_id=run.run_id,
                stage="measure",
                status="does_not_fit" if number % 7 == 0 else "ok",
                started_at=f"2026-01-01T00:00:00.{number:06}+00:00",
                config=config,
                config_digest=f"{number:064x}",
                metrics=metrics,
                origins=dict.fromkeys(metrics, "measured"),
            )
        )
    return run.record.stat().st_size


def main() -> int:
    """Write once, then read and tabulate `repeats` times; prints the parts of each median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(describe("hydra-core", "rich"))
    loads, tables = [], []
    with tempfile.TemporaryDirectory() as folder:
        size = write_records(Path(folder), count=options.records)
        for _ in range(options.repeats):
            start = time.perf_counter()
            found = find_records(Path(folder), name="sweep", stage="measure")
            loaded = time.perf_counter()
            text = to_text(sweep_table(found.records, varying=("train.micro_batch_size", "train.seq_len")))
            tables.append(time.perf_counter() - loaded)
            loads.append(loaded - start)
            assert len(found.records) == options.records, found.unreadable[:3]
            assert len(text.splitlines()) >= options.records
    total = statistics.median(load + table for load, table in zip(loads, tables, strict=True))
    verdict = "within" if total < LIMIT_SECONDS else "OVER"
    print(
        f"records: {options.records} of {size / 1000:.1f} kB, median of {options.repeats}: "
        f"find and read {statistics.median(loads):.2f} s, tabulate {statistics.median(tables):.2f} s, "
        f"together {total:.2f} s ({verdict} the limit of {LIMIT_SECONDS:.0f} s)"
    )
    return int(total >= LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
