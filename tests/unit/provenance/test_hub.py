"""Case R96: commits of hub names, with a stand-in for the hub."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Literal

import pytest

from pilotkit.provenance.hub import HubCommit, resolve_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


class OfflineModeIsEnabled(ConnectionError):
    """Named as the hub library names it."""


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import of it fails


@pytest.fixture
def asked() -> list[tuple[str, str, str]]:
    return []


@pytest.fixture
def serve(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str, str]]
) -> Callable[[Callable[[], str | None]], None]:
    """Put a hub in place that answers every question with what `answer` returns or raises."""

    def install(answer: Callable[[], str | None]) -> None:
        def of(kind: str) -> Callable[..., SimpleNamespace]:
            def ask(name: str, *, revision: str, timeout: float) -> SimpleNamespace:
                assert timeout == 10.0
                asked.append((kind, name, revision))
                return SimpleNamespace(sha=answer())

            return ask

        stand_in = ModuleType("huggingface_hub")
        vars(stand_in)["HfApi"] = lambda: SimpleNamespace(model_info=of("model"), dataset_info=of("dataset"))
        monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)

    return install


def offline() -> str:
    raise OfflineModeIsEnabled


def test_full_commit_is_taken_without_asking() -> None:
    assert resolve_commit("org/x", revision=COMMIT, repo_type="model") == HubCommit(COMMIT, "commit as given")


@pytest.mark.parametrize(
    ("revision", "shown"),
    [("main", "main"), ("v1.0", "v1.0"), (COMMIT[:7], COMMIT[:7]), (None, "main"), (COMMIT.upper(), COMMIT.upper())],
    ids=["branch", "tag", "short", "none", "upper-case"],
)
def test_without_the_library_nothing_is_resolved(revision: str | None, shown: str) -> None:
    note = f"{shown!r} is not a commit, and huggingface_hub is not installed to resolve it"
    assert resolve_commit("org/x", revision=revision, repo_type="model") == HubCommit(None, note)


@pytest.mark.parametrize("repo_type", ["model", "dataset"])
def test_hub_resolves_a_branch(
    serve: Callable[..., None], asked: list[tuple[str, str, str]], repo_type: Literal["model", "dataset"]
) -> None:
    serve(lambda: COMMIT)
    found = resolve_commit("org/x", revision=None, repo_type=repo_type)
    assert found == HubCommit(COMMIT, "'main' resolved by the hub; give this commit as the revision to load no other")
    assert asked == [(repo_type, "org/x", "main")]


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        pytest.param(offline, "the hub did not resolve it (OfflineModeIsEnabled)", id="offline"),
        pytest.param(lambda: None, "the hub named no commit", id="no-answer"),
        pytest.param(lambda: "abc", "the hub named no commit", id="not-a-commit"),
    ],
)
def test_unresolved_says_why_and_the_cache_helps(
    serve: Callable[..., None], tmp_path: Path, answer: Callable[[], str], trouble: str
) -> None:
    serve(answer)
    found = resolve_commit("org/x", revision="v1", repo_type="dataset")
    assert found == HubCommit(None, f"'v1' is not a commit, and {trouble}")
    refs = tmp_path / "hub/datasets--org--x/refs"
    refs.mkdir(parents=True)
    (refs / "v1").write_text(OTHER)
    found = resolve_commit("org/x", revision="v1", repo_type="dataset")
    assert found == HubCommit(
        OTHER, f"'v1' resolved by the local cache, as {trouble}; give this commit as the revision"
    )


def test_cache_follows_hf_home(serve: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(offline)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    refs = tmp_path / "home/hub/models--gpt2/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(f"{OTHER}\n")
    assert resolve_commit("gpt2", revision=None, repo_type="model").commit == OTHER
    (refs / "main").write_text("damaged")
    assert resolve_commit("gpt2", revision=None, repo_type="model").commit is None
