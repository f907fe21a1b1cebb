"""What the options of stage `estimate` say together. Called by `meaning`; returns problems, raises none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem

EFFICIENCIES = ("matmul", "attention", "bandwidth", "link")


def check_estimate(config: PilotConfig) -> Iterator[Problem]:
    """Shapes that exist, a table that is there, hardware options that are known, and a question that has an answer."""
    from pilotkit.config.store import list_groups

    options = config.estimate
    for name, example in (("micro_batch_sizes", "[1,2,4]"), ("seq_lens", "[2048,4096]")):
        values = getattr(options, name)
        if any(value < 1 for value in values) or len(set(values)) != len(values):
            allowed = "a list of different whole numbers from 1 on"
            yield Problem(f"estimate.{name}", values, allowed, f"for example estimate.{name}={example}")
    if options.measured_csv is not None and not Path(options.measured_csv).is_file():
        fix = "give its path from where pilotkit is started"
        yield Problem("estimate.measured_csv", options.measured_csv, "a CSV file that exists", fix)
    for name, share in config.hardware.efficiencies.items():
        if name not in EFFICIENCIES or not 0 < share <= 1:
            allowed = f"shares above 0 and up to 1 of {', '.join(EFFICIENCIES)}"
            yield Problem(
                f"hardware.efficiencies.{name}", share, allowed, "for example hardware.efficiencies.matmul=0.6"
            )
    known = list_groups()["hardware"]
    unknown = [name for name in options.compare_hardware if name not in known or name == "cpu"]
    if unknown:
        allowed = f"a list of accelerators: {', '.join(name for name in known if name != 'cpu')}"
        fix = "write conf/hardware/<name>.yaml for another one"
        yield Problem("estimate.compare_hardware", options.compare_hardware, allowed, fix)
    if options.compare_hardware and options.max_devices is None:
        fix = "add how many devices you would rent at most, for example estimate.max_devices=64"
        allowed = "nothing without estimate.max_devices"
        yield Problem("estimate.compare_hardware", options.compare_hardware, allowed, fix, ("estimate.max_devices",))
    if options.compare_hardware and config.hardware.device_type == "cpu":
        fix = "name one of them with hardware=..."
        allowed = "nothing on hardware=cpu: its kernels are not an accelerator's"
        yield Problem("estimate.compare_hardware", options.compare_hardware, allowed, fix, ("hardware",))
