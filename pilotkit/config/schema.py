"""The types of everything a user can configure: one dataclass a section, a docstring and a unit a field.

Values that a user chooses between live in `conf/`; defaults of single options live here and nowhere else.
`option()` carries what a type cannot say (a range, a closed choice); `pilotkit.config.validate` enforces it.
Nothing here is computed: arithmetic over several fields is in `pilotkit.config.batch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from omegaconf import MISSING

STAGES = (
    "all",
    "lock",
    "estimate",
    "prove",
    "measure",
    "numerics",
    "pilot",
    "restore",
    "qualify",
    "budget",
    "plan",
    "report",
    "sweep_status",
    "sweep_collect",
    "checkpoint_verify",
    "replay",
)
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

    micro_batch_size: int = option(ge=1, le=2**24)
    """Sequences (rows) per rank in one forward pass."""
    seq_len: int = option(ge=1, le=2**30)
    """Tokens in a row."""
    global_batch_size: Optional[int] = option(None, ge=1)
    """Rows per optimizer step over all ranks. Null: derived with `grad_accum_steps`."""
    grad_accum_steps: Optional[int] = option(None, ge=1)
    """Forward passes per optimizer step on each rank. Null: derived from `global_batch_size`, else 1."""
    total_tokens: int = option(ge=1, le=10**18)
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
class FailuresConfig:
    """How often a node of such a fleet interrupts a run, of all causes, planned maintenance left out."""

    name: str = MISSING
    """What this fleet is called."""
    per_node_day: float = option(ge=0)
    """Interruptions of one node of 8 devices in a day."""
    low_per_node_day: Optional[float] = option(None, gt=0)
    """With 90 % the true rate is above this. Null: the rate is taken as exact."""
    high_per_node_day: Optional[float] = option(None, gt=0)
    """With 90 % the true rate is below this. Null: the rate is taken as exact."""
    small_job_factor: float = option(1.0, ge=1)
    """How many times as often small jobs are interrupted, for reasons beside the hardware."""
    small_job_nodes: int = option(512, ge=1)
    """Up to so many nodes that extra grows with the nodes; above it stays."""
    source: str = ""
    """Where the figures come from."""


@dataclass
class ClusterConfig:
    """Where the stages run."""

    name: str = option(choices=("local", "slurm"))
    """`local`: this machine. `slurm`: sweeps are submitted as jobs."""
    partition: Optional[str] = None
    """Slurm partition. Null: the cluster's default one."""
    account: Optional[str] = None
    """Slurm account. Null: your default one."""
    qos: Optional[str] = None
    """Quality of service."""
    constraint: Optional[str] = None
    """Node features, as in `sbatch --constraint`."""
    exclude: Optional[str] = None
    """Nodes that are not to be used, as in `sbatch --exclude`."""
    gpu_type: Optional[str] = None
    """What this cluster calls the accelerator in its gres. Null: the hardware's name; `any`: no type is asked for."""
    gres: Optional[str] = None
    """The whole of `sbatch --gres`. Null: derived from the hardware, the stage and `parallelism.nproc_per_node`."""
    time_minutes: Optional[int] = option(None, ge=1)
    """Time limit of a job, minutes. Null: the length of the reservation."""
    cpus_per_task: Optional[int] = option(None, ge=1)
    """Cores on each node. Null: one for each process and one for each of its loader processes."""
    mem_gb: Optional[float] = option(None, gt=0)
    """Host memory on each node, GiB. Null: the partition's default."""
    array_parallelism: int = option(256, ge=1)
    """Most points of one array that run at the same time."""
    signal_delay_seconds: int = option(120, ge=1)
    """How long before the time limit a job is told to save and end, seconds."""
    max_requeues: int = option(3, ge=0)
    """How often a point that was preempted goes back to the queue."""
    setup: List[str] = field(default_factory=list)
    """Shell lines of the job before pilotkit starts: modules, variables."""
    python: Optional[str] = None
    """Shell words that start Python in the job, as `apptainer exec --nv train.sif python`. Null: this Python."""
    additional_parameters: Dict[str, Any] = field(default_factory=dict)
    """Any other option of sbatch by its long name, as `+cluster.additional_parameters.mail-type=FAIL`."""
    wait: bool = False
    """Wait for every point with a live table, instead of returning after submission."""


@dataclass
class SweepOptions:
    """Sweeps: what is run again, and which sweep `sweep_status` and `sweep_collect` look at."""

    rerun: str = option("none", choices=("none", "failed", "all"))
    """Points that were run before: none again, those that failed, or all. A point without a result always runs."""
    skip_invalid: bool = False
    """Submit the sound points although others are wrong. False: one wrong point refuses the sweep."""
    dir: Optional[str] = None
    """Folder of a sweep, for `sweep_status` and `sweep_collect`. Null: the newest of this study."""


@dataclass
class LockOptions:
    """Stage `lock`, and the gate that every later stage passes."""

    mode: str = option("write", choices=("write", "check", "warn"))
    """`write`: stage `lock` makes a new lock; what drifts later is told, and that evidence is void. `check`: compare
    with the committed lock and refuse what drifted. `warn`: compare, tell, and go on with evidence that is void."""
    path: Optional[str] = None
    """Lock file to commit, for example `lock.pilotkit.yaml`; relative to where pilotkit was started."""
    allow: List[str] = field(default_factory=list)
    """What may drift, each as `field: reason`; a field may be a pattern (`packages.*`). Records keep the reason."""


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
    matmul_efficiency: float = option(0.55, gt=0, le=1)
    """Share of the dense peak that matrix products reach. Starting value, from H100 runs with published speeds (0.75 on
    A100, from few): uncalibrated. It, and the next three, stand for a whole step of a large model."""
    attention_efficiency: float = option(0.25, gt=0, le=1)
    """The same for fused attention, causal counted half. Starting value from H100 runs; 0.5 on A100."""
    bandwidth_efficiency: float = option(0.77, gt=0, le=1)
    """Share of memory bandwidth that all other kernels reach. Starting value from H100 runs; 0.8 on A100."""
    link_efficiency: float = option(0.7, gt=0, le=1)
    """Share of `hardware.link_bandwidth_bytes_per_second` that collectives reach. A guess to calibrate."""
    network_bytes_per_second: Optional[float] = option(None, gt=0)
    """Bandwidth of each device between nodes, bytes per second. Null: more than one node has no time estimate."""
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
    """Steps in which warm-up is looked for: it is over when this many steps are no faster than as many before."""
    max_warmup_steps: int = option(30, ge=1)
    """Warm-up ends after this many steps at the latest; a run that has not settled by then is told."""
    settled_tolerance: float = option(0.10, ge=0)
    """How much faster the last warm-up steps may be than those before them, relative."""
    loader_seconds: float = option(1.0, gt=0)
    """How long the loader alone is timed for its own maximum rate, seconds."""
    num_measured_steps: int = option(10, ge=3)
    """Steps that are counted."""
    max_spread: float = option(0.10, gt=0)
    """Coefficient of variation of the step time above which the result is marked unsteady."""
    max_used_before_bytes: int = option(2147483648, ge=0)
    """Accelerators: memory that may be in use when a measurement starts, its own context included, bytes (2 GiB)."""
    module_depth: int = option(2, ge=1)
    """How many parts of a dotted module name the breakdown of memory tells apart."""
    checkpoint_peak: bool = True
    """Also save a checkpoint (and delete it) to find the memory that saving takes."""


@dataclass
class NumericsOptions:
    """Stage `numerics`: lower precision and activation checkpointing, judged separately on one device."""

    num_steps: int = option(12, ge=2)
    """Optimizer steps of every compared run, at `optimizer.lr` from the first one: warm-up would hide a lost update."""
    num_noise_seeds: int = option(2, ge=1)
    """Further fp32 runs with other rows and other dropout: how far apart two fp32 runs end is the noise floor."""
    loss_rtol: float = option(2e-3, ge=0)
    """Deviation of the evaluation loss, relative to fp32, that is accepted even when the noise floor is lower."""
    max_grad_deviation: float = option(0.10, gt=0)
    """Accepted deviation of a parameter group's first gradient: norm of the difference over the fp32 norm."""
    reject_factor: float = option(3.0, ge=1)
    """A deviation of more than this many times what is accepted is rejected; between the two it is undecided."""
    max_lost_updates: float = option(0.10, ge=0, le=1)
    """Accepted share of parameters whose update was rounded away in the parameter's own dtype (0 to 1)."""
    max_skipped_steps: float = option(0.25, ge=0, le=1)
    """Accepted share of steps that the loss scaler skipped for an overflow (0 to 1)."""
    modes: List[str] = field(default_factory=lambda: ["none", "full", "selective"])
    """Activation checkpointing to compare; `none` must be among them. Empty: leave recomputation out."""
    num_timed_steps: int = option(6, ge=3)
    """Counted steps of each activation checkpointing mode, after `measure.num_warmup_steps`."""


@dataclass
class PilotOptions:
    """Stage `pilot`: all devices of one node under torchrun."""

    strategies: List[str] = field(default_factory=lambda: ["ddp", "fsdp"])
    """Strategies to run and compare; each of `ddp`, `fsdp`, `hsdp`."""
    num_warmup_steps: int = option(3, ge=1)
    """As `measure.num_warmup_steps`, for each strategy."""
    max_warmup_steps: int = option(30, ge=1)
    """As `measure.max_warmup_steps`, for each strategy."""
    num_measured_steps: int = option(10, ge=3)
    """Steps of each strategy that are counted."""
    memory_headroom: float = option(0.10, ge=0, le=1)
    """Share of a device's memory that a recommended strategy leaves free (0 to 1)."""
    allow_idle_devices: bool = False
    """Run on fewer processes than there are devices; the idle ones are noted in the record."""
    script: Optional[str] = None
    """Your own training script, run under torchrun in place of the strategies; relative to where pilotkit was started.
    What `pilotkit.meter.StepMeter` or one of its callbacks measures in it becomes the record."""
    args: List[str] = field(default_factory=list)
    """Arguments of the script, handed on as they are."""
    timeout_seconds: float = option(3600.0, gt=0)
    """End a strategy that runs longer than this, seconds."""


@dataclass
class RestoreOptions:
    """Stage `restore`: save, end the process, continue in a new one."""

    num_steps: int = option(3, ge=1)
    """Steps before the save, and again after it."""
    path: Optional[str] = None
    """Restore from this checkpoint, or the newest sound one of this folder, instead of one made here; relative to
    where pilotkit was started."""
    allow_changes: List[str] = field(default_factory=list)
    """Options (or whole sections) in which the run may differ from the one that saved the checkpoint."""
    export: bool = False
    """Write the restored weights as safetensors and have a program that knows nothing of pilotkit read them."""
    export_rtol: float = option(1e-5, ge=0)
    """Relative tolerance of the evaluation loss of that program's plain model."""
    world_sizes: List[int] = field(default_factory=list)
    """Numbers of ranks: saved on each and restored on each, for example [1,2,4]. Empty: not tried."""
    strategies: List[str] = field(default_factory=list)
    """Strategies out of `ddp`, `fsdp`, `hsdp`: saved under each and restored under each other one. Empty: not tried."""
    shape_rtol: float = option(1e-3, ge=0)
    """Relative tolerance of losses between shapes, which sum in another order. The restored state has to be equal."""
    clean_partial: bool = False
    """`checkpoint_verify`: delete what killed saves left in a folder of checkpoints; a save in progress stays."""
    rtol: float = option(0.0, ge=0)
    """Relative tolerance between the continued and the uninterrupted run. 0 is bitwise."""


@dataclass
class QualifyOptions:
    """Stage `qualify`: what the application needs of the software, beside the operators that its step shows."""

    extensions: List[str] = field(default_factory=list)
    """Import names of extensions that the model uses; each has to run a kernel of its own in a step."""
    kernels: List[str] = field(default_factory=list)
    """Operators, as `namespace::name`, that a step has to dispatch."""
    attention_backends: List[str] = field(default_factory=list)
    """Attention backends that have to run here; each of `flash`, `efficient`, `cudnn`, `math`."""
    packages: List[str] = field(default_factory=list)
    """Requirements as pip writes them, for example `flash-attn>=2.6`."""
    archs: List[str] = field(default_factory=list)
    """Architectures that will do (`sm_90`, `gfx942`). Empty: any that torch has kernels for."""
    min_flops_ratio: float = option(0.4, gt=0, le=1)
    """Share of `hardware.peak_flops` that a matrix product has to reach; MI300X reaches 0.51, H100 0.80 (mamf)."""
    min_bandwidth_ratio: float = option(0.6, gt=0, le=1)
    """Share of `hardware.memory_bandwidth_bytes_per_second` that a copy on the device has to reach."""
    min_share_of_fastest: float = option(0.85, gt=0, le=1)
    """A card that is slower than this share of the node's fastest one is named."""


@dataclass
class BudgetOptions:
    """Stage `budget`: what does everything around the step cost?"""

    download_seconds: Optional[float] = option(None, ge=0)
    """Time to bring model and data to the node, if you know it; marked given. Null: local sources are timed."""
    preprocess_seconds: Optional[float] = option(None, ge=0)
    """Time to prepare the raw data once, if there is such a step; marked given."""
    tokenize_seconds: Optional[float] = option(None, ge=0)
    """Time to tokenise the data once, if that is not done while it is loaded; marked given."""
    export_seconds: Optional[float] = option(None, ge=0)
    """Time to write the final model in the form it is handed on; marked given."""
    copy_out_seconds: Optional[float] = option(None, ge=0)
    """Time to bring results away, if you know it; marked given."""
    copy_out_to: Optional[str] = None
    """Folder that results are brought to: a checkpoint is copied there, compared by SHA-256, and removed."""
    max_read_bytes: int = option(2_000_000_000, ge=1)
    """Of a local source no more than this is read to time it; the rest is taken as equally fast. Bytes."""


@dataclass
class PricesOptions:
    """What you pay. No price is built in; each is in `plan.currency` and as old as `as_of` says."""

    as_of: Optional[str] = None
    """Date of these prices, YYYY-MM-DD. Prices without one are marked undated."""
    per_gpu_hour: Dict[str, Optional[float]] = field(default_factory=dict)
    """Price of one device for one hour, by hardware option: `prices.per_gpu_hour={a100:1.8,h100:2.9}`."""
    per_reservation: Dict[str, Optional[float]] = field(default_factory=dict)
    """Price of one device for a whole reservation, by both names: `+prices.per_reservation.h100_30d=1500`."""
    minimum_gpus: Dict[str, Optional[int]] = field(default_factory=dict)
    """Fewest devices that can be rented, by hardware option. Rented and idle devices are paid, too."""
    egress_per_gb: float = option(0.0, ge=0)
    """Price of bringing one GB (10^9 bytes) out."""
    copies_out: int = option(1, ge=0)
    """Checkpoints that are brought out."""
    storage_per_gb_month: float = option(0.0, ge=0)
    """Price of keeping one GB (10^9 bytes) for 30 days."""
    kept_checkpoints: int = option(1, ge=0)
    """Checkpoints that lie on paid storage at a time."""
    energy_per_kwh: float = option(0.0, ge=0)
    """Price of energy where you pay it apart. Zero: the energy is stated and not priced."""
    power_usage_effectiveness: float = option(1.0, ge=1)
    """Energy of the whole site for one of the devices; 1 counts the devices alone."""


@dataclass
class PlanOptions:
    """Stage `plan`: which hardware, how many, which reservation?"""

    reservations: List[str] = field(default_factory=lambda: ["7d", "30d"])
    """Reservation options that the decision compares."""
    target_probability: float = option(0.9, gt=0, le=1)
    """A reservation is recommended when the run is done within it with this probability."""
    num_draws: int = option(20_000, ge=1000)
    """Draws of the simulation."""
    seed: int = option(0, ge=0)
    """Seed of the simulation: the same records and options give the same plan."""
    device_counts: List[int] = field(default_factory=list)
    """Further numbers of devices to look at. Those that were not piloted are projected."""
    max_devices: int = option(1024, ge=1)
    """Scaling is looked at up to this many devices."""
    min_marginal_gain: float = option(0.5, gt=0, le=1)
    """Adding devices helps as long as a share more of them brings this part of that share in speed."""
    max_global_batch_size: Optional[int] = option(None, ge=1)
    """Largest batch that still trains well, rows; limits the scaling with a fixed batch per device. Null: not known."""
    network_bytes_per_second: Optional[float] = option(None, gt=0)
    """Network between nodes per device and direction, bytes per second, if you know it; marked given."""
    queue_hours: float = option(0.0, ge=0)
    """Hours of the reservation that pass before nodes are handed over."""
    setup_hours: float = option(0.0, ge=0)
    """Hours of the reservation that pass between the first node and the first start of the run."""
    repair_seconds: float = option(660.0, ge=0)
    """From a failure to the new start: noticing it, replacing the node. 11 min was the median interval between tries
    on 504 B200 (arXiv:2605.09370); what the start and the loading take is measured and comes on top."""
    repair_spread: float = option(1.0, ge=0)
    """Coefficient of variation of a restart; 1 is as wide as an exponential time."""
    drift_spread: float = option(0.03, ge=0)
    """How far the mean speed of the run may lie from that of the pilot for all reasons that the pilot could not see
    (other nodes, neighbours, heat), as a standard deviation. An assumption: replace it by what you have seen."""
    rerun_probability: float = option(0.0, ge=0, le=1)
    """How likely it is that a part of the run has to be done again (divergence, a wrong setting)."""
    price_per_gpu_hour: Optional[float] = option(None, ge=0)
    """Your price of one device for one hour, for the chosen hardware. Null: `prices.per_gpu_hour`, else no cost."""
    currency: str = "USD"
    """Currency of all prices; only printed."""


@dataclass
class ReplayOptions:
    """Stage `replay`: run a recorded stage again and compare."""

    run: Optional[str] = None
    """Folder of the run, `outputs/<name>/<stage>/<run id>`; relative to where pilotkit was started."""
    rtol: float = option(1e-4, ge=0)
    """Relative difference of losses and gradient norms that still counts as noise. 0: only equal is good enough."""
    time_rtol: float = option(0.25, ge=0)
    """Relative difference of step times that still counts as noise."""


@dataclass
class ReportOptions:
    """Stage `report`: the page."""

    open_browser: bool = False
    """Open the page when it is written."""
    language: str = option("en", choices=("en", "ja"))
    """Language of the page's own words. What stages found is quoted as they wrote it."""
    compare_with: Optional[str] = None
    """Name of another study of the same output folder: a page with both side by side is written, too."""


@dataclass
class PilotConfig:
    """Everything one run of one stage is told."""

    stage: str = option(choices=STAGES)
    """Which chapter to run, or `all`."""
    name: str = "default"
    """Name of the study: records are searched within one name."""
    output_dir: str = "outputs"
    """Where run directories go; relative to where pilotkit was started."""
    phase_timeout_seconds: float = option(86400.0, gt=0)
    """End a worker phase that runs longer than this, seconds; `pilot.timeout_seconds` is the pilot's own."""
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
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    sweep: SweepOptions = field(default_factory=SweepOptions)

    estimate: EstimateOptions = field(default_factory=EstimateOptions)
    lock: LockOptions = field(default_factory=LockOptions)
    prove: ProveOptions = field(default_factory=ProveOptions)
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    numerics: NumericsOptions = field(default_factory=NumericsOptions)
    pilot: PilotOptions = field(default_factory=PilotOptions)
    restore: RestoreOptions = field(default_factory=RestoreOptions)
    qualify: QualifyOptions = field(default_factory=QualifyOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    plan: PlanOptions = field(default_factory=PlanOptions)
    prices: PricesOptions = field(default_factory=PricesOptions)
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
