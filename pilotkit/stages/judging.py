"""How stage `estimate` judges what was traced: corrected, with what no trace sees added, against a hardware option."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from pilotkit.config.store import conf_dir
from pilotkit.decide.calibration import Calibration
from pilotkit.decide.cheapest import Choice, cheapest, fewest_devices
from pilotkit.decide.fit import Fit, judge_fit
from pilotkit.decide.step_time import StepTime, estimate_step_time
from pilotkit.stages.calibrating import Calibrated, History, calibrated_for, efficiency_of, overhead_for, rates_of
from pilotkit.stages.run import Run

Hardware = Mapping[str, Any]
"""A hardware option as a record holds it."""
Entry = Mapping[str, Any]
"""What the worker says of one shape: `metrics`, and `work` where a time is wanted."""
NO_SPEED = "the speed of a processor is in no option: one measured run (stage=measure) calibrates it"


@dataclasses.dataclass
class Judge:
    """Of the run's own hardware where no other one is given."""

    run: Run
    history: History
    _known: dict[str, Calibrated] = dataclasses.field(default_factory=dict)

    def calibrated(self, hardware: Hardware | None = None) -> Calibrated:
        """The corrections for a hardware option, and what they come from."""
        option = self._option(hardware)
        name = str(option["name"])
        if name not in self._known:
            self._known[name] = calibrated_for(self.run, self.history, option)
        return self._known[name]

    def calibration(self, hardware: Hardware | None = None) -> Calibration:
        return self.calibrated(hardware).calibration

    def held_bytes(self, metrics: Mapping[str, float], hardware: Hardware | None = None) -> float:
        """What the allocator holds at the peak; on a processor, what is allocated."""
        calibration = self.calibration(hardware)
        if self._option(hardware)["device_type"] == "cpu":
            return calibration.allocated(metrics["peak_allocated_bytes"])
        name = f"{self.run.config.estimate.allocator}_reserved_bytes"
        return calibration.reserved(metrics[name] if name in metrics else metrics["peak_reserved_bytes"])

    def fit(self, entry: Entry, *, num_devices: int, hardware: Hardware | None = None) -> Fit:
        option = self._option(hardware)
        overhead = overhead_for(self.run, num_devices=num_devices, device_type=option["device_type"])
        return judge_fit(
            self.held_bytes(entry["metrics"], hardware) + self.calibration(hardware).overhead(overhead.num_bytes),
            memory_bytes=int(option["memory_bytes"]),
            headroom=self.run.config.estimate.headroom,
        )

    def limit_bytes(self) -> float:
        """What an uncorrected trace may hold so that it fits: the worker searches below it."""
        overhead = overhead_for(self.run, num_devices=self.run.arithmetic.world_size).num_bytes
        calibration, hardware = self.calibration(), self.run.config.hardware
        free = int(hardware.memory_bytes * (1 - self.run.config.estimate.headroom)) - calibration.overhead(overhead)
        return free / (calibration.allocated(1.0) if hardware.device_type == "cpu" else calibration.reserved(1.0))

    def time(self, entry: Entry, *, num_devices: int, hardware: Hardware | None = None) -> StepTime | str:
        """A corrected step, or what is lacking for it."""
        option = self._option(hardware)
        rates = rates_of(self.run, option, num_devices=num_devices)
        if isinstance(rates, str):
            return rates
        calibration = self.calibration(hardware)
        if option["device_type"] == "cpu" and not option.get("peak_flops") and calibration.time is None:
            return NO_SPEED
        sharded = self.run.config.parallelism.strategy in ("fsdp", "hsdp")
        raw = estimate_step_time(
            entry["work"],
            rates=rates,
            gradient_bytes=entry["metrics"].get("buckets_bytes", 0.0),
            dp_replicate=self.run.arithmetic.dp_replicate if sharded else num_devices,
            efficiency=efficiency_of(self.run, option),
        )
        return calibration.step(raw)

    def tokens_per_second(self, entry: Entry, hardware: Hardware | None = None) -> float | None:
        """Of all devices of an entry of the worker's list by number of devices."""
        time = self.time(entry, num_devices=entry["num_devices"], hardware=hardware)
        if isinstance(time, str):
            return None
        train = self.run.config.train
        rows: int = train.micro_batch_size * entry["grad_accum_steps"] * entry["num_devices"]
        return rows * train.seq_len / time.step_seconds

    def device_row(self, entry: Entry) -> dict[str, Any]:
        """One number of devices of the run's own hardware."""
        fit = self.fit(entry, num_devices=entry["num_devices"])
        return {
            **{name: entry[name] for name in ("num_devices", "strategy", "grad_accum_steps")},
            "needed_bytes": fit.needed_bytes,
            "allowed_bytes": fit.allowed_bytes,
            "fits": fit.fits,
            "tokens_per_second": self.tokens_per_second(entry),
        }

    def hardware_rows(self, by_devices: Sequence[Entry]) -> dict[str, Any]:
        """Every hardware option that was asked for at its fewest devices, and the cheapest of them.

        One trace serves all accelerators; corrections are each one's own, or carried over.
        """
        choices = [self._choice(name, by_devices) for name in self.run.config.estimate.compare_hardware]
        best, how = cheapest(choices)
        return {
            "options": [choice.to_dict() for choice in choices],
            "cheapest": best.hardware if best is not None else None,
            "how": how,
        }

    def _choice(self, name: str, by_devices: Sequence[Entry]) -> Choice:
        hardware: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "hardware" / f"{name}.yaml"))
        if name == self.run.config.hardware.name:
            hardware = self._own
        entry, fit = fewest_devices(
            by_devices, judge=lambda item: self.fit(item, num_devices=item["num_devices"], hardware=hardware)
        )
        assert fit is not None, "one device is always asked for"
        prices = self.run.config.prices
        price, calibration = prices.per_gpu_hour.get(name), self.calibration(hardware)
        rented = max(entry["num_devices"] if entry else 0, prices.minimum_gpus.get(name) or 0)
        return Choice(
            name,
            entry["num_devices"] if entry else None,
            fit.needed_bytes,
            fit.allowed_bytes,
            entry["strategy"] if entry else "",
            self.tokens_per_second(entry, hardware) if entry else None,
            calibration.words(calibration.time),
            price * rented if price is not None and entry else None,
        )

    def _option(self, hardware: Hardware | None) -> Hardware:
        return self._own if hardware is None else hardware

    @functools.cached_property
    def _own(self) -> Hardware:
        return dataclasses.asdict(self.run.config.hardware)
