"""Secrets among the options are refused before anything is written, and shown by nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotkit.config.load import load
from pilotkit.config.overrides import check_overrides
from pilotkit.config.secret_values import HIDDEN, find_secrets
from pilotkit.errors import ConfigError

PLANTED = "planted" + 30 * "x"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.kwargs", {"token": PLANTED}),
        ("model.kwargs", {"hub": {"hf_token": PLANTED}}),
        ("data.kwargs", {"storage_options": {"secret": PLANTED}}),
        ("data.kwargs.password", PLANTED),
        ("data.path", f"https://someone:{PLANTED}@example.org/rows"),
        ("data.path", f"https://example.org/rows?X-Amz-Signature={PLANTED}"),
        ("pilot.args", ["--token", PLANTED]),
        ("pilot.args", [f"--api-key={PLANTED}"]),
        ("cluster.setup", [f"export HF_TOKEN={PLANTED}"]),
        ("name", f"hf_{30 * 'x'}"),
    ],
)
def test_secrets_are_found_and_not_shown(key: str, value: Any) -> None:
    (problem,) = find_secrets(key, value)
    assert problem.key.startswith(key)
    assert problem.value == HIDDEN
    assert "planted" not in str(problem)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.kwargs", {"pad_token": "<pad>", "eos_token": "</s>", "token": True, "hf_token": None}),
        ("train.total_tokens", 100),
        ("data.path", "https://example.org:8080/rows@2?page=2"),
        ("data.path", "s3://bucket/rows"),
        ("pilot.args", ["--tokenizer", "gpt2", "--token", "--seed=3", "--max-tokens=7"]),
        ("cluster.setup", ["export TOKENIZERS_PARALLELISM=false", "export HF_TOKEN=$MY_TOKEN", "export MAX_TOKENS=7"]),
        ("model.tokenizer", "a/b"),
    ],
)
def test_what_is_no_secret_passes(key: str, value: Any) -> None:
    assert find_secrets(key, value) == []


@pytest.mark.parametrize(
    "override", ["+model.kwargs.token={}", "hf_token={}", "model.kwargs={{token:{}}}", "+a.token=({}"]
)
def test_a_typed_secret_is_refused_before_its_value_is_shown(override: str) -> None:
    problems, sound = check_overrides([override.format(PLANTED)], multirun=True)
    assert [problem.value for problem in problems] == [HIDDEN]
    assert sound == []


def test_a_secret_of_a_file_or_of_the_environment_is_refused(compose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", PLANTED)
    with pytest.raises(ConfigError) as raised:
        load(compose("+model.kwargs.token=${oc.env:PLANTED}"), launch_dir=Path.cwd())
    assert "model.kwargs.token=***" in str(raised.value)
    assert "planted" not in str(raised.value)


def test_a_refused_sweep_leaves_no_trace_of_it(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pilotkit",
        "-m",
        "stage=lock",
        f"+model.kwargs.token={PLANTED}",
        "train.seq_len=8,16",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "planted" not in done.stdout + done.stderr
    assert list(tmp_path.rglob("*")) == []
