"""Everything one run of one stage is told: the root of the configuration, over the sections of run and stages.

Nothing here is computed: arithmetic over several fields is in `pilotkit.config.batch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from pilotkit.config.estimate_options import EstimateOptions
from pilotkit.config.option import option
from pilotkit.config.run_sections import (
    ActivationCheckpointingConfig,
    ClusterConfig,
    DataConfig,
    FailuresConfig,
    HardwareConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelismConfig,
    PrecisionConfig,
    ReservationConfig,
    SchedulerConfig,
    TrainConfig,
)
from pilotkit.config.stage_options import (
    BudgetOptions,
    LockOptions,
    MeasureOptions,
    NumericsOptions,
    PilotOptions,
    PlanOptions,
    PricesOptions,
    ProveOptions,
    QualifyOptions,
    ReplayOptions,
    ReportOptions,
    RestoreOptions,
    SweepOptions,
)

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
