"""The lock: what identifies a run, what stands in the way of repeating it, and what drifted."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from pilotkit.provenance.container import Container
from pilotkit.provenance.digest import digest_of
from pilotkit.provenance.drift import compare_locks, voids_of
from pilotkit.provenance.git import NO_REPOSITORY, GitState
from pilotkit.provenance.lock import (
    build_lock,
    from_yaml,
    lock_digest,
    reproducibility_problems,
    to_yaml,
    unresolved_fields,
)
from pilotkit.provenance.packages import Distribution
from pilotkit.provenance.revisions import Revision

COMMIT, OTHER = "a" * 40, "b" * 40
IMAGE = f"org/x@sha256:{'0' * 64}"
MODEL = Revision("built_in", "gpt_tiny", "1" * 64, "pilotkit 0.1.0 and kwargs; random weights", True)
DATA = Revision("content", "stdlib", "2" * 64, "standard library, 674 files", True)
CLEAN = GitState("clean", COMMIT)
PINNED = Container(IMAGE, f"sha256:{'0' * 64}", True)
NUMPY = Distribution("numpy", "2.0", "index", None)
CONFIG = {"train": {"seed": 7, "deterministic": True}, "model": {"kwargs": {}}, "optimizer": {"betas": [0.9, 0.95]}}
MACHINE = {"driver": "570.1", "names": ["H100", "H100"], "cores": 8}
TORCH = {"version": "2.9.1", "cuda": "12.8", "hip": None, "git_version": "c0ffee", "debug": False}


def drift(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [str(item) for item in compare_locks(old, new).drift]


def make(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "config": CONFIG,
        "seeds": {"train": 7},
        "determinism": {"deterministic_algorithms": True},
        "environment": {"OMP_NUM_THREADS": "4"},
        "model": MODEL,
        "data": DATA,
        "git": CLEAN,
        "tree": "7" * 64,
        "machine": MACHINE,
        "container": PINNED,
        "distributions": [NUMPY],
        "torch_build": TORCH,
        "python_version": "3.11.7",
        "pilotkit_version": "0.1.0",
    }
    return build_lock(**{**values, **changes})


def test_lock_is_plain_and_in_order() -> None:
    lock = make(distributions=[Distribution("zeta", "1", "index", None), NUMPY])
    assert list(lock) == [
        *("lock_version", "pilotkit", "python", "model", "data", "git", "container", "machine", "torch"),
        *("environment", "determinism", "seeds", "config", "packages"),
    ]
    assert list(lock["packages"]) == ["numpy", "zeta"]
    assert lock["packages"]["numpy"] == {"version": "2.0", "origin": "index", "source": None}
    assert json.loads(json.dumps(lock)) == lock


def test_digest_is_of_exactly_what_identifies_the_run() -> None:
    assert lock_digest(make()) == digest_of(
        {
            "lock_version": 2,
            "pilotkit": "0.1.0",
            "python": "3.11.7",
            "config": CONFIG,
            "environment": {"OMP_NUM_THREADS": "4"},
            "machine": MACHINE,
            "model": {"kind": "built_in", "revision": "1" * 64},
            "data": {"kind": "content", "revision": "2" * 64},
            "git": {"tree": "7" * 64, "state": "clean", "diff_digest": None},
            "container": {"digest": f"sha256:{'0' * 64}"},
            "torch": TORCH,
            "packages": {"numpy": "2.0"},
        }
    )


def test_a_lock_read_back_from_its_file_has_the_same_digest() -> None:
    lock = make(
        model=replace(MODEL, note="Modèle: 'é' # yes\nno", parts=(DATA,)),
        git=GitState("untracked", COMMIT, "9", ["a b"]),
    )
    read = from_yaml(to_yaml(lock))
    assert read == lock == yaml.safe_load(to_yaml(lock))
    assert lock_digest(read) == lock_digest(lock)
    assert drift(lock, read) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "not YAML: while parsing a flow node"),
        ("just words", "not a lock: it has no lock_version"),
        ("lock_version: 2\nmodel: {}\n", "not a whole lock: 'pilotkit' is missing or of another kind"),
    ],
    ids=["no YAML", "no lock", "half a lock"],
)
def test_what_is_no_lock_is_said(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(reason)):
        from_yaml(text)


def test_a_lock_of_another_version_differs_in_that_line_alone() -> None:
    assert drift(from_yaml("lock_version: 1\nseed: 3\n"), make()) == ["lock_version: 1 -> 2"]


def test_yaml_keeps_the_order() -> None:
    assert to_yaml(make()).splitlines()[1:8] == [
        "lock_version: 2",
        "pilotkit: 0.1.0",
        "python: 3.11.7",
        "model:",
        "  kind: built_in",
        "  name: gpt_tiny",
        f"  revision: '{'1' * 64}'",
    ]


EDITABLE = Distribution("mine", "1.0", "editable", "file:///home/a/mine")
WHEEL = Distribution("mine", "1.0", "local", "file:///home/a/mine.whl#sha256=12ab")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            {"model": MODEL}, {"model": replace(MODEL, name="other", note="other words")}, id="notes-and-names"
        ),
        pytest.param({"git": replace(CLEAN, reason="")}, {"git": replace(CLEAN, reason="words")}, id="reason-of-git"),
        pytest.param(
            {"container": PINNED},
            {"container": replace(PINNED, image=IMAGE.replace("x@", "x:1.2@"))},
            id="tag-beside-a-digest",
        ),
    ],
)
def test_what_does_not_identify_a_run(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert make(**before) != make(**after)
    assert lock_digest(make(**before)) == lock_digest(make(**after))
    assert drift(make(**before), make(**after)) == []


HUB = Revision("hub", "org/x", COMMIT, "commit as given", True)
TOKENIZER = Revision("hub", "org/t", COMMIT, "commit as given", True)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            {},
            {"config": {**CONFIG, "train": {"seed": 8, "deterministic": True}}, "seeds": {"train": 8}},
            ["config.train.seed: 7 -> 8"],
            id="seed",
        ),
        pytest.param(
            {}, {"environment": {}}, ["environment.OMP_NUM_THREADS: 4 -> absent"], id="variable-that-went-away"
        ),
        pytest.param(
            {},
            {"machine": {**MACHINE, "names": ["H100"]}},
            ["machine.names: H100, H100 -> H100"],
            id="a-device-less",
        ),
        pytest.param(
            {},
            {"config": {**CONFIG, "model": {"kwargs": {"width": 8}}}},
            ["config.model.kwargs.width: absent -> 8"],
            id="argument-of-the-model",
        ),
        pytest.param({}, {"pilotkit_version": "0.2.0"}, ["pilotkit: 0.1.0 -> 0.2.0"], id="pilotkit"),
        pytest.param({}, {"torch_build": {**TORCH, "cuda": None}}, ["torch.cuda: 12.8 -> none"], id="torch"),
        pytest.param(
            {},
            {"git": GitState("dirty", OTHER, "9f"), "tree": "8" * 64},
            [f"git.tree: {'7' * 64} -> {'8' * 64}", "git.state: clean -> dirty", "git.diff_digest: none -> 9f"],
            id="git",
        ),
        pytest.param(
            {},
            {"distributions": [replace(NUMPY, version="2.1"), Distribution("zeta", "1", "index", None)]},
            ["packages.numpy: 2.0 -> 2.1", "packages.zeta: absent -> 1"],
            id="packages-changed-and-added",
        ),
        pytest.param({}, {"distributions": []}, ["packages.numpy: 2.0 -> absent"], id="package-removed"),
        pytest.param(
            {"distributions": [WHEEL]},
            {"distributions": [replace(WHEEL, source="file:///home/a/mine.whl#sha256=34cd")]},
            ["packages.mine: 1.0 (local sha256=12ab) -> 1.0 (local sha256=34cd)"],
            id="rebuilt-wheel",
        ),
        pytest.param(
            {},
            {"distributions": [replace(NUMPY, origin="editable", source="file:///home/a/numpy")]},
            ["packages.numpy: 2.0 -> 2.0 (editable)"],
            id="now-editable",
        ),
        pytest.param(
            {"distributions": [replace(EDITABLE, code="1a", code_state="clean")]},
            {"distributions": [replace(EDITABLE, code="2b", code_state="dirty")]},
            ["packages.mine: 1.0 (editable 1a) -> 1.0 (editable 2b)"],
            id="code-of-an-editable-install",
        ),
        pytest.param(
            {},
            {"container": Container("org/x:1.2", None, False, "a tag")},
            [f"container.digest: sha256:{'0' * 64} -> org/x:1.2"],
            id="container",
        ),
        pytest.param(
            {"model": HUB}, {"model": replace(HUB, name="org/y")}, ["model.name: org/x -> org/y"], id="hub-name"
        ),
        pytest.param(
            {"data": replace(HUB, parts=(TOKENIZER,))},
            {"data": replace(HUB, parts=(replace(TOKENIZER, revision=OTHER),))},
            [f"data.parts.org/t.revision: {COMMIT} -> {OTHER}"],
            id="tokenizer",
        ),
    ],
)
def test_drift_names_what_changed(before: dict[str, Any], after: dict[str, Any], expected: list[str]) -> None:
    old, new = make(**before), make(**after)
    assert drift(old, new) == expected
    assert lock_digest(old) != lock_digest(new)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"git": GitState("unknown", None, reason="git failed: index file smaller than expected")}, ["git.state"]),
        ({"git": GitState("unknown", None, reason="the repository has no commit yet")}, ["git.state"]),
        ({"git": GitState("unknown", None, reason=NO_REPOSITORY)}, []),
        ({"git": GitState("dirty", COMMIT, "9f", [], "2 changed files")}, []),
        ({"model": Revision("hub", "org/x", None, "offline", False)}, ["model.revision"]),
        (
            {"data": replace(HUB, locked=False, parts=(replace(TOKENIZER, revision=None, locked=False),))},
            ["data.parts.org/t.revision"],
        ),
        ({"container": Container("org/x:1.2", None, False, "a tag")}, ["container.digest"]),
        ({"container": Container(None, None, False, "docker says nothing")}, []),
    ],
)
def test_what_nobody_resolved_is_no_lock(changes: dict[str, Any], fields: list[str]) -> None:
    found = unresolved_fields(make(**changes))
    assert list(found) == fields
    assert all(text.endswith(".") for text in found.values())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({"container": Container(None, None, False)}, [], id="no-container"),
        pytest.param(
            {"git": GitState("dirty", COMMIT, "9f", [], "2 changed files")},
            ["the working tree is dirty: 2 changed files; commit or restore them."],
            id="dirty",
        ),
        pytest.param(
            {"git": GitState("untracked", COMMIT, "9f", ["a.py", "b.py", "c.py", "d.py"], "4 untracked files")},
            [
                "the working tree has files that git does not track: 4 untracked files (a.py, b.py, c.py); "
                "commit or ignore them."
            ],
            id="untracked",
        ),
        pytest.param(
            {"git": GitState("unknown", None, None, [], "git is not installed")},
            ["the state of the code is unknown: git is not installed."],
            id="unknown",
        ),
        pytest.param(
            {"model": Revision("hub", "org/x", None, "'main' is not a commit", False)},
            ["model org/x is not pinned: 'main' is not a commit."],
            id="unresolved-model",
        ),
        pytest.param(
            {
                "data": Revision(
                    "hub",
                    "org/d",
                    COMMIT,
                    "commit as given; org/t: offline",
                    False,
                    (replace(TOKENIZER, locked=False),),
                )
            },
            ["data org/d is not pinned: commit as given; org/t: offline."],
            id="unresolved-tokenizer",
        ),
        pytest.param(
            {"config": {"train": {"deterministic": False}}},
            ["train.deterministic is false: two runs of this lock need not be equal."],
            id="not-deterministic",
        ),
        pytest.param(
            {"container": Container("org/x:1.2", None, False, "a tag is not identity")},
            ["container org/x:1.2 is not pinned: a tag is not identity."],
            id="tag",
        ),
        pytest.param(
            {"container": Container(None, None, False, "runs inside a container (docker) whose image is not named")},
            ["container is not pinned: runs inside a container (docker) whose image is not named."],
            id="unnamed-container",
        ),
        pytest.param(
            {
                "distributions": [
                    EDITABLE,
                    replace(EDITABLE, name="ours", code="1a", code_state="dirty"),
                    replace(EDITABLE, name="theirs", code="1a", code_state="clean"),
                    replace(WHEEL, name="a"),
                    replace(EDITABLE, name="b.pth", version="none", code="1a"),
                    replace(WHEEL, name="z", source="file:///home/a/z"),
                ]
            },
            [
                "b.pth puts a folder on the path of Python that belongs to no package: only this machine has its code.",
                "package mine 1.0 is installed editable: nothing pins its code.",
                "package ours 1.0 is installed editable: only this machine has its code.",
                "package z 1.0 was installed from a local folder: nobody else has it.",
            ],
            id="packages",
        ),
    ],
)
def test_problems_in_sentences(changes: dict[str, Any], expected: list[str]) -> None:
    assert reproducibility_problems(make(**changes)) == expected


def test_devices_are_not_compared_where_there_are_none() -> None:
    comparison = compare_locks(make(), make(machine=None))
    assert comparison.drift == ()
    assert comparison.not_compared == ("machine: one of the two was looked at where there is no such device",)


def test_an_allowed_field_keeps_its_reason() -> None:
    new = make(distributions=[replace(NUMPY, version="2.1")], pilotkit_version="0.2.0")
    comparison = compare_locks(make(), new, allow={"packages.*": "checked by hand"})
    assert [str(item) for item in comparison.drift] == ["pilotkit: 0.1.0 -> 0.2.0"]
    assert [(item.field, item.reason) for item in comparison.allowed] == [("packages.numpy", "checked by hand")]


@pytest.mark.parametrize(
    ("field", "voids"),
    [
        ("git.tree", "numerics memory speed restore"),
        ("environment.CUDA_VISIBLE_DEVICES", "memory speed"),
        ("config.train.seed", "numerics restore"),
        ("config.data.num_workers", "memory speed"),
        ("machine.cores", "speed"),
        ("config.image", ""),
        ("something.new", "numerics memory speed restore"),
    ],
)
def test_what_a_field_voids(field: str, voids: str) -> None:
    assert " ".join(voids_of(field)) == voids


def test_drift_is_grouped_by_what_it_voids() -> None:
    new = make(environment={"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "1"}, pilotkit_version="0.2.0")
    comparison = compare_locks(make(), new)
    both, one = "pilotkit: 0.1.0 -> 0.2.0", "environment.CUDA_VISIBLE_DEVICES: absent -> 1"
    assert comparison.by_group() == {"numerics": [both], "memory": [both, one], "speed": [both, one], "restore": [both]}
    assert comparison.by_voids() == {"numerics, memory, speed, restore": [both], "memory, speed": [one]}


def test_the_file_that_is_committed_names_no_folder_of_this_machine() -> None:
    """Two checkouts of one state give the same bytes."""

    def text(home: str) -> str:
        sources = {"ours": f"file://{home}/ours", "wheel": f"file://{home}/w-1.0.whl#sha256=1a"}
        origins = {"ours": "editable", "wheel": "local"}
        return to_yaml(
            make(distributions=[Distribution(name, "1.0", origins[name], sources[name]) for name in sources])  # type: ignore[arg-type]
        )

    assert text("/home/a") == text("/scratch/b/c")
    assert "source: file:w-1.0.whl#sha256=1a\n" in text("/home/a")
    assert "source: file:ours\n" in text("/home/a")
