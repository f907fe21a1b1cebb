"""Phases of `numerics`: fp32 first (twice the same, then other rows), then the candidate precision on the same batches.

`reference` leaves its first gradients in a file, which `candidate` reads one parameter at a time. Judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pilotkit.config.run_sections import PrecisionConfig
from pilotkit.meter.dtypes import DtypeTable
from pilotkit.worker.curves import FP32, run_curve
from pilotkit.worker.session import Session

REFERENCE_PHASE = "numerics_reference"


def reference(session: Session) -> dict[str, Any]:
    """fp32 on the run's own seed, once more (is it repeatable?), and on other rows (how far apart is chance?).

    Chance is only asked for when there is a candidate to hold against it.
    """
    gradients: dict[str, Tensor] = {}
    first = run_curve(
        session, precision=FP32, use_gradient=lambda name, value: _keep(gradients, name, value), label="fp32"
    )
    if session.config.precision.name != FP32.name:
        torch.save(gradients, session.phase_dir.gradients)
    again = run_curve(session, precision=FP32, use_gradient=lambda name, value: None, label="fp32 again")
    seed = session.config.train.seed
    noise = []
    num_noise_seeds = 0 if session.config.precision.name == FP32.name else session.config.numerics.num_noise_seeds
    for number in range(1, num_noise_seeds + 1):
        deviation = _Deviation(gradients)
        curve = run_curve(
            session,
            precision=FP32,
            use_gradient=deviation.add,
            label=f"fp32, other rows {number}",
            row_seed=seed + number,
        )
        noise.append({**curve.to_dict(), "seed": seed + number, "grad_deviation": deviation.by_group()})
    return {
        "reference": first.to_dict(),
        "repeatable": first.digest == again.digest and first.losses == again.losses,
        "noise": noise,
        "leaks": first.dtypes.leaks(FP32.compute_dtype),
        "switches": switches(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def candidate(session: Session) -> dict[str, Any]:
    """The precision of the run, on the rows and from the weights of the reference."""
    path = session.run_dir.phase(REFERENCE_PHASE).gradients
    # Mapped and not read: a second copy of the model may not fit beside the first.
    deviation = _Deviation(torch.load(path, mmap=True, weights_only=True))
    precision = session.config.precision
    curve = run_curve(session, precision=precision, use_gradient=deviation.add, label=precision.name)
    path.unlink()
    return {
        "candidate": {**curve.to_dict(), "grad_deviation": deviation.by_group()},
        "leaks": curve.dtypes.leaks(precision.compute_dtype, *_float8_dtypes(precision, curve.dtypes)),
        "switches": switches(),
    }


def _float8_dtypes(precision: PrecisionConfig, table: DtypeTable) -> list[str]:
    """What products may be taken in besides, where float8 was asked for; emulated ones multiply in float32."""
    if precision.float8 == "none":
        return []
    return [name for name in table.products if name.startswith("float8")] + ["float32"] * precision.float8_emulate


def switches() -> dict[str, bool]:
    """What this process lets fp32 products become; read through the one pair of switches that is also set."""
    return {
        "matmul_allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
    }


class _Deviation:
    """Norm of the difference from a reference over the norm of the reference, by parameter group."""

    def __init__(self, reference: Mapping[str, Tensor]) -> None:
        self._reference = reference
        self._squares: dict[str, list[float]] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """Compare one parameter's gradient, in float64 so that the sum itself adds no error."""
        expected = self._reference[name].to(gradient.device).double()
        sums = self._squares.setdefault(group_of(name), [0.0, 0.0])
        sums[0] += float((gradient.double() - expected).square().sum())
        sums[1] += float(expected.square().sum())

    def by_group(self) -> dict[str, float | None]:
        """None where the deviation is not a number: the gradient overflowed, or the reference has none."""
        return {
            group: (difference / whole) ** 0.5 if whole > 0 and difference < float("inf") else None
            for group, (difference, whole) in self._squares.items()
        }


def group_of(name: str) -> str:
    """`blocks.3.attention.qkv.weight` -> `blocks.3`; `token_embedding.weight` -> `token_embedding`."""
    found = re.match(r"(?:[^.]+\.)*?\d+(?=\.)", name)
    return found[0] if found else name.rpartition(".")[0] or name


def _keep(gradients: dict[str, Tensor], name: str, value: Tensor) -> None:
    gradients[name] = value.cpu()
