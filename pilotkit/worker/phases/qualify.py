"""Phases of `qualify`: one process exercises what a step of the user's model dispatches; several check collectives.

The driver puts the rows together and judges the set; a row here says only how its own check ended.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch import Tensor

from pilotkit.device import describe_stack
from pilotkit.provenance.builds import has_kernels
from pilotkit.train.factories import bound
from pilotkit.train.precision import DTYPES
from pilotkit.worker.build import Built, build
from pilotkit.worker.qualify.attention import check_backend
from pilotkit.worker.qualify.collectives import all_reduce_bytes_per_second, check_collectives
from pilotkit.worker.qualify.extensions import Extension, judge_extension, judge_kernel, load_extensions, watch_calls
from pilotkit.worker.qualify.gradients import check_gradient
from pilotkit.worker.qualify.operators import TOLERANCES, check_operator
from pilotkit.worker.qualify.rows import FAIL, PASS, Row, kernels_without_order, words_of
from pilotkit.worker.qualify.speed import copy_bytes_per_second, matmul_flops_per_second
from pilotkit.worker.qualify.trace import OperatorTrace
from pilotkit.worker.session import Session

ALL_REDUCE_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}


def qualify(session: Session) -> dict[str, Any]:
    """Trace one step; exercise its operators, the extensions, the backends and the whole gradient; then the speed."""
    config, stack = session.config, describe_stack()
    if stack["arch"] and not has_kernels(stack["arch"], stack["built_for"]):
        # The first kernel would end the process in words that name neither; the driver says which build is missing.
        nothing: dict[str, Any] = {
            "metrics": {},
            "rows": [],
            "extensions": {},
            "operators": [],
            "not_deterministic": [],
        }
        return {**nothing, "stack": stack, "device": session.device.name}
    extensions = load_extensions(config.qualify.extensions)
    built = build(session, strategy="single")
    rows, trace, not_deterministic = _trace_step(built, extensions)
    seen = frozenset(operator.name for operator in trace.operators.values())
    device_type = config.hardware.device_type
    rows += [judge_extension(extension, seen=seen, device_type=device_type) for extension in extensions]
    rows += [judge_kernel(name, seen=seen, device_type=device_type) for name in config.qualify.kernels]
    dtype = DTYPES[config.precision.compute_dtype]
    torch.use_deterministic_algorithms(False)  # what is asked is whether a value is right
    operators = sorted(trace.operators.values(), key=lambda operator: operator.title)
    for index, operator in enumerate(operators):
        rows.append(check_operator(operator, allow_tf32=config.precision.allow_tf32))
        session.progress(index + 1, len(operators) + 2, label="qualify")
    device = session.device.torch_device
    rows += [
        check_backend(name, device=device, dtype=dtype, tolerance=TOLERANCES[dtype])
        for name in config.qualify.attention_backends
    ]
    rows.append(check_gradient(_fresh_model(session), _few_rows(built)))
    session.progress(len(operators) + 1, len(operators) + 2, label="qualify")
    metrics = {
        "num_operators": len(operators),
        "matmul_flops_per_second": matmul_flops_per_second(session.device, dtype=dtype),
        "copy_bytes_per_second": copy_bytes_per_second(session.device),
    }
    session.progress(len(operators) + 2, len(operators) + 2, label="qualify")
    built.close()
    return {
        "metrics": metrics,
        "rows": [dataclasses.asdict(row) for row in rows],
        "stack": stack,
        "extensions": {extension.name: extension.describe() for extension in extensions},
        "operators": sorted(seen),
        "not_deterministic": not_deterministic,
        "device": session.device.name,
    }


def qualify_ranks(session: Session) -> dict[str, Any]:
    """Collectives by value in the dtype that gradients are reduced in, and the speed of every rank's card."""
    config = session.config
    strategy = config.parallelism.strategy
    reduce_dtype = config.precision.param_dtype if strategy == "ddp" else config.precision.reduce_dtype
    rows = check_collectives(session.device, strategy=strategy, dtype=DTYPES[reduce_dtype])
    num_bytes = ALL_REDUCE_BYTES[session.device.torch_device.type]
    bandwidth = all_reduce_bytes_per_second(session.device, num_bytes=num_bytes)
    own = matmul_flops_per_second(session.device, dtype=DTYPES[config.precision.compute_dtype])
    return {
        "metrics": {"all_reduce_bytes_per_second": bandwidth},
        "rows": [dataclasses.asdict(row) for row in rows],
        "devices": session.gather(session.device.name),
        "flops_per_second": session.gather(own),
    }


def _trace_step(built: Built, extensions: list[Extension]) -> tuple[list[Row], OperatorTrace, list[str]]:
    """One whole optimizer step, and what torch's deterministic mode says about it.

    A step that raises is a finding with the operator's name. Memory is not its matter.
    """
    trace, told = OperatorTrace(), []
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with watch_calls(extensions), trace, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            built.trainer.train_step()
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise
        return [Row("operator", trace.current, FAIL, f"the step ends here: {words_of(error)}")], trace, []
    num_calls = sum(operator.num_calls for operator in trace.operators.values())
    row = Row("step", "one optimizer step", PASS, f"{num_calls} calls of {len(trace.operators)} operators")
    return [row], trace, kernels_without_order([str(warning.message) for warning in told])


def _fresh_model(session: Session) -> torch.nn.Module:
    """Another one than the trainer's, on the CPU: it will be converted."""
    config = session.config
    model: torch.nn.Module = bound(config.model.factory, section="model", kwargs=config.model.kwargs)()
    return model


def _few_rows(built: Built) -> dict[str, Tensor]:
    """The first two rows of the next micro-batch."""
    return {name: tensor[:2] for name, tensor in built.trainer.train_rows.next().tensors.items()}
