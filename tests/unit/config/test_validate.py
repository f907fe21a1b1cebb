"""What is wrong although each override alone is right; told together, each once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError

Configure = Callable[..., PilotConfig]
FOLDER_NAME = "letters, digits, dot, dash and underscore, starting with a letter or digit: it becomes a folder"


def told(configure: Configure, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        configure(*overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        pytest.param(
            ["name='../x'"],
            f"name='../x'\n    allowed: {FOLDER_NAME}\n    to mend: for example name=my-study",
            id="name",
        ),
        pytest.param(
            ["precision=tf32"],
            "precision=tf32\n    allowed: fp32, bf16, bf16_mixed, fp16_mixed on hardware=cpu\n"
            "    to mend: choose another precision, or add it to hardware.precisions if this cpu can run it",
            id="precision of other hardware",
        ),
        pytest.param(
            ["hardware=a100", "precision=fp8"],
            "precision=fp8\n    allowed: fp32, tf32, bf16, bf16_mixed, fp16_mixed on hardware=a100\n"
            "    to mend: choose another precision, or add it to hardware.precisions if this a100 can run it; "
            "stage=numerics judges it anywhere with precision.float8_emulate=true",
            id="fp8",
        ),
        pytest.param(
            ["precision=fp8", "precision.float8_emulate=true", "stage=measure"],
            "precision.float8_emulate=True\n    allowed: false in every stage but numerics: emulated products are "
            "slower and larger than real ones\n    to mend: add stage=numerics, or drop it",
            id="fp8 emulated where it counts",
        ),
        pytest.param(
            ["train.seq_len=2048"],
            "train.seq_len=2048\n    allowed: at most model.kwargs.max_seq_len = 1024\n"
            "    to mend: shorten train.seq_len, or set model.kwargs.max_seq_len=2048",
            id="longer than the model takes",
        ),
        pytest.param(  # case R94: what is not there is refused, and nothing else taken for it
            ["optimizer.name=lion"],
            "optimizer.name=lion\n    allowed: one of adamw, adam, sgd, adamw8bit\n"
            "    to mend: for example optimizer.name=adamw",
            id="an optimizer that is not there",
        ),
        pytest.param(
            ["qualify.archs=[sm90,gfx942+]"],
            "qualify.archs=['sm90', 'gfx942+']\n"
            "    allowed: architectures as torch names them: sm_90, gfx942, or sm_80+ for that one and any newer\n"
            "    to mend: for example qualify.archs=[sm_80+]",
            id="architectures",
        ),
        pytest.param(
            [
                "model=hf",
                "model.name=org/net",
                "model.revision=abc",
                "data=hf",
                "data.name=org/rows",
                "data.kwargs.tokenizer=org/net",
                "data.kwargs.tokenizer_revision=main",
            ],
            "data.kwargs.tokenizer_revision=main\n"
            "    allowed: the revision of the model, whose repository this is: abc\n"
            "    to mend: leave it out, and it is the model's, or give both the same commit",
            id="weights and tokenizer of two revisions",
        ),
        pytest.param(
            ["optimizer.betas=[0.9,1.0]"],
            "optimizer.betas=[0.9, 1.0]\n    allowed: two numbers in [0, 1)\n"
            "    to mend: for example optimizer.betas=[0.9,0.95]",
            id="betas",
        ),
        pytest.param(
            ["optimizer=sgd", "optimizer.amsgrad=true"],
            "optimizer.amsgrad=True\n    allowed: false with sgd, which has no second moment\n"
            "    to mend: drop it, or take optimizer=adamw",
            id="a largest second moment without one",
        ),
        pytest.param(
            ["optimizer=adamw8bit", "optimizer.implementation=fused", "stage=measure"],
            "optimizer.implementation=fused\n    allowed: compiled with adamw8bit\n"
            "    to mend: choose the optimizer by optimizer=..., which brings its implementation along",
            id="an implementation of another optimizer",
        ),
        pytest.param(
            ["optimizer=adamw8bit", "parallelism=fsdp", "stage=measure"],
            "parallelism.strategy=fsdp\n    allowed: single or ddp with optimizer=adamw8bit: its state could not be "
            "put together at another world size\n"
            "    to mend: take parallelism=ddp, or optimizer=adamw, whose state is sharded",
            id="8 bits over shards",
        ),
        pytest.param(
            ["optimizer=adamw8bit", "stage=pilot", "hardware.device_count=2"],
            "pilot.strategies=['ddp', 'fsdp']\n    allowed: ddp with optimizer=adamw8bit\n"
            "    to mend: add pilot.strategies=[ddp]",
            id="a pilot of 8 bits over shards",
        ),
        pytest.param(
            ["pilot.strategies=[ddp,ddp]"],
            "pilot.strategies=['ddp', 'ddp']\n    allowed: a list of different names out of ddp, fsdp, hsdp\n"
            "    to mend: for example pilot.strategies=[ddp,fsdp]",
            id="a strategy twice",
        ),
        pytest.param(
            ["plan.reservations=[8d]"],
            "plan.reservations=['8d']\n    allowed: a list of reservation options: 30d, 7d\n"
            "    to mend: for example plan.reservations=[7d,30d]",
            id="unknown reservation",
        ),
        pytest.param(
            ["data.pin_memory=true"],
            "data.pin_memory=True\n"
            "    allowed: false on hardware.device_type=cpu: page-locked memory is for copies to an accelerator\n"
            "    to mend: drop data.pin_memory=true, or choose another hardware",
            id="pinned memory without an accelerator",
        ),
        pytest.param(
            ["optimizer.lr=inf"],
            "optimizer.lr=inf\n    allowed: a finite number\n"
            "    to mend: give optimizer.lr a number that can be written out",
            id="infinite",
        ),
        pytest.param(
            ["+model.kwargs.deep={list: [1, nan]}"],
            "model.kwargs.deep.list=nan\n    allowed: a finite number\n"
            "    to mend: give model.kwargs.deep.list a number that can be written out",
            id="not a number, deep in free arguments",
        ),
        pytest.param(
            ["+model.kwargs.map={1: a, b: 2}"],
            "model.kwargs.map={1: 'a', 'b': 2}\n    allowed: names that are text\n"
            "    to mend: quote the name 1 in model.kwargs.map",
            id="a number as a name",
        ),
        pytest.param(
            ['hardware.device_name_pattern="["'],
            "hardware.device_name_pattern=[\n"
            "    allowed: a regular expression (unterminated character set at position 0)\n"
            "    to mend: mend it, or drop hardware.device_name_pattern",
            id="broken pattern",
        ),
        pytest.param(
            ["data=text_folder"],
            "data.path=null\n    allowed: a folder or file: data=text_folder reads its rows from there\n"
            "    to mend: add data.path=... to the command",
            id="no folder of text",
        ),
        pytest.param(
            ["model=custom"],
            "model.factory=???\n    allowed: a value: this option has no default\n"
            "    to mend: add model.factory=... to the command",
            id="missing",
        ),
        pytest.param(
            ["train.seq_len=${nope}"],
            "train.seq_len=${nope}\n    allowed: something that resolves (Interpolation key 'nope' not found)\n"
            "    to mend: give train.seq_len a value",
            id="an interpolation that leads nowhere",
        ),
        pytest.param(
            ["train.seq_len=${name}"],
            "train.seq_len=${name}\n    allowed: something that resolves (While dereferencing interpolation '${name}': "
            "Value 'default' of type 'str' could not be converted to Integer)\n    to mend: give train.seq_len a value",
            id="an interpolation of another type",
        ),
    ],
)
def test_one_mistake(configure: Configure, overrides: list[str], message: str) -> None:
    assert told(configure, *overrides) == f"1 problem in the configuration; nothing was started.\n1. {message}"


def test_missing_values_and_broken_interpolations_together(configure: Configure) -> None:
    text = told(configure, "model=custom", "data=custom", "train.seed=${nope}")
    heads = [line for line in text.splitlines() if line[0].isdigit()]
    assert heads == [
        "3 problems in the configuration; nothing was started.",
        "1. data.factory=???",
        "2. model.factory=???",
        "3. train.seed=${nope}",
    ]


def test_ranges_and_meaning_together_and_nothing_twice(configure: Configure) -> None:
    text = told(
        configure, "train.micro_batch_size=0", "train.global_batch_size=7", "measure.max_spread=-1", "precision=tf32"
    )
    heads = [line for line in text.splitlines() if line[0].isdigit()]
    # The global batch rests on the micro-batch, which is wrong: nothing can be said about it yet.
    assert heads == [
        "3 problems in the configuration; nothing was started.",
        "1. train.micro_batch_size=0",
        "2. measure.max_spread=-1.0",
        "3. precision=tf32",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        ["hardware=h100", "precision=tf32", "data.pin_memory=true"],
        ["data=text_folder", "data.path=corpus"],
        ["train.seq_len=2048", "model.kwargs.max_seq_len=2048"],
        ["hardware=mi300x", "model=llama3_8b", "parallelism=fsdp", "precision=bf16_mixed"],
        ["parallelism=single", "plan.reservations=[30d]"],
    ],
    ids=" ".join,
)
def test_what_is_right_passes(configure: Configure, overrides: list[str]) -> None:
    configure(*overrides)
