"""How a record's values read: labels, numbers, statuses, and the way from the page to the record.

Called by the tables, the plots and the page. Formats only; computes no figure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pilotkit.records.record import Record
from pilotkit.records.run_dir import RunDir
from pilotkit.units import HOUR, format_metric, format_seconds

_SUFFIXES = ("_bytes", "_seconds", "_per_second", "_hours")
# A collective has a time, an amount and a rate, which would otherwise all read `all reduce`.
_COLLECTIVE_BYTES = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|reduce|gather|scatter)_bytes$"
)
_ENDINGS = {"_saved_bytes_per_second": "_saved_per_second_added", "_bytes_per_second": "_bandwidth"}
_RATIOS = ("mfu", "hfu", "goodput", "grad_deviation", "grad_noise")
_LABELS = {
    "num_distributions": "installed distributions",
    "num_params": "parameters",
    "parameters_bytes": "parameter memory",
    "num_flops_per_token": "FLOP per token",
    "num_warmup_steps": "warm-up steps",
    "num_measured_steps": "measured steps",
    "num_steps": "steps",
    "num_gpus": "devices",
    "gpu_hours": "GPU-hours",
    "mfu": "MFU",
    "hfu": "hardware FLOPs utilisation",
    "num_executed_flops_per_token": "FLOP per token, recomputation included",
    "full_rows_share": "rows that reach seq_len",
    "peak_rss_bytes": "peak resident memory",
    "step_p95_seconds": "step, 95th percentile",
    "step_seconds": "step, median",
    "data_wait_p95_seconds": "data wait, 95th percentile",
    "data_wait_seconds": "data wait, mean",
    "tokens_per_second": "tokens per second",
    "step_min_seconds": "step, fastest",
    "step_max_seconds": "step, slowest",
    "warmup_seconds": "warm-up",
    "eval_seconds": "evaluation",
    "eval_batch_seconds": "evaluation, one batch",
    "eval_loss": "evaluation loss",
    "restored_eval_loss": "evaluation loss, restored",
    "checkpoint_bytes": "checkpoint size",
    "single_tokens_per_second": "tokens per second, one device",
    "single_step_seconds": "step, one device",
    "tokens_per_second_per_device": "tokens per second per device",
    "total_seconds": "whole run",
    "step_total_seconds": "all steps",
}


@dataclass(frozen=True)
class Value:
    """One number as it is shown: `origin` is measured, estimated, projected, given or `not run`; `href` its record."""

    label: str
    text: str
    origin: str
    href: str | None = None


def label_of(metric: str) -> str:
    """`peak_allocated_bytes` -> `peak allocated`: the name without the unit, which the value carries."""
    if metric in _LABELS:
        return _LABELS[metric]
    metric = _COLLECTIVE_BYTES.sub(r"\1_data", metric)
    for ending, words in _ENDINGS.items():
        if metric.endswith(ending):
            metric = metric.removesuffix(ending) + words
    for suffix in _SUFFIXES:
        metric = metric.removesuffix(suffix)
    return metric.removeprefix("num_").replace("_", " ")


def format_value(metric: str, value: float) -> str:
    """By the unit in the suffix; ratios as percent, losses to the digits in which they differ."""
    if metric in _RATIOS or metric.endswith(("_spread", "_efficiency", "_share")):
        return f"{100 * value:.1f} %"
    if metric in ("max_loss_difference", "loss_deviation", "loss_noise", "max_step_loss_deviation"):
        return f"{value:.3g}"
    if metric.endswith("_loss"):
        return f"{value:.4f}"
    if metric == "gpu_hours":
        return f"{value:,.1f}"
    if metric.endswith("_per_second_per_device"):
        metric = metric.removesuffix("_per_device")
    return format_metric(metric, value)


def status_words(status: str) -> str:
    """`does_not_fit` -> `does not fit`."""
    return status.replace("_", " ")


def record_href(record: Record, *, page_dir: Path) -> str | None:
    """The relative address of a record from the page's folder, percent-encoded; None when it came from no folder."""
    if not record.folder:
        return None
    target = os.path.abspath(RunDir(Path(record.folder)).record)
    return quote(os.path.relpath(target, os.path.abspath(page_dir)).replace(os.sep, "/"))


def value_of(record: Record, metric: str, *, page_dir: Path, label: str | None = None) -> Value:
    """One metric of a record, ready to show. Raises KeyError when the record lacks it."""
    return Value(
        label=label or label_of(metric),
        text=format_value(metric, record.metrics[metric]),
        origin=record.origins.get(metric, "origin not recorded"),
        href=record_href(record, page_dir=page_dir),
    )


def format_hours(hours: float | None) -> str:
    """Hours of a run as people say them; `never` for one that does not end."""
    return "never" if hours is None else format_seconds(hours * HOUR)


def format_money(value: float, currency: str) -> str:
    """`1,234.50 USD`; the bare number where no currency was given."""
    return f"{value:,.2f} {currency}".strip()
