"""What devices this machine has for a run, asked of a fresh process, and whether they are the ones that were named."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pilotkit.launch.command import describe_devices_command
from pilotkit.launch.visible import count_visible, masks_of
from pilotkit.provenance.machine import read_machine

PROBE_TIMEOUT_SECONDS = 120.0
MOST_DEVICES = 64
_BUILDS = {"nvidia": "CUDA", "amd": "ROCm"}


@dataclass(frozen=True)
class Devices:
    """`visible` devices that the run may use; `problem` says why it may not run here at all."""

    visible: int
    note: str = ""
    problem: str | None = None


def find_devices(
    *, hardware: str, device_type: str, device_count: int, name_pattern: str | None, launch_dir: Path
) -> Devices:
    """Count the devices a run may use. On the CPU these are the shares that the hardware option names."""
    if device_type == "cpu":
        return Devices(device_count, note=f"{device_count} equal shares of the usable cores")
    seen = _probe(launch_dir)
    machine = read_machine(device_type)
    return judge_devices(
        {**seen, "present": machine["names"] if machine else []},
        os.environ,
        hardware=hardware,
        vendor="amd" if device_type == "rocm" else "nvidia",
        name_pattern=name_pattern,
    )


def judge_devices(
    seen: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    hardware: str,
    vendor: Literal["nvidia", "amd"],
    name_pattern: str | None,
) -> Devices:
    """Compare what the probe saw with what was asked.

    `seen` is the JSON of `pilotkit.device.describe_devices`, and `present` the names in the driver's own files, which
    tell of devices that this torch cannot see.
    """
    names = [str(name) for name in seen.get("names", [])]
    # Where the driver does not tell how many there are without the masks, no index is taken to be past the end.
    unmasked = seen.get("driver_count")
    masks = count_visible(
        environ, vendor=vendor, ask_driver=lambda: MOST_DEVICES if unmasked is None else int(unmasked)
    )
    build = f"torch {seen.get('torch', 'unknown')}"
    if masks.problem:
        return Devices(0, problem=f"the visible devices are unclear: {masks.problem}")
    other = _other_build(seen, vendor)
    if other and seen.get("present"):
        present = f"{len(seen['present'])} x {seen['present'][0]}"
        return Devices(0, problem=f"{other}, and this node has {present}: install the {_BUILDS[vendor]} build of torch")
    if seen.get("error"):
        return Devices(0, problem=f"this machine's devices could not be asked: {seen['error']}")
    fitting = [name for name in names if name_pattern is None or re.search(name_pattern, name)]
    if not fitting:
        others = ", ".join(sorted(set(names))) or "none"
        known = unmasked != 0 or bool(seen.get("present"))  # whether there may be devices that a mask hides
        hiding = masks_of(environ, vendor=vendor) if known and not names and masks.count == 0 else ()
        masked = "".join(f", {name}={environ[name]} leaves none" for name in hiding)
        mend = f"Unset {' and '.join(hiding)}, run" if hiding else "Run"
        return Devices(
            0,
            problem=(
                f"hardware={hardware} is not on this node (visible: {others}{masked}; {other or build}). "
                f"{mend} the same command on a node that has it, or take hardware=cpu to try everything here"
            ),
        )
    if len(fitting) < len(names):
        return Devices(0, problem=f"the visible devices are mixed: {', '.join(names)}; hide the others from this run")
    return Devices(len(names), note=masks.note)


def _other_build(seen: Mapping[str, Any], vendor: Literal["nvidia", "amd"]) -> str:
    """Says for what else this torch was built; empty when it is for this vendor, or does not tell."""
    if not {"cuda", "hip"} <= seen.keys() or seen["cuda" if vendor == "nvidia" else "hip"]:
        return ""
    built_for = "ROCm" if seen["hip"] else "CUDA" if seen["cuda"] else "the CPU only"
    return f"torch {seen.get('torch', 'unknown')} is built for {built_for}"


def refuse_process_count(asked: int, visible: int, *, allow_idle_devices: bool) -> str | None:
    """Why `asked` processes cannot run on `visible` devices; None when they can."""
    if asked > visible:
        return (
            f"asked {asked}, visible {visible}: each process needs a device of its own. "
            f"Set parallelism.nproc_per_node={visible}, or make {asked} devices visible"
        )
    if asked < visible and not allow_idle_devices:
        return (
            f"asked {asked}, visible {visible}: {visible - asked} would stand idle and still be paid for. "
            f"Set parallelism.nproc_per_node={visible}, or pilot.allow_idle_devices=true if that is meant"
        )
    return None


def _probe(launch_dir: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(  # noqa: S603 - the command is built in pilotkit.launch.command
            describe_devices_command(),
            cwd=launch_dir,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
        )
        described: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"torch did not answer within {PROBE_TIMEOUT_SECONDS:.0f} s"}
    except (IndexError, ValueError):
        return {"error": (done.stderr.splitlines() or ["the probe printed nothing"])[-1]}
    return described
