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
from pilotkit.launch.visible import count_visible

PROBE_TIMEOUT_SECONDS = 120.0
MOST_DEVICES = 64


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
    return judge_devices(
        seen,
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
    """Compare what the probe saw with what was asked. `seen` is the JSON of `pilotkit.device.describe_devices`."""
    names = [str(name) for name in seen.get("names", [])]
    # Where the driver does not tell how many there are without the masks, no index is taken to be past the end.
    unmasked = seen.get("driver_count")
    masks = count_visible(
        environ, vendor=vendor, ask_driver=lambda: MOST_DEVICES if unmasked is None else int(unmasked)
    )
    build = f"torch {seen.get('torch', 'unknown')}"
    if masks.problem:
        return Devices(0, problem=f"the visible devices are unclear: {masks.problem}")
    if seen.get("error"):
        return Devices(0, problem=f"this machine's devices could not be asked: {seen['error']}")
    fitting = [name for name in names if name_pattern is None or re.search(name_pattern, name)]
    if not fitting:
        others = ", ".join(sorted(set(names))) or "none"
        return Devices(
            0,
            problem=(
                f"hardware={hardware} is not on this node (visible: {others}; {build}). "
                "Run the same command on a node that has it, or take hardware=cpu to try everything here"
            ),
        )
    if len(fitting) < len(names):
        return Devices(0, problem=f"the visible devices are mixed: {', '.join(names)}; hide the others from this run")
    return Devices(len(names), note=masks.note)


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
