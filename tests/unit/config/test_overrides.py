"""What is said about each override by itself, before anything is composed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.config.meaning import PILOT_STRATEGIES
from pilotkit.config.overrides import check_overrides, schema_keys, with_plus

GRAMMAR = "Hydra's syntax key=value; quote what the shell or Hydra would take apart, as in 'key=\"a, b\"'"
UNKNOWN = "an option of pilotkit; there is none of this name"
SEE_CFG = "see `pilotkit --cfg job` for every option"
WHOLE = "a whole number, written out in digits"

Row = tuple[str, str, str, str]


def told(*overrides: str, multirun: bool = False) -> list[Row]:
    problems, _ = check_overrides(overrides, multirun=multirun)
    return [(problem.key, str(problem.value), problem.allowed, problem.fix) for problem in problems]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        pytest.param("+stray=1", ("stray", "1", UNKNOWN, SEE_CFG), id="stray"),
        pytest.param("stray=1", ("stray", "1", UNKNOWN, SEE_CFG), id="stray without a plus"),
        pytest.param("train.seqlen=5", ("train.seqlen", "5", UNKNOWN, "did you mean train.seq_len?"), id="misspelt"),
        pytest.param("seq_len=5", ("seq_len", "5", UNKNOWN, "did you mean train.seq_len?"), id="without its section"),
        pytest.param("hardwear=cpu", ("hardwear", "cpu", UNKNOWN, "did you mean hardware?"), id="misspelt group"),
        pytest.param(
            "+train.seq_len=5",
            (
                "train.seq_len",
                "+train.seq_len=5",
                "train.seq_len=..., without the plus sign: it exists",
                "type train.seq_len=...",
            ),
            id="needless plus",
        ),
        pytest.param(
            "+hardware=cpu",
            ("hardware", "cpu", "hardware=<option>, without the plus sign", "type hardware=..."),
            id="needless plus at a group",
        ),
        pytest.param(
            "~train.seq_len",
            ("train.seq_len", "~train.seq_len", "an override; options cannot be removed", "give train.seq_len a value"),
            id="removed",
        ),
        pytest.param(
            "train=3",
            ("train", "3", "its options one by one: this is a section", "for example train.<option>=..."),
            id="a whole section",
        ),
        pytest.param(
            "hardware=h1000",
            ("hardware", "h1000", "one of a100, cpu, h100, h200, mi250, mi300x", "for example hardware=h100"),
            id="unknown option, one is near",
        ),
        pytest.param(
            "hardware=tpu",
            ("hardware", "tpu", "one of a100, cpu, h100, h200, mi250, mi300x", "for example hardware=a100"),
            id="unknown option, none is near",
        ),
        pytest.param(
            "stage=prov",
            (
                "stage",
                "prov",
                "one of all, lock, estimate, prove, measure, numerics, pilot, restore, qualify, budget, plan, report, "
                "sweep_status, sweep_collect, checkpoint_verify, replay",
                "for example stage=all",
            ),
            id="unknown stage",
        ),
        pytest.param(
            "train.seq_len=abc", ("train.seq_len", "abc", WHOLE, "for example train.seq_len=1"), id="text for a number"
        ),
        pytest.param(
            "train.seq_len=128.0", ("train.seq_len", "128.0", WHOLE, "write train.seq_len=128"), id="float for whole"
        ),
        pytest.param(
            "train.total_tokens=1e9",
            ("train.total_tokens", "1000000000.0", WHOLE, "write train.total_tokens=1000000000"),
            id="exponent for whole",
        ),
        pytest.param(
            "train.seq_len=[1,2]",
            ("train.seq_len", "[1, 2]", WHOLE, "for example train.seq_len=1"),
            id="list for a number",
        ),
        pytest.param(
            "optimizer.lr=fast", ("optimizer.lr", "fast", "a number", "for example optimizer.lr=0.5"), id="text for lr"
        ),
        pytest.param(
            "train.compile=maybe",
            ("train.compile", "maybe", "true or false", "for example train.compile=true"),
            id="text for a switch",
        ),
        pytest.param(
            "pilot.strategies=ddp",
            ("pilot.strategies", "ddp", "a list", "for example pilot.strategies=[ddp]"),
            id="one word for a list",
        ),
        pytest.param(
            "optimizer.betas=[0.9,abc]",
            ("optimizer.betas", "[0.9, 'abc']", "a list of numbers", "for example optimizer.betas=[0.5]"),
            id="text in a list of numbers",
        ),
        pytest.param(
            "train.seq_len=null",
            ("train.seq_len", "null", "a value: this option is never empty", "give train.seq_len a value"),
            id="null",
        ),
        pytest.param(
            "train.seed=-1",
            ("train.seed", "-1", "a number >= 0", "give train.seed a value in that range"),
            id="below",
        ),
        pytest.param(
            "scheduler.min_lr_ratio=1.5",
            (
                "scheduler.min_lr_ratio",
                "1.5",
                "a number >= 0 and <= 1",
                "give scheduler.min_lr_ratio a value in that range",
            ),
            id="above",
        ),
        pytest.param(
            "optimizer.lr=nan",
            ("optimizer.lr", "nan", "a number > 0", "give optimizer.lr a value in that range"),
            id="not a number",
        ),
        pytest.param(
            "optimizer.implementation=fast",
            (
                "optimizer.implementation",
                "fast",
                "one of foreach, fused, for_loop, compiled",
                "for example optimizer.implementation=foreach",
            ),
            id="closed choice",
        ),
        pytest.param(
            "+hardware.peak_flops.fp32=abc",
            ("hardware.peak_flops.fp32", "abc", "a number", "for example hardware.peak_flops.fp32=0.5"),
            id="text in a table of numbers",
        ),
        pytest.param(
            "train.seq_len", ("train.seq_len", "", GRAMMAR, "Hydra says: missing EQUAL at '<EOF>'"), id="no value"
        ),
        pytest.param(
            "name=größe",
            ("name", "größe", GRAMMAR, "Hydra says: token recognition error at: 'ö'"),
            id="not quoted",
        ),
        pytest.param(
            "train.seq_len=64,128",
            (
                "train.seq_len",
                "64,128",
                "one value; several are a sweep",
                "add -m to run each of them, or write train.seq_len=[64,128] where a list is meant",
            ),
            id="several values in a single run",
        ),
    ],
)
def test_one_mistake(override: str, expected: Row) -> None:
    assert told(override) == [expected]


@pytest.mark.parametrize(
    "override",
    [
        "train.seq_len=256",
        "optimizer.lr=1e-3",
        "optimizer.lr=1",
        "train.global_batch_size=null",
        "experiment=null",
        "experiment=ddp_or_fsdp",
        "hardware=h100",
        "model.kwargs={width: 64}",
        "model.kwargs.width=64",
        "+model.kwargs.anything.below=[1,2]",
        "+hardware.peak_flops.fp32=1e12",
        "pilot.strategies=[ddp]",
        "name='with words'",
        "train.seq_len=${measure.num_measured_steps}",
        "hydra.job.chdir=true",
        "hydra/launcher=submitit_local",
        "+hydra.job.env_set.X=1",
        "model.factory=???",
    ],
)
def test_nothing_is_said_about_what_is_right(override: str) -> None:
    assert check_overrides([override], multirun=False) == ([], [override])


def test_every_mistake_of_one_command_in_its_order() -> None:
    overrides = ["hardware=h1000", "train.seq_len=64", "+stray=1", "train.compile=maybe"]
    problems, sound = check_overrides(overrides, multirun=False)
    assert [problem.key for problem in problems] == ["hardware", "stray", "train.compile"]
    assert sound == ["train.seq_len=64"]


@pytest.mark.parametrize(
    ("override", "wrong", "first"),
    [
        ("train.seq_len=64,0,x,128", ["0", "x"], None),
        ("train.seq_len=64,128", [], "train.seq_len=64"),
        ("train.seq_len=choice(64,128)", [], "train.seq_len=64"),
        ("train.seq_len=range(0,3)", ["0"], None),
        ("hardware=cpu,h100,h1", ["h1"], None),
        ("hardware=h100,cpu", [], "hardware=h100"),
        ("optimizer.lr=interval(0.1,1)", [], "optimizer.lr=interval(0.1,1)"),
    ],
    ids=["two bad", "comma", "choice", "range", "group", "good group", "interval"],
)
def test_every_value_of_a_sweep(override: str, wrong: list[str], first: str | None) -> None:
    problems, sound = check_overrides([override], multirun=True)
    assert [str(problem.value) for problem in problems] == wrong
    assert sound == ([first] if first else [])


def test_options_of_the_users_own_folder(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("name: mine\n", encoding="utf-8")
    assert told("hardware=mine") != []
    assert check_overrides(["hardware=mine"], multirun=False, extra_dirs=[tmp_path]) == ([], ["hardware=mine"])


def test_keys_are_those_of_the_schema() -> None:
    keys = {key.name: key for key in schema_keys()}
    assert {"stage", "train", "train.seq_len", "model.kwargs", "plan.currency"} <= set(keys)
    free = {name for name, key in keys.items() if key.free}
    assert {"model.kwargs", "data.kwargs", "hardware.peak_flops", "pilot.strategies", "optimizer.betas"} <= free
    assert not {"train", "train.seq_len", "model", "stage"} & free
    assert PILOT_STRATEGIES == ("ddp", "fsdp", "hsdp")


@pytest.mark.parametrize(
    ("typed", "spelt"),
    [
        ("model.kwargs.width=64", "++model.kwargs.width=64"),
        ("model.kwargs={width: 64}", "++model.kwargs={width: 64}"),
        ("+model.kwargs.width=64", "+model.kwargs.width=64"),
        ("++data.kwargs={a: 1}", "++data.kwargs={a: 1}"),
        ("model.kwargs.width=64,128", "++model.kwargs.width=64,128"),
        ("hardware.peak_flops.bf16=1e12", "++hardware.peak_flops.bf16=1e12"),
        ("train.seq_len=128", "train.seq_len=128"),
        ("pilot.strategies=[ddp]", "pilot.strategies=[ddp]"),
        ("hardware=cpu", "hardware=cpu"),
        ("a==[", "a==["),
    ],
)
def test_keys_of_the_users_own_get_hydras_plus_signs(typed: str, spelt: str) -> None:
    assert with_plus([typed]) == [spelt]
    assert typed == "a==[" or check_overrides([typed], multirun=True)[0] == []
