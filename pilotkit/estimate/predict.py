"""One estimate from a workload and a shape: peak memory by kind and moment, reserved memory, the operators of a step.

Called by the worker's phase and by notebooks (`from pilotkit.estimate.predict import Estimator`). Returns plain data;
knows no hardware option, so it says nothing of fits. A deep model is traced at three and at four of its repeated units;
only when the expansion of the first has the second's peaks is any other depth taken from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pilotkit.estimate.allocator import Replayed, replay
from pilotkit.estimate.assumed import NOT_TRACED, compile_details, is_unsure, notes_of
from pilotkit.estimate.depth import UNITS, NotRepeating, expand, growth_outside, rebuild
from pilotkit.estimate.events import Trace
from pilotkit.estimate.helper import Helper
from pilotkit.estimate.memory import Peak, largest_by_moment, peaks, profile, static_bytes
from pilotkit.estimate.model import FakeModel
from pilotkit.estimate.trace import trace_fake
from pilotkit.estimate.workload import Workload

Shape = tuple[int, int]
"""Micro-batch size and sequence length."""


@dataclass(frozen=True)
class Prediction:
    """Memory of one rank, bytes, and the trace it comes from."""

    trace: Trace
    num_params: int
    peaks: dict[str, Peak]
    static: dict[str, int]
    native: Replayed
    expandable: Replayed
    work: dict[str, list[dict[str, Any]]]
    """As `work_of`."""
    notes: tuple[str, ...]
    plain_attention: Prediction | None = None
    """The same without fused attention, where it cannot be known that there is one."""

    @property
    def peak_allocated_bytes(self) -> int:
        """The highest of both steps and the evaluation: what has to fit."""
        return max(peak.num_bytes for peak in self.peaks.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record: `metrics`, and `details` that the page draws."""
        metrics = {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "native_reserved_bytes": self.native.peak_reserved_bytes,
            "expandable_reserved_bytes": self.expandable.peak_reserved_bytes,
            "first_step_peak_bytes": self.peaks["first step"].num_bytes,
            "steady_step_peak_bytes": self.peaks["steady step"].num_bytes,
            # A save copies nothing on the device: what stays between steps is there.
            "checkpoint_peak_bytes": sum(self.static.values()),
            **{f"{kind}_bytes": num_bytes for kind, num_bytes in self.static.items()},
            "num_params": self.num_params,
        }
        if self.plain_attention is not None:
            plain = self.plain_attention
            metrics["plain_attention_peak_allocated_bytes"] = plain.peak_allocated_bytes
            metrics["plain_attention_native_reserved_bytes"] = plain.native.peak_reserved_bytes
            metrics["plain_attention_expandable_reserved_bytes"] = plain.expandable.peak_reserved_bytes
        if "evaluation" in self.peaks:
            metrics["evaluation_peak_bytes"] = self.peaks["evaluation"].num_bytes
        details = {
            "peaks": [
                {"step": name, "peak_bytes": peak.num_bytes, "where": peak.words, "kinds": peak.kinds}
                for name, peak in self.peaks.items()
            ],
            "peak_by_moment": largest_by_moment(self.trace, ("forward", "backward", "optimizer")),
            "memory_profile": profile(self.trace),
            "attention": self.trace.attention,
            "assumed": [note for note in self.notes if note not in NOT_TRACED],
            **compile_details(self.trace),
            "notes": list(self.notes),
        }
        return {"metrics": metrics, "details": details, "work": self.work}


class Estimator:
    """Builds the fake model once; every shape asked of it costs one or two short traces.

    Raises EstimateError for a model that cannot be traced, here and in `predict`.
    """

    def __init__(self, workload: Workload, *, source: FakeModel | None = None, helper: Helper | None = None) -> None:
        self.workload = workload
        self.source = source or FakeModel(workload)
        self.helper = helper
        self._num_units = self.source.num_blocks // self.source.period if self.source.period else 0
        self.is_expanded = self._num_units > UNITS + 1
        """Whether deeper traces follow from short ones; false for a shallow model, and once they did not."""
        self._growths: dict[int, list[int]] = {}
        """Bytes that each event of three units grows by with a further unit, by the number of events."""
        self._is_proven: set[bool] = set()
        """Whether a batch of one, and one of several rows (which need copies), were compared at four units."""

    def spread(
        self, *, strategy: str, dp_replicate: int = 1, dp_shard: int = 1, grad_accum_steps: int | None = None
    ) -> Estimator:
        """The same model over other devices, without building it again."""
        workload = dataclasses.replace(
            self.workload,
            strategy=strategy,
            dp_replicate=dp_replicate,
            dp_shard=dp_shard,
            grad_accum_steps=grad_accum_steps or self.workload.grad_accum_steps,
        )
        return Estimator(workload, source=self.source.like(workload), helper=self.helper)

    def without_fused_attention(self) -> Estimator:
        """The same run where torch has no fused kernel of attention."""
        workload = dataclasses.replace(self.workload, attention="math")
        return Estimator(workload, source=self.source.like(workload), helper=self.helper)

    def predict(self, *, micro_batch_size: int, seq_len: int, both_attentions: bool = False) -> Prediction:
        """Memory and operators of one shape. `both_attentions`: with plain attention beside it, where it is unsure."""
        trace = self.trace(micro_batch_size=micro_batch_size, seq_len=seq_len)
        notes = notes_of(self.workload, trace)
        both_attentions = both_attentions and is_unsure(self.workload, trace)
        plain = self.without_fused_attention() if both_attentions else None
        return prediction_of(
            trace,
            work_of(trace),
            num_params=self.source.num_params,
            notes=notes,
            plain=plain.predict(micro_batch_size=micro_batch_size, seq_len=seq_len) if plain is not None else None,
        )

    def trace(self, *, micro_batch_size: int, seq_len: int) -> Trace:
        """The whole depth's trace at one shape, expanded where that is proven, in full where it is not."""
        shape = micro_batch_size, seq_len
        try:
            return self.deepen(self.short_traces([shape], counts_operators=True)[0], shape=shape)[0]
        except NotRepeating:
            self.is_expanded = False
        return self.short_traces([shape], counts_operators=True)[0]

    def short_traces(self, shapes: Sequence[Shape], *, counts_operators: bool = False) -> list[Trace]:
        """A trace of each shape, of three units where the model `is_expanded`, else of the whole depth.

        For `deepen`, the first shape of a kind is traced at four units as well, beside the others.
        """
        if not self.is_expanded:
            return self._traces([(shape, None) for shape in shapes], counts_operators=counts_operators)
        firsts = {shape[0] == 1: shape for shape in reversed(shapes) if (shape[0] == 1) not in self._is_proven}
        asked = [(shape, UNITS) for shape in shapes]
        proofs = [(shape, UNITS + 1) for shape in firsts.values()]
        found = self._traces([*asked, *proofs], counts_operators=counts_operators)
        for shape, four in zip(firsts.values(), found[len(asked) :], strict=True):
            self._prove(found[asked.index((shape, UNITS))], four)
            self._is_proven.add(shape[0] == 1)
        return found[: len(asked)]

    def deepen(self, short: Trace, *, shape: Shape) -> tuple[Trace, Sequence[int]]:
        """The whole depth's trace from a short one, and the event of `short` that each of its events copies.

        Raises NotRepeating where that is not what the model does.
        """
        if not self.is_expanded:
            return short, range(len(short.events))
        if len(short.events) not in self._growths:
            self._prove(short, self._traces([(shape, UNITS + 1)], counts_operators=False)[0])
        growth = self._growths[len(short.events)]
        if not growth:
            raise NotRepeating("the expansion of three units has not the peaks of four")
        return self._at(short, growth, num_units=self._num_units)

    def _prove(self, three: Trace, four: Trace) -> None:
        """Keep what grows outside of the blocks: it is the same at every shape with the same events."""
        growth: list[int] = []
        with suppress(NotRepeating):
            growth = growth_outside(three, four)
            proof, _ = self._at(three, growth, num_units=UNITS + 1)
            if len(proof.events) != len(four.events) or _peak_bytes(proof) != _peak_bytes(four):
                growth = []
        self._growths[len(three.events)] = growth

    def _traces(self, asked: Sequence[tuple[Shape, int | None]], *, counts_operators: bool) -> list[Trace]:
        """Every second one by the helper, if there is one. `asked`: shapes and numbers of units."""
        tasks: list[dict[str, Any]] = [
            {
                "micro_batch_size": batch,
                "seq_len": seq_len,
                "num_blocks": num_units * self.source.period if num_units is not None else None,
                "counts_operators": counts_operators and num_units in (None, UNITS),
            }
            for (batch, seq_len), num_units in asked
        ]
        helped = {}
        if self.helper is not None:
            helped = {index: self.helper.trace(self.workload, **tasks[index]) for index in range(1, len(tasks), 2)}
        found: dict[int, Trace] = {
            i: trace_fake(self.source, **task) for i, task in enumerate(tasks) if i not in helped
        }
        for index, future in helped.items():
            error = future.exception()
            found[index] = trace_fake(self.source, **tasks[index]) if error is not None else future.result()
        return [found[index] for index in range(len(tasks))]

    def _at(self, three: Trace, growth: list[int], *, num_units: int) -> tuple[Trace, list[int]]:
        events = [
            event._replace(num_bytes=event.num_bytes + more * (num_units - UNITS)) if more else event
            for event, more in zip(three.events, growth, strict=True)
        ]
        resized = dataclasses.replace(three, events=events)
        period = self.source.period
        expansion = expand(resized, num_units=num_units, period=period)
        return rebuild(resized, expansion, num_units=num_units, period=period), expansion.sources


def predict(workload: Workload, *, micro_batch_size: int, seq_len: int) -> Prediction:
    """One shape of one workload. Raises EstimateError for a model that cannot be traced."""
    return Estimator(workload).predict(micro_batch_size=micro_batch_size, seq_len=seq_len, both_attentions=True)


def prediction_of(
    trace: Trace,
    work: dict[str, list[dict[str, Any]]],
    *,
    num_params: int,
    notes: tuple[str, ...],
    plain: Prediction | None = None,
) -> Prediction:
    """What a trace of the whole depth says of memory, beside the work that is known of it."""
    return Prediction(
        trace,
        num_params,
        peaks(trace),
        static_bytes(trace),
        replay(requests(trace), expandable=False),
        replay(requests(trace), expandable=True),
        work,
        notes,
        plain,
    )


def work_of(trace: Trace) -> dict[str, list[dict[str, Any]]]:
    """What one steady step computes, moves and sends, summed by kind: `decide.step_time` makes time of it."""
    kernels: dict[tuple[str, str], dict[str, Any]] = {}
    for operator in trace.operators:
        line = kernels.setdefault(
            (operator.kind, operator.dtype),
            {"kind": operator.kind, "dtype": operator.dtype, "num_flops": 0.0, "num_bytes": 0, "num_kernels": 0},
        )
        line["num_flops"] += operator.num_flops
        line["num_bytes"] += operator.num_bytes
        line["num_kernels"] += 1
    sent: dict[tuple[str, int], dict[str, Any]] = {}
    for collective in trace.collectives:
        line = sent.setdefault(
            (collective.name, collective.num_ranks),
            {"name": collective.name, "num_ranks": collective.num_ranks, "num_bytes": 0, "num_calls": 0},
        )
        line["num_bytes"] += collective.num_bytes
        line["num_calls"] += 1
    return {"kernels": list(kernels.values()), "collectives": list(sent.values())}


def requests(trace: Trace) -> list[tuple[int, int, int]]:
    """What the allocator is asked in the order of the trace, first for what was there before."""
    before = [(number, num_bytes, 0) for number, (_, num_bytes) in trace.initial.items()]
    return before + [(event.tensor, event.num_bytes, event.stream) for event in trace.events]


def _peak_bytes(trace: Trace) -> list[int]:
    return [peak.num_bytes for peak in peaks(trace).values()]
