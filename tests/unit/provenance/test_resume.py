"""A checkpoint of another lock: every field that decides how training goes on is named, and allowed by name."""

from __future__ import annotations

import copy

import pytest

from pilotkit.errors import ConfigError
from pilotkit.provenance.lock import LOCK_VERSION, to_yaml
from pilotkit.provenance.resume import refuse_lock_drift

REVISION = {"kind": "given", "revision": "1" * 40, "parts": []}
LOCK = {
    "lock_version": LOCK_VERSION,
    "pilotkit": "0.1",
    "python": "3.11.7",
    "config": {"optimizer": {"lr": 0.1}},
    "environment": {"PYTHONHASHSEED": "0"},
    "torch": {"version": "2.13.0"},
    "machine": None,
    "model": REVISION,
    "data": REVISION,
    "git": {"tree": "a" * 40, "state": "clean", "diff_digest": None},
    "container": {"digest": None, "image": None},
    "packages": {},
}


def changed(**sections):
    lock = copy.deepcopy(LOCK)
    lock.update(sections)
    return to_yaml(lock)


def test_the_same_lock_and_no_lock_at_all_pass():
    assert refuse_lock_drift(to_yaml(LOCK), to_yaml(LOCK), allowed=[]) == []
    assert refuse_lock_drift("", to_yaml(LOCK), allowed=[]) == []
    assert refuse_lock_drift(to_yaml(LOCK), "", allowed=[]) == []


def test_every_field_is_named_with_both_values():
    here = changed(torch={"version": "2.12.0"}, git={**LOCK["git"], "tree": "b" * 40})
    with pytest.raises(ConfigError) as caught:
        refuse_lock_drift(to_yaml(LOCK), here, allowed=[])
    problems = {problem.key: problem for problem in caught.value.problems}
    assert set(problems) == {"lock.torch.version", "lock.git.tree"}
    assert problems["lock.torch.version"].value == "2.12.0"
    assert problems["lock.torch.version"].allowed == "2.13.0, as the checkpoint was saved with"
    assert "restore.allow_changes=[lock.torch]" in problems["lock.torch.version"].fix


@pytest.mark.parametrize("allowed", [["lock.torch.version"], ["lock.torch"], ["lock"]])
def test_allowed_by_name_or_section(allowed):
    (item,) = refuse_lock_drift(to_yaml(LOCK), changed(torch={"version": "2.12.0"}), allowed=allowed)
    assert str(item) == "torch.version: 2.13.0 -> 2.12.0"
    with pytest.raises(ConfigError):
        refuse_lock_drift(to_yaml(LOCK), changed(torch={"version": "2.12.0"}, python="3.12.1"), allowed=["lock.torch"])


def test_the_configuration_is_compared_elsewhere_and_speed_decides_nothing():
    here = changed(
        config={"optimizer": {"lr": 0.2}}, environment={"PYTHONHASHSEED": "0", "CUDA_MODULE_LOADING": "LAZY"}
    )
    assert refuse_lock_drift(to_yaml(LOCK), here, allowed=[]) == []


def test_a_lock_that_is_none_is_told():
    with pytest.raises(ConfigError, match=r"restore\.path"):
        refuse_lock_drift("nonsense", to_yaml(LOCK), allowed=[])
