"""Which variables a lock lists, and that a secret is never one of them."""

from __future__ import annotations

import pytest

from pilotkit.provenance.environment import read_environment


def test_only_the_list_in_order() -> None:
    found = read_environment(
        {"PATH": "/bin", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "", "NCCL_ALGO": "Ring", "HOME": "/root"}
    )
    assert list(found.items()) == [("CUDA_VISIBLE_DEVICES", ""), ("NCCL_ALGO", "Ring"), ("OMP_NUM_THREADS", "4")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abc"),
        ("WANDB_API_KEY", "abc"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("NCCL_SECRET", "abc"),
        ("GLOO_PASSWORD", "abc"),
        ("LD_PRELOAD", "/lib/x.so?token=abc"),
    ],
)
def test_a_secret_is_never_listed(name: str, value: str) -> None:
    assert read_environment({name: value}) == {}


def test_a_name_that_only_sounds_like_one_is() -> None:
    assert read_environment({"TOKENIZERS_PARALLELISM": "false"}) == {"TOKENIZERS_PARALLELISM": "false"}
