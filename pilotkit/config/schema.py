"""The types of everything a user can configure: one dataclass a section, a docstring and a unit a field.

Values that a user chooses between live in `conf/`; defaults of single options live here and nowhere else.
`option()` carries what a type cannot say (a range, a closed choice); `pilotkit.config.validate` enforces it.
Nothing here is computed: arithmetic over several fields is in `pilotkit.config.batch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from omegaconf import MISSING

STAGES = ("all", "lock", "estimate", "prove", "measure", "pilot", "restore", "budget", "plan", "report")
STRATEGIES = ("single", "ddp", "fsdp", "hsdp")
DTYPES = ("float32", "bfloat16", "float16")


def option(
    default: Any = MISSING,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field with a closed choice or a range; `ge`, `gt` and `le` are the usual bounds, in the field's own unit."""
    metadata = {"ge": ge, "gt": gt, "le": le, "choices": choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class HardwareConfig:
    """One accelerator as the plan may rent it. Every figure has a line in `sources`."""

    name: str = MISSING
    """What this option is called in tables."""
    device_type: str = option(choices=("cpu", "cuda", "rocm"))
    """Which backend the worker uses. `rocm` is torch's `cuda` device on an AMD build."""
    device_count: int = option(ge=1)
    """Devices in one node. On `cpu`: how many processes share this machine, each with an equal share of its cores."""
    memory_bytes: int = option(ge=1)
    """Memory of one device as torch reports it, bytes. On `cpu` the worker enforces it as a limit."""
    memory_bandwidth_bytes_per_second: Optional[float] = option(None, gt=0)
    """Peak bandwidth of device memory, bytes per second."""
    peak_flops: Dict[str, float] = field(default_factory=dict)
    """Dense peak by number format (`fp32 tf32 fp16 bf16 fp8`), FLOP per second. Empty: no MFU is claimed."""
    link_bandwidth_bytes_per_second: Optional[float] = option(None, gt=0)
    """One direction between two devices of a node, bytes per second."""
    power_watts: Optional[float] = option(None, gt=0)
    """Board power limit of one device, watts."""
    device_name_pattern: Optional[str] = None
    """Regular expression that the name reported by the driver must match. Null: any device will do."""
    precisions: List[str] = field(default_factory=list)
    """Names of the precision options that this hardware can run."""
    sources: Dict[str, str] = field(default_factory=dict)
    """Where each figure comes from, by field name."""


@dataclass
class ParallelismConfig:
    """How the intended run is spread over devices."""

    strategy: str = option(choices=STRATEGIES)
    """`single`, `ddp` (replicate), `fsdp` (shard everything) or `hsdp` (shard within, replicate across groups)."""
    num_nodes: int = option(1, ge=1)
    """Nodes of the intended run."""
    nproc_per_node: Optional[int] = option(None, ge=1)
    """Processes on each node. Null: one for each device of the hardware option."""
    dp_replicate: Optional[int] = option(None, ge=1)
    """Copies of the model. Null: derived from the strategy and the world size."""
    dp_shard: Optional[int] = option(None, ge=1)
    """Ranks that share one copy. Null: derived from the strategy and the world size."""
    reshard_after_forward: bool = True
    """FSDP and HSDP: free gathered parameters after forward (ZeRO-3) or keep them until backward (ZeRO-2)."""
    find_unused_parameters: bool = False
    """DDP: search for parameters that got no gradient in a step. Costs a graph walk a step."""


@dataclass
class PrecisionConfig:
    """Number formats of parameters, computation and gradient reduction."""

    name: str = MISSING
    """What this option is called; `hardware.precisions` lists those that the hardware runs."""
    param_dtype: str = option(choices=DTYPES)
    """Dtype in which parameters and optimizer state are kept."""
    compute_dtype: str = option(choices=DTYPES)
    """Dtype of matrix products in forward and backward. Other than `param_dtype`: autocast, or FSDP's policy."""
    reduce_dtype: str = option(choices=DTYPES)
    """Dtype in which sharded strategies reduce gradients. DDP reduces in `param_dtype`."""
    allow_tf32: bool = False
    """Let fp32 matrix products and convolutions use TF32."""
    grad_scaler: bool = False
    """Scale the loss dynamically, as float16 gradients need."""
    flops_format: str = option(choices=("fp32", "tf32", "fp16", "bf16", "fp8"))
    """Key of `hardware.peak_flops` that this precision is judged against."""


@dataclass
class ActivationCheckpointingConfig:
    """Which activations are recomputed in backward instead of kept."""

    mode: str = option(choices=("none", "full", "selective"))
    """`none`, `full` (every block) or `selective` (keep the results of matrix products and attention)."""


@dataclass
class ModelConfig:
    """The module to train, built by a factory. Contract: `model(**batch).loss`."""

    name: str = MISSING
    """What the model is called; for `model=hf` the hub id or a local folder."""
    factory: str = MISSING
    """`package.module:callable` that returns an `nn.Module`."""
    kwargs: Dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory."""
    revision: Optional[str] = None
    """Commit of the hub repository. Null: a local folder, or random weights from a configuration."""
    blocks: Optional[str] = None
    """Dotted path of the repeated blocks (an `nn.ModuleList`) to shard and checkpoint. Null: found by itself."""


@dataclass
class DataConfig:
    """The data set, built by a factory that returns a map-style dataset of batches' rows."""

    name: str = MISSING
    """What the data set is called."""
    factory: str = MISSING
    """`package.module:callable`; called with `split`, `seq_len`, `seed` and `kwargs`."""
    kwargs: Dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the factory."""
    path: Optional[str] = None
    """Local folder or file that the rows come from; relative to where pilotkit was started."""
    revision: Optional[str] = None
    """Commit of the hub repository."""
    num_workers: int = option(0, ge=0)
    """Loader processes of each rank."""
    prefetch_factor: int = option(2, ge=1)
    """Batches that each loader process holds ready."""
    pin_memory: bool = False
    """Copy batches into page-locked memory (accelerators only)."""


@dataclass
class OptimizerConfig:
    """The optimizer and its hyperparameters."""

    name: str = option(choices=("adamw", "adam", "sgd"))
    """Which torch optimizer."""
    lr: float = option(gt=0)
    """Learning rate after warm-up."""
    betas: List[float] = field(default_factory=lambda: [0.9, 0.95])
    """Adam's decay rates of the two moments."""
    eps: float = option(1e-8, gt=0)
    """Adam's term against division by zero."""
    momentum: float = option(0.0, ge=0)
    """SGD's momentum."""
    weight_decay: float = option(0.0, ge=0)
    """Decoupled for AdamW, L2 otherwise."""
    implementation: str = option("foreach", choices=("foreach", "fused", "for_loop"))
    """Which of torch's implementations. They differ in speed and in temporary memory."""


@dataclass
class SchedulerConfig:
    """Learning rate over the intended run."""

    name: str = option(choices=("constant", "cosine", "linear"))
    """Shape after warm-up."""
    lr_warmup_steps: int = option(0, ge=0)
    """Steps of linear increase from zero."""
    min_lr_ratio: float = option(0.0, ge=0, le=1)
    """Final learning rate as a share of `optimizer.lr`."""


@dataclass
class TrainConfig:
    """The intended long run. Stages measure exactly these shapes; there is no second, smaller set."""

    micro_batch_size: int = option(ge=1)
    """Sequences (rows) per rank in one forward pass."""
    seq_len: int = option(ge=1)
    """Tokens in a row."""
    global_batch_size: Optional[int] = option(None, ge=1)
    """Rows per optimizer step over all ranks. Null: derived with `grad_accum_steps`."""
    grad_accum_steps: Optional[int] = option(None, ge=1)
    """Forward passes per optimizer step on each rank. Null: derived from `global_batch_size`, else 1."""
    total_tokens: int = option(ge=1)
    """Tokens of the whole intended run."""
    eval_every_steps: int = option(ge=1)
    """Optimizer steps between evaluations."""
    num_eval_batches: int = option(ge=1)
    """Micro-batches of one evaluation on each rank."""
    checkpoint_every_steps: int = option(ge=1)
    """Optimizer steps between checkpoints."""
    max_grad_norm: Optional[float] = option(1.0, gt=0)
    """Clip the gradient norm to this. Null: no clipping."""
    seed: int = option(0, ge=0)
    """Seed of weights, data order and every random state."""
    deterministic: bool = True
    """Use torch's deterministic algorithms. Slower on some operators; equality tests are bitwise then."""
    compile: bool = False
    """Compile the model with torch.compile."""


@dataclass
class ReservationConfig:
    """What would be rented."""

    name: str = MISSING
    """What this reservation is called."""
    days: float = option(gt=0)
    """Length, days."""


@dataclass
class ClusterConfig:
    """Where the stages run."""

    name: str = option(choices=("local", "slurm"))
    """`local`: this machine. `slurm`: sweeps are submitted as jobs."""


@dataclass
class EstimateOptions:
    """Stage `estimate`: memory and time without the hardware."""

    micro_batch_sizes: List[int] = field(default_factory=list)
    """Grid: micro-batch sizes to estimate beside the run's own, all from a few small traces. Empty: no grid."""
    seq_lens: List[int] = field(default_factory=list)
    """Grid: sequence lengths (tokens). Empty: only the run's own."""
    headroom: float = option(0.05, ge=0, le=0.9)
    """Share of the device's memory that has to stay free for `fits`."""
    allocator: str = option("expandable", choices=("native", "expandable"))
    """Which behaviour of the caching allocator `fits` is judged by: PYTORCH_CUDA_ALLOC_CONF's expandable_segments."""
    context_bytes: int = option(629145600, ge=0)
    """Device context and loaded kernels, bytes, outside of the allocator; 0 on `cpu`. 600 MiB: a bare context shows as
    612 MiB on an H200 and 614 MiB on an A100 in public out-of-memory logs; 0.47 to 0.92 GiB with lazy and eager loading
    (stas00/ml-engineering training/performance/README.md @744d01e)."""
    communication_bytes: int = option(1073741824, ge=0)
    """NCCL or RCCL buffers of more than one rank, bytes, outside of the allocator. 1 GiB: 1 to 2 GiB were seen after
    the first collective of two A100 or H100 (stas00/ml-engineering training/performance/README.md @744d01e)."""
    workspace_bytes: int = option(67108864, ge=0)
    """Workspaces of the matrix library, bytes: 8 buffers of 4 MiB (CUBLAS_WORKSPACE_CONFIG=:4096:8, which the worker
    sets) for each of the two threads, forward's and backward's."""


@dataclass
class ProveOptions:
    """Stage `prove`: one complete step on one device."""

    num_steps: int = option(2, ge=1)
    """Optimizer steps before evaluation and checkpoint."""


@dataclass
class MeasureOptions:
    """Stage `measure`: representative steps on one device."""

    num_warmup_steps: int = option(3, ge=1)
    """Steps that are run and not counted."""
    num_measured_steps: int = option(10, ge=3)
    """Steps that are counted."""
    max_spread: float = option(0.10, gt=0)
    """Coefficient of variation of the step time above which the result is marked unsteady."""


@dataclass
class PilotOptions:
    """Stage `pilot`: all devices of one node under torchrun."""

    strategies: List[str] = field(default_factory=lambda: ["ddp", "fsdp"])
    """Strategies to run and compare; each of `ddp`, `fsdp`, `hsdp`."""
    num_warmup_steps: int = option(3, ge=1)
    """Steps of each strategy that are run and not counted."""
    num_measured_steps: int = option(10, ge=3)
    """Steps of each strategy that are counted."""
    allow_idle_devices: bool = False
    """Run on fewer processes than there are devices; the idle ones are noted in the record."""
    timeout_seconds: float = option(3600.0, gt=0)
    """End a strategy that runs longer than this, seconds."""


@dataclass
class RestoreOptions:
    """Stage `restore`: save, end the process, continue in a new one."""

    num_steps: int = option(3, ge=1)
    """Steps before the save, and again after it."""
    path: Optional[str] = None
    """Restore from this checkpoint instead of one made here; relative to where pilotkit was started."""
    rtol: float = option(0.0, ge=0)
    """Relative tolerance between the continued and the uninterrupted run. 0 is bitwise."""


@dataclass
class BudgetOptions:
    """Stage `budget`: what does everything around the step cost?"""

    download_seconds: Optional[float] = option(None, ge=0)
    """Time to bring model and data to the node, if you know it; marked given."""
    copy_out_seconds: Optional[float] = option(None, ge=0)
    """Time to bring results away, if you know it; marked given."""


@dataclass
class PlanOptions:
    """Stage `plan`: which reservation?"""

    reservations: List[str] = field(default_factory=lambda: ["7d", "30d"])
    """Reservation options that the decision compares."""
    price_per_gpu_hour: Optional[float] = option(None, ge=0)
    """Your price of one device for one hour. Null: no cost is stated."""
    currency: str = "USD"
    """Currency of the price; only printed."""


@dataclass
class ReportOptions:
    """Stage `report`: the page."""

    open_browser: bool = False
    """Open the page when it is written."""


@dataclass
class PilotConfig:
    """Everything one run of one stage is told."""

    stage: str = option(choices=STAGES)
    """Which chapter to run, or `all`."""
    name: str = "default"
    """Name of the study: records are searched within one name."""
    output_dir: str = "outputs"
    """Where run directories go; relative to where pilotkit was started."""
    image: Optional[str] = None
    """Container image this runs in, best as `name@sha256:...`."""

    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    reservation: ReservationConfig = field(default_factory=ReservationConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    estimate: EstimateOptions = field(default_factory=EstimateOptions)
    prove: ProveOptions = field(default_factory=ProveOptions)
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    pilot: PilotOptions = field(default_factory=PilotOptions)
    restore: RestoreOptions = field(default_factory=RestoreOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    plan: PlanOptions = field(default_factory=PlanOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
