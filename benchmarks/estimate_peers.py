"""What other estimators say of the same rows, GiB of one device. For `estimate_accuracy.py`.

Each runs where its package is installed (llm-analysis, deepspeed, accelerate; none is a dependency of pilotkit); the
others are named as absent. llm-analysis is given an accelerator of 10 TB, as it refuses what it believes not to fit,
and its own name for each policy; DeepSpeed counts states alone; Accelerate counts the whole model for Adam, unsharded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
from typing import Any

from published import Published
from torch import nn

from pilotkit.units import GIB

PACKAGES = {"llm-analysis": "llm_analysis", "DeepSpeed": "deepspeed", "Accelerate": "accelerate"}
LARGE_GB = 10_000


def absent() -> list[str]:
    """Peers that are not installed here."""
    return [name for name, module in PACKAGES.items() if importlib.util.find_spec(module) is None]


def peers(found: Published, model: nn.Module) -> dict[str, float]:
    """Estimates by peer; one that is absent or refuses the row is left out. `model` carries shapes alone."""
    answers: dict[str, float] = {}
    missing = absent()
    for name, ask in (("llm-analysis", _llm_analysis), ("DeepSpeed", _deepspeed), ("Accelerate", _accelerate)):
        if name in missing:
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                answers[name] = ask(found, model) / GIB
        except (AssertionError, ValueError, SystemExit):  # its own way to say that it cannot
            continue
    return answers


def _llm_analysis(found: Published, _model: nn.Module) -> float:
    from llm_analysis import analysis
    from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    row = found.row
    sizes: dict[str, Any] = {
        "num_layers": int(row["n_layers"]),
        "n_head": int(row["n_heads"]),
        "hidden_dim": int(row["d_model"]),
        "vocab_size": int(row["vocab"]),
        "num_key_value_heads": int(row["n_kv_heads"]),
        "num_key_value_groups": int(row["n_heads"]) // int(row["n_kv_heads"]),
        "ffn_embed_dim": int(row["d_ff"]),
        "expansion_ratio": int(row["d_ff"]) / int(row["d_model"]),
    }
    device = GPUConfig(
        name="large",
        mem_per_GPU_in_GB=LARGE_GB,
        hbm_bandwidth_in_GB_per_sec=2000,
        intra_node_bandwidth_in_GB_per_sec=600,
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=312,
    )
    batch, seq_len = found.shape
    fsdp = found.strategy == "fsdp"
    estimator = analysis.LLMAnalysis(
        ModelConfig(name="row", max_seq_len=seq_len, **sizes),
        device,
        DtypeConfig(name="w16a16e16", weight_bits=16, activation_bits=16, embedding_bits=16),
        ParallelismConfig(tp_size=1, pp_size=1, dp_size=found.num_devices, ep_size=1, sp_size=1),
        flops_efficiency=0.5,
    )
    policies = {"none": 0, "full": 2}
    result = estimator.training(
        batch_size_per_gpu=batch,
        gradient_accumulation_steps=1,
        seq_len=seq_len,
        total_num_tokens=10**9,
        activation_recomputation=analysis.ActivationRecomputation(policies.get(row["activation_ckpt"], 1)),
        ds_zero=analysis.DSZeRO(3 if fsdp else 0),
        mlp_gated_linear_units=True,
        **({"master_weights_dtype_bytes": 0, "other_op_bytes": 4} if found.is_pure else {}),
    )
    return float(result["(weight+op_state+grad+act)_memory_per_gpu"])


def _deepspeed(found: Published, model: nn.Module) -> float:
    """ZeRO-3 for sharded rows; DDP is its formula for one device, as nothing is sharded."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    total = sum(param.numel() for param in model.parameters())
    largest = max(sum(param.numel() for param in module.parameters(recurse=False)) for module in model.modules())
    devices = found.num_devices if found.strategy == "fsdp" else 1
    _host, device, _largest = estimate_zero3_model_states_mem_needs(
        total_params=total,
        largest_layer_params=largest,
        num_gpus_per_node=min(devices, 8),
        num_nodes=max(devices // 8, 1),
        cpu_offload=False,
        cpu_offload_params=False,
        zero_init=True,
    )
    return float(device)


def _accelerate(found: Published, model: nn.Module) -> float:
    """As `accelerate estimate-memory`: four times the model in its dtype, for Adam."""
    from accelerate.utils.modeling import calculate_maximum_sizes

    total, _largest = calculate_maximum_sizes(model)
    in_float32 = next(model.parameters()).element_size() == 4
    share = 0.5 if found.is_pure and in_float32 else 1.0
    return 4.0 * float(total) * share
