"""The options of the stages, one dataclass a stage: how a stage looks at the run, never what the run is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional  # noqa: UP035 - OmegaConf reads these names at run time on 3.10

from pilotkit.config.option import option


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
    checkpoint_every_steps: Optional[int] = option(None, ge=1)
    """Save after every so many steps, between two that are timed. Null: only when the job is told to end."""
    memory_headroom: float = option(0.10, ge=0, le=1)
    """Share of a device's memory that a recommended strategy leaves free (0 to 1)."""
    allow_idle_devices: bool = False
    """Run on fewer processes than there are devices; the idle ones are noted in the record."""
    script: Optional[str] = None
    """Your own training script, run under torchrun in place of the strategies; relative to where pilotkit was started.
    What `pilotkit.meter.StepMeter` or one of its callbacks measures in it becomes the record."""
    args: List[str] = field(default_factory=list)
    """Arguments of the script, handed on as they are."""
    tokens_per_step: Optional[int] = option(None, ge=1)
    """Tokens of one optimizer step over all ranks, for a script without a meter: its optimizer is watched, and the
    script stays as it is. Null: the script has a meter of its own."""
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
    script: Optional[str] = None
    """Your own training script in place of the intended run: never stopped, then killed (kill -9) and started again. It
    saves and resumes by itself, and leaves a `pilotkit.train.run_trace.RunTrace`; see docs/restore.md."""
    args: List[str] = field(default_factory=list)
    """Arguments of the script, handed on as they are."""
    not_compared: List[str] = field(default_factory=list)
    """Components of the script's state that are not expected back, for example `[random states]`: told, not judged."""
    allow_changes: List[str] = field(default_factory=list)
    """Options (or whole sections) in which the run may differ from the one that saved the checkpoint."""
    async_save: bool = False
    """Save while the next steps are trained: the checkpoint has to hold the moment of the call all the same."""
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
    """Architectures that will do (`sm_90`, `gfx942`; `sm_80+` and any newer). Empty: any that torch has kernels for."""
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
    """Time to bring model and data to the node, if you know it (given). Null: folders and hubs are timed."""
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
    """Of a source no more is read to time it (of a hub, 20 s at most); the rest is taken as equally fast. Bytes."""


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
    warmup_steps: Dict[str, int] = field(default_factory=dict)
    """Filled in from the record: how many warm-up steps each phase took. The clock decides that, and losses follow."""
    rows_of: Optional[str] = None
    """Filled in: the folder of the run that is run again, whose look at the rows says which are the longest."""


@dataclass
class ReportOptions:
    """Stage `report`: the page."""

    open_browser: bool = False
    """Open the page when it is written."""
    language: str = option("en", choices=("en", "ja"))
    """Language of the page's own words. What stages found is quoted as they wrote it."""
    compare_with: Optional[str] = None
    """Name of another study of the same output folder: a page with both side by side is written, too."""
    trackers: List[str] = field(default_factory=list)
    """Of tensorboard, mlflow, wandb: the figures in that tracker's own files, below `trackers/`. Nothing is sent."""
