"""Options of stage `estimate`: the question that is asked, and what is assumed of a device that is not here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from pilotkit.config.option import option


@dataclass
class EstimateOptions:
    """Stage `estimate`: memory and time without the hardware."""

    micro_batch_sizes: List[int] = field(default_factory=list)
    """Grid: micro-batch sizes to estimate beside the run's own, all from a few small traces. Empty: no grid."""
    seq_lens: List[int] = field(default_factory=list)
    """Grid: sequence lengths (tokens). Empty: only the run's own."""
    headroom: float = option(0.05, ge=0, le=0.9)
    """Share of the device's memory that has to stay free for `fits`."""
    attention: str = option("auto", choices=("auto", "fused", "math"))
    """How attention by `scaled_dot_product_attention` is computed on an accelerator: by torch's `fused` kernels, or by
    plain operators that keep the scores (`math`). `auto`: fused; on ROCm, where builds of torch differ, the peak with
    plain operators stands beside it."""
    allocator: str = option("expandable", choices=("native", "expandable"))
    """Which behaviour of the caching allocator `fits` is judged by: PYTORCH_CUDA_ALLOC_CONF's expandable_segments."""
    context_bytes: int = option(629145600, ge=0)
    """Device context and loaded kernels, bytes, outside of the allocator; 0 on `cpu`. 600 MiB: a bare context shows as
    612 MiB on an H200 and 614 MiB on an A100 in public out-of-memory logs; 0.47 to 0.92 GiB with lazy and eager loading
    (stas00/ml-engineering training/performance/README.md @744d01e)."""
    communication_bytes: int = option(1073741824, ge=0)
    """NCCL or RCCL buffers of more than one rank, bytes, outside of the allocator. 1 GiB: 1 to 2 GiB were seen after
    the first collective of two A100 or H100 (stas00/ml-engineering training/performance/README.md @744d01e)."""
    matmul_efficiency: Optional[float] = option(None, gt=0, le=1)
    """Share of the dense peak that matrix products reach, uncalibrated. It, and the next three, stand for a whole step
    of a large model. Null: `hardware.efficiencies`, else a starting value from published H100 speeds, 0.63."""
    attention_efficiency: Optional[float] = option(None, gt=0, le=1)
    """The same for fused attention, causal counted half; starting value 0.2."""
    bandwidth_efficiency: Optional[float] = option(None, gt=0, le=1)
    """Share of memory bandwidth that all other kernels reach; starting value 0.71."""
    link_efficiency: Optional[float] = option(None, gt=0, le=1)
    """Share of the bandwidth between devices that collectives reach; starting value 0.7."""
    kernel_seconds: float = option(5e-6, ge=0)
    """Host time to launch one kernel, seconds: a step takes at least this for each. 5 to 10 us in eager PyTorch; a
    guess to calibrate."""
    network_bytes_per_second: Optional[float] = option(None, gt=0)
    """Bandwidth of each device between nodes, bytes per second. A ring enters a node through all of its devices at
    once. Null: more than one node has no time estimate."""
    workspace_bytes: int = option(67108864, ge=0)
    """Workspaces of the matrix library, bytes: 8 buffers of 4 MiB (CUBLAS_WORKSPACE_CONFIG=:4096:8, which the worker
    sets) for each of the two threads, forward's and backward's."""
    fallback: str = option("none", choices=("none", "analytic"))
    """What is done with a model that can be built and not traced: `none` refuses it with the reason, `analytic` counts
    its states and guesses its activations, marked as that."""
    calibrate: bool = True
    """Correct the estimate by what was measured (`measure`, `pilot`, `measured_csv`) on this hardware, or carried over
    from another accelerator; the history is kept in `<output_dir>/calibration`. False: nothing is read or corrected."""
    measured_csv: Optional[str] = None
    """Your own measurements of this model on this hardware, CSV: micro_batch_size, seq_len, strategy, num_devices,
    grad_accum_steps (each as configured when left out), and what was measured: step_seconds or tokens_per_second (all
    devices), peak_allocated_bytes, peak_reserved_bytes, device_used_bytes."""
    largest_micro_batch: bool = False
    """Also find the largest micro-batch that fits for each of `seq_lens` (or the run's own)."""
    longest_sequence: bool = False
    """Also find the longest sequence that fits for each of `micro_batch_sizes` (or the run's own), tokens."""
    max_devices: Optional[int] = option(None, ge=1)
    """Also find the fewest devices that fit, up to this number. Null: not asked."""
    compare_hardware: List[str] = field(default_factory=list)
    """Hardware options to ask for the fewest devices that fit and for what they cost at `prices.per_gpu_hour`; needs
    `max_devices`."""
