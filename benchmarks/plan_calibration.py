"""Are the plan's probabilities right? Simulated pilots with a planted truth, planned, and then really run.

    python benchmarks/plan_calibration.py [--pilots 200] [--seed 0]

Each pilot has three hardware options of known speed, drift, failures, saves, restarts and prices. The plan sees what a
pilot would: a few noisy steps of one day, one save, one restart. Reality is followed interval by interval with a
speed of its own every day, by code that shares nothing with the plan's simulation. Reported: the Brier score against
that of always stating the mean, a reliability table, in which fifth of its own distribution each run ended, how often
the recommended option is the one that is truly best, and what the other recommendations cost. A pilot is clear when no
option would be held by another reservation if it were two standard deviations of the drift faster or slower than it
truly is: only there can a pilot of one day tell. Exits 1 when the Brier score is no better than the mean's, a bin or a
fifth lies off by more than chance, or the share of best recommendations is under 95 %, among all pilots or among the
clear ones.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass

import numpy as np
from machine import describe

from pilotkit.decide.cost import Prices
from pilotkit.decide.failures import FailureModel
from pilotkit.decide.finish import Work, simulate
from pilotkit.decide.ledger import Given, build_ledger
from pilotkit.decide.planning import Plan, Question, make_plan
from pilotkit.decide.study import Candidate
from pilotkit.decide.workload import Assumptions
from pilotkit.records.record import Record

DAY, HOUR = 86400.0, 3600.0
RESERVATIONS = {"7d": 7.0, "30d": 30.0}
TARGET, DRIFT, NUM_STEPS = 0.9, 0.03, 20_000
FLEET = FailureModel("typical", 5e-3, 2e-3, 2e-2, small_job_factor=3.0)
MIN_BEST = 0.95


@dataclass(frozen=True)
class Truth:
    """What is so, and what nobody is told. Seconds; `rate` is interruptions a second of the whole run."""

    hardware: str
    num_nodes: int
    step: float
    spread: float
    save: float
    restart: float
    rate: float
    price: float
    steps_between_saves: int


def plant(rng: np.random.Generator) -> list[Truth]:
    """Three options of one run: 3 to 40 days on A100, faster and dearer on the others."""
    num_nodes = int(2 ** rng.integers(0, 6))
    days = float(np.exp(rng.uniform(math.log(3), math.log(40))))
    # One fleet for all three; its rate is anywhere in the band that the plan assumes.
    rate = FLEET.per_second(num_nodes) * float(np.exp(FLEET.sigma * rng.standard_normal()))
    interval = float(rng.uniform(0.5, 3.0)) * HOUR
    options = []
    for hardware, speed, price in (
        ("a100", 1.0, 1.5),
        ("h100", float(rng.uniform(1.6, 3.2)), 3.0),
        ("h200", float(rng.uniform(1.7, 3.6)), 3.6),
    ):
        step = days * DAY / NUM_STEPS / speed
        options.append(
            Truth(
                hardware,
                num_nodes,
                step,
                spread=float(rng.uniform(0.01, 0.08)),
                save=float(rng.uniform(5, 90)),
                restart=float(rng.uniform(60, 300)),
                rate=rate,
                price=price * float(rng.uniform(0.8, 1.2)),
                steps_between_saves=max(round(interval / step), 1),
            )
        )
    return options


def observe(truth: Truth, rng: np.random.Generator) -> Candidate:
    """The records of one pilot: 20 steps on a day that has a speed of its own."""
    today = float(np.exp(DRIFT * rng.standard_normal()))
    steps = truth.step * today * (1 + truth.spread * rng.standard_normal(20))
    median = float(np.median(steps))
    world = 8 * truth.num_nodes
    config = {
        "hardware": {"name": truth.hardware, "device_type": "cuda", "device_count": 8, "memory_bytes": 80e9},
        "parallelism": {"strategy": "fsdp", "num_nodes": truth.num_nodes},
        "precision": {"name": "bf16_mixed"},
        "train": {
            "micro_batch_size": 1, "seq_len": 1, "total_tokens": NUM_STEPS * world, "global_batch_size": None,
            "checkpoint_every_steps": truth.steps_between_saves,
        },
    }  # fmt: skip

    def record(stage: str, metrics: dict[str, float], **details: object) -> Record:
        return Record(
            f"{stage}-{truth.hardware}", stage, "ok", "2026-03-01", metrics=metrics, details=details, config=config
        )

    piloted = {"status": "ok", "steps": steps.tolist()}
    records = {
        "measure": record("measure", {"step_seconds": median}),
        "pilot": record("pilot", {"world_size": world, "fsdp_step_seconds": median}, strategies={"fsdp": piloted}),
        "restore": record(
            "restore",
            {"world_size": world, "checkpoint_save_seconds": truth.save, "restart_seconds": truth.restart},
        ),
        "qualify": record("qualify", {}),
    }
    ledger = build_ledger(
        records, num_steps=NUM_STEPS, num_evals=0, num_eval_batches=0,
        num_checkpoints=math.ceil(NUM_STEPS / truth.steps_between_saves), strategy="fsdp", world_size=world,
        given=Given(download_seconds=0.0, copy_out_seconds=0.0),
    )  # fmt: skip
    metrics = {"tokens_per_step": float(world), "checkpoint_every_steps": float(truth.steps_between_saves)}
    records["budget"] = record("budget", metrics, ledger=ledger.to_details())
    return Candidate(config, records)


def live(truth: Truth, rng: np.random.Generator, *, assumptions: Assumptions) -> float:
    """Run it, interval by interval, each day at its own speed; gives up after 60 days."""
    clock, done = 0.0, 0
    next_failure = float(rng.exponential(1 / truth.rate))
    speeds = np.exp(DRIFT * rng.standard_normal(61))
    while done < NUM_STEPS and clock < 60 * DAY:
        count = min(truth.steps_between_saves, NUM_STEPS - done)
        noise = truth.spread * rng.standard_normal() / math.sqrt(count)
        spent = count * truth.step * speeds[int(clock // DAY)] * (1 + noise) + truth.save
        if clock + spent <= next_failure:
            clock, done = clock + spent, done + count
            continue
        clock = next_failure + truth.restart + float(rng.exponential(assumptions.repair_seconds))
        next_failure = clock + float(rng.exponential(1 / truth.rate))
    return clock


def held_by(truth: Truth, *, assumptions: Assumptions, factor: float = 1.0) -> str | None:
    """The shortest reservation that truly reaches the target with steps that take `factor` of their time, or None."""
    step = truth.step * factor
    finish = simulate(
        Work(
            NUM_STEPS * step, truth.steps_between_saves * step, truth.save,
            truth.restart + assumptions.repair_seconds, truth.rate, speed_sigma=0.01, restart_spread=1.0,
        )
    )  # fmt: skip
    return next((name for name, days in RESERVATIONS.items() if finish.probability(days * DAY) >= TARGET), None)


def is_clear(options: list[Truth], *, assumptions: Assumptions) -> bool:
    """Whether a pilot can tell: no option changes its reservation within two standard deviations of the drift."""
    factors = (math.exp(-2 * DRIFT), math.exp(2 * DRIFT))
    return all(len({held_by(t, assumptions=assumptions, factor=factor) for factor in factors}) == 1 for t in options)


def true_costs(options: list[Truth], *, assumptions: Assumptions) -> dict[str, float]:
    """What each option that truly reaches the target costs, by hardware and reservation as `picked` words them."""
    held = {truth: held_by(truth, assumptions=assumptions) for truth in options}
    return {
        f"{truth.hardware} for {name}": 8 * truth.num_nodes * RESERVATIONS[name] * 24 * truth.price
        for truth, name in held.items()
        if name is not None
    }


@dataclass(frozen=True)
class Pick:
    """What was recommended, beside what each option that truly holds the run costs."""

    name: str
    costs: dict[str, float]
    is_clear: bool

    @property
    def is_best(self) -> bool:
        """The cheapest of those that hold it, or nothing where none does."""
        return self.name == min(self.costs, key=lambda name: self.costs[name], default="none")

    @property
    def regret(self) -> float | None:
        """How much more the recommended costs than the best, as a share; None when it does not hold the run.

        A longer reservation than needed holds it, too.
        """
        hardware, _, reservation = self.name.partition(" for ")
        holds = {name.partition(" for ")[0]: name.partition(" for ")[2] for name in self.costs}
        if hardware not in holds or RESERVATIONS[reservation] < RESERVATIONS[holds[hardware]]:
            return None
        longer = RESERVATIONS[reservation] / RESERVATIONS[holds[hardware]]
        return self.costs[f"{hardware} for {holds[hardware]}"] * longer / min(self.costs.values()) - 1


def picked(plan: Plan) -> str:
    """What the plan recommends, in the same words."""
    best = plan.choice.recommended
    return f"{best.hardware} for {best.holding.name}" if best is not None and best.holding is not None else "none"


def main() -> int:
    """Plan every pilot, live every option once, and print the three figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilots", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe("numpy"))
    rng = np.random.default_rng(options.seed)
    assumptions = Assumptions(FLEET, target_probability=TARGET, drift_spread=DRIFT, num_draws=10_000)
    stated, happened, ended, picks = [], [], [], []
    started = time.perf_counter()
    for _ in range(options.pilots):
        truths = plant(rng)
        prices = Prices(per_gpu_hour={truth.hardware: truth.price for truth in truths})
        candidates = [observe(truth, rng) for truth in truths]
        question = Question(assumptions=assumptions, reservations=RESERVATIONS, prices=prices, max_devices=8)
        plan = make_plan(candidates, question=question)
        by_hardware = {item.option.hardware: item.option for item in plan.choice.judged}
        for truth in truths:
            seconds = live(truth, rng, assumptions=assumptions)
            if truth is truths[0] and plan.chosen.finish is not None:
                ended.append(plan.chosen.finish.probability(seconds))
            for outcome in by_hardware[truth.hardware].outcomes:
                stated.append(outcome.probability)
                happened.append(seconds <= outcome.days * DAY)
        costs = true_costs(truths, assumptions=assumptions)
        picks.append(Pick(picked(plan), costs, is_clear(truths, assumptions=assumptions)))
    print(f"{options.pilots} pilots, {len(stated)} probabilities, {time.perf_counter() - started:.0f} s")
    off = report(np.array(stated), np.array(happened, dtype=float))
    off |= report_fifths(np.array(ended))
    off |= report_picks(picks)
    return int(off)


def report_picks(picks: list[Pick]) -> bool:
    """Print how often the best was recommended and what else it was; True when it is too seldom for chance."""
    clear = [pick for pick in picks if pick.is_clear]
    off = False
    for name, some in (("all pilots", picks), ("clear pilots", clear)):
        share = sum(pick.is_best for pick in some) / len(some)
        off |= share < MIN_BEST
        print(f"recommended is truly best: {100 * share:.1f} % of {len(some)} {name}")
    wrong = [pick for pick in picks if not pick.is_best]
    dearer = [pick.regret for pick in wrong if pick.regret is not None]
    short = sum(pick.regret is None and pick.name != "none" for pick in wrong)
    regrets = [pick.regret or 0.0 for pick in picks]
    print(
        f"the other {len(wrong)}: {len(dearer)} hold the run and cost more, {short} truly miss the target, "
        f"{len(wrong) - len(dearer) - short} recommend nothing; over all pilots the recommended costs "
        f"{100 * float(np.mean(regrets)):.1f} % more than the best that one could have known"
    )
    return off


def report(stated: np.ndarray, happened: np.ndarray) -> bool:
    """Print the Brier score and the reliability table; True when either is worse than chance allows."""
    score = float(np.mean((stated - happened) ** 2))
    mean = float(happened.mean() * (1 - happened.mean()))
    print(f"Brier score {score:.4f}, always stating the mean {mean:.4f}, skill {1 - score / mean:.2f}")
    print("stated          n   mean stated   happened   off by (standard errors)")
    off = score >= mean
    for low, high in ((0, 0.05), (0.05, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95), (0.95, 1.0001)):
        inside = (stated >= low) & (stated < high)
        count = int(inside.sum())
        if not count:
            continue
        said, was = float(stated[inside].mean()), float(happened[inside].mean())
        error = math.sqrt(max(float((stated[inside] * (1 - stated[inside])).mean()), 0.25 / count) / count)
        print(f"{low:.2f} to {min(high, 1):.2f}{count:7}{said:14.3f}{was:11.3f}{(was - said) / error:11.1f}")
        off |= abs(was - said) / error > 3
    return off


def report_fifths(ended: np.ndarray) -> bool:
    """Print how many runs ended in each fifth of what was foretold; True when one holds too many or too few."""
    counts = np.histogram(ended, bins=5, range=(0.0, 1.0))[0]
    error = math.sqrt(ended.size * 0.2 * 0.8)
    print(
        f"ended in each fifth of the stated distribution: {counts.tolist()} ({ended.size / 5:.0f} +- {error:.0f} each)"
    )
    return bool(np.any(np.abs(counts - ended.size / 5) > 3 * error))


if __name__ == "__main__":
    sys.exit(main())
