"""The sections that a user composes from groups: one dataclass a section, a docstring and a unit a field.

Values that a user chooses between live in `conf/`; defaults of single options live here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from omegaconf import MISSING

from pilotkit.config.option import option

STRATEGIES = ("single", "ddp", "fsdp", "hsdp")
DTYPES = ("float32", "bfloat16", "float16")


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
    efficiencies: Dict[str, float] = field(default_factory=dict)
    """Share of these peaks that a whole step of a large model reaches, before anything was measured: matmul, attention,
    bandwidth, link (0 to 1). What is left out has the starting value of stage `estimate`."""
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
    sync_each_micro_batch: bool = False
    """With gradient accumulation: reduce gradients in every micro-batch, not in the last one only. FSDP and HSDP then
    keep a rank's share of them in between where they would keep whole ones: less memory for more traffic."""
    find_unused_parameters: bool = False
    """Allow parameters that get no gradient in a step. Costs DDP a graph walk a step, FSDP and HSDP an exchange."""


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
    float8: str = option("none", choices=("none", "tensorwise", "rowwise"))
    """Matrix products of the blocks' linear layers in float8 by torchao: its recipe. What is left runs in
    `compute_dtype`. Needs the `fp8` extra and a device that has them."""
    float8_emulate: bool = False
    """Stage `numerics` only: cast to float8 and multiply in float32, on any device. Judges numbers, not speed."""


@dataclass
class ActivationCheckpointingConfig:
    """Which activations are recomputed in backward instead of kept."""

    mode: str = option(choices=("none", "full", "selective"))
    """`none`, `full` (every block) or `selective` (keep the results of matrix products and attention)."""
    keep_every: int = option(1, ge=1)
    """`selective`: keep the result of every n-th matrix product of a block from the first on; 2 is what torchtitan's
    "selective op" keeps: less memory for more recomputation."""


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

    name: str = option(choices=("adamw", "adam", "sgd", "adamw8bit"))
    """Which torch optimizer; `adamw8bit` is torchao's, with moments of 8 bits, and needs the `fp8` extra."""
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
    amsgrad: bool = False
    """Adam and AdamW: divide by the largest second moment so far, which is a third tensor of state a parameter."""
    implementation: str = option("foreach", choices=("foreach", "fused", "for_loop", "compiled"))
    """Which of torch's implementations. They differ in speed and in temporary memory. `compiled`: adamw8bit's only."""


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
    compile_scope: str = option("model", choices=("model", "blocks"))
    """What `train.compile` compiles: the model as a whole, its loss included, or each of the repeated blocks by itself
    (regional compilation, as torchtitan and torchtune do: once for all blocks; head and loss run uncompiled)."""


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
    rdzv_endpoint: Optional[str] = None
    """Where the nodes of a pilot meet without Slurm, HOST:PORT with HOST the first node; the same on every node."""
    node_rank: int = option(0, ge=0)
    """Which of these nodes this one is; 0 is the host of the endpoint."""
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
