"""Stage `qualify`: is this software stack, as one set, fit for this accelerator? One verdict, and the reasons."""

from __future__ import annotations

import re
from typing import Any

from packaging.requirements import Requirement

from pilotkit.decide import qualify as judge
from pilotkit.errors import StageRefused
from pilotkit.launch.devices import refuse_process_count
from pilotkit.launch.outcome import Outcome
from pilotkit.provenance.container import read_container
from pilotkit.provenance.digest import digest_of
from pilotkit.provenance.machine import read_machine
from pilotkit.provenance.packages import installed_distributions
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.run import Run, StageResult, not_ok


def run(run: Run) -> StageResult:
    """One process exercises the operators of a step, all ranks the collectives; then everything is judged together."""
    devices = run.devices()
    one = run.work("qualify")
    if one.status != "ok":
        return not_ok(run, one)
    outcomes = [one]
    runs_here = bool(one.result["metrics"])  # else torch has no kernels for the device, and nothing was tried
    if runs_here and run.config.parallelism.strategy != "single":
        refusal = refuse_process_count(run.arithmetic.nproc_per_node, devices.visible, allow_idle_devices=True)
        if refusal:
            raise StageRefused(refusal)
        several = run.work("qualify_ranks", nproc=run.arithmetic.nproc_per_node, torchrun=True)
        if several.status != "ok":
            return not_ok(run, several, details={"card": one.result["rows"]})
        outcomes.append(several)
    rows = [*_set_rows(run, one), *(r for outcome in outcomes for r in outcome.result["rows"])]
    rows = judge.with_mends([*rows, *(_speed(run, outcomes) if runs_here else [])])
    members = _members(run, one)
    metrics = Metrics()
    for outcome in outcomes:
        metrics.add("measured", outcome.result["metrics"])
    counts = {verdict: sum(r["verdict"] == verdict for r in rows) for verdict in ("PASS", "FAIL", "NOT RUN")}
    metrics.add("measured", num_passed=counts["PASS"], num_failed=counts["FAIL"], num_not_run=counts["NOT RUN"])
    qualified = judge.is_qualified(rows)
    not_deterministic = one.result["not_deterministic"]
    details: dict[str, Any] = {
        "verdict": "qualified" if qualified else "not qualified",
        "set": members,
        "set_digest": digest_of(members),
        "card": rows,
        "warnings": [f"not reproducible: {name} has no deterministic kernel here" for name in not_deterministic],
        "threads": run.threads,
    }
    words = f"{counts['PASS']} checks passed, {counts['FAIL']} failed, {counts['NOT RUN']} not run"
    run.console.line(f"  {details['verdict']}: {words}; set {details['set_digest'][:12]}")
    for warning in details["warnings"]:
        run.console.line(f"  note: {warning}")
    if qualified:
        return StageResult("ok", metrics, details)
    why = judge.reasons(rows)
    more = f" (and {len(why) - 1} more)" if len(why) > 1 else ""
    return StageResult("mismatch", metrics, details, problem=Failure(f"not qualified: {why[0]}{more}"))


def _set_rows(run: Run, one: Outcome) -> list[judge.Row]:
    """The build, the packages that the user names."""
    options, hardware = run.config.qualify, run.config.hardware
    rows = judge.judge_stack(one.result["stack"], device_type=hardware.device_type, archs=options.archs)
    installed = {item.name: item.version for item in installed_distributions()} if options.packages else {}
    for text in options.packages:
        requirement = Requirement(text)
        version = installed.get(re.sub(r"[-_.]+", "-", requirement.name).lower())
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        rows.append(judge.judge_package(text, installed=version, fits=fits))
    return rows


def _speed(run: Run, outcomes: list[Outcome]) -> list[judge.Row]:
    hardware, options = run.config.hardware, run.config.qualify
    found = outcomes[0].result["metrics"]
    number_format = run.config.precision.flops_format
    rows = [
        judge.judge_speed(
            f"matrix product in {number_format}",
            found=found["matmul_flops_per_second"],
            promised=hardware.peak_flops.get(number_format),
            min_ratio=options.min_flops_ratio,
            unit="FLOP",
        ),
        judge.judge_speed(
            "copy on the device",
            found=found["copy_bytes_per_second"],
            promised=hardware.memory_bandwidth_bytes_per_second,
            min_ratio=options.min_bandwidth_ratio,
            unit="bytes",
        ),
    ]
    if len(outcomes) > 1:
        ranks = outcomes[1].result
        shared = hardware.device_type == "cpu"
        rates, names = ranks["flops_per_second"], ranks["devices"]
        rows.append(judge.judge_cards(rates, names, min_share=options.min_share_of_fastest, shared=shared))
    return rows


def _members(run: Run, one: Outcome) -> dict[str, Any]:
    """What the verdict speaks of: with another member it is another set, and this verdict says nothing about it."""
    image = read_container(run.config.image, launch_dir=run.launch_dir)
    machine = read_machine(run.config.hardware.device_type) or {}
    return {
        "image": image.digest or image.image,
        "driver": machine.get("driver"),
        "device": one.result["device"],
        **one.result["stack"],
        "precision": run.config.precision.name,
        "extensions": one.result["extensions"],
        "operators": one.result["operators"],
        "attention_backends": sorted(run.config.qualify.attention_backends),
    }
