"""Case R99: what git says about a folder, and that an error never reads as clean."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pilotkit.provenance import git
from pilotkit.provenance.difference import read_difference
from pilotkit.provenance.git import BROKEN, NO_REPOSITORY, GitState, read_git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def _no_user_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def run(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo with 'odd' name"
    folder.mkdir()
    run(folder, "init", "--quiet")
    (folder / "train.py").write_text("lr = 1\n")
    (folder / ".gitignore").write_text("scratch/\n")
    run(folder, "add", ".")
    run(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_clean(repository: Path) -> None:
    assert read_git(repository) == GitState("clean", run(repository, "rev-parse", "HEAD"))


def test_dirty_carries_a_digest_of_the_content(repository: Path) -> None:
    seen = set()
    for text in ("lr = 2\n", "lr = 3\n"):
        (repository / "train.py").write_text(text)
        state = read_git(repository)
        assert (state.state, state.reason, state.untracked) == ("dirty", "1 changed file", [])
        assert read_git(repository).diff_digest == state.diff_digest
        seen.add(state.diff_digest)
    assert len(seen) == 2
    assert None not in seen
    (repository / "train.py").write_text("lr = 1\n")
    assert read_git(repository).state == "clean"


@pytest.mark.parametrize("change", ["staged", "deleted", "executable", "conflict"])
def test_every_kind_of_change_is_dirty(repository: Path, change: str) -> None:
    path = repository / "train.py"
    if change == "staged":
        path.write_text("lr = 4\n")
        run(repository, "add", "train.py")
    elif change == "deleted":
        path.unlink()
    elif change == "executable":
        path.chmod(0o755)
    else:
        run(repository, "checkout", "--quiet", "-b", "other")
        path.write_text("lr = 5\n")
        run(repository, "commit", "--quiet", "--all", "--message", "other")
        run(repository, "checkout", "--quiet", "-")
        path.write_text("lr = 6\n")
        run(repository, "commit", "--quiet", "--all", "--message", "ours")
        with pytest.raises(subprocess.CalledProcessError):
            run(repository, "merge", "--quiet", "other")
    state = read_git(repository)
    assert (state.state, state.reason) == ("dirty", "1 changed file")
    assert state.diff_digest is not None


def test_untracked_python_file(repository: Path) -> None:
    (repository / "extra.py").write_text("x = 1\n")
    first = read_git(repository)
    assert (first.state, first.untracked, first.reason) == ("untracked", ["extra.py"], "1 untracked file")
    assert first.commit == run(repository, "rev-parse", "HEAD")
    (repository / "extra.py").write_text("x = 2\n")
    assert read_git(repository).diff_digest != first.diff_digest


def test_untracked_is_seen_whatever_the_user_configured(repository: Path) -> None:
    run(repository, "config", "status.showUntrackedFiles", "no")
    (repository / "new").mkdir()
    (repository / "new/extra.py").write_text("x = 1\n")
    assert read_git(repository).untracked == ["new/extra.py"]


def test_untracked_names_stop_at_twenty_and_the_count_goes_on(repository: Path) -> None:
    for number in range(25):
        (repository / f"f{number:02}.py").write_text("")
    state = read_git(repository)
    assert state.untracked == [f"f{number:02}.py" for number in range(20)]
    assert state.reason == "25 untracked files"


def test_excluded_output_folder_is_not_code(repository: Path) -> None:
    (repository / "outputs/default").mkdir(parents=True)
    (repository / "outputs/default/record.json").write_text("{}")
    assert read_git(repository).state == "untracked"
    assert read_git(repository, exclude=[repository / "outputs"]).state == "clean"
    (repository / "outputs.py").write_text("")
    assert read_git(repository, exclude=[repository / "outputs"]).untracked == ["outputs.py"]


@pytest.mark.parametrize("output_dir", [".", ".."], ids=["the-folder-itself", "above-it"])
def test_output_folder_that_holds_the_code_hides_nothing(repository: Path, output_dir: str) -> None:
    (repository / "extra.py").write_text("")
    assert read_git(repository, exclude=[repository / output_dir]).untracked == ["extra.py"]


def test_subfolder_speaks_for_the_whole_repository(repository: Path) -> None:
    (repository / "pkg").mkdir()
    (repository / "extra.py").write_text("")
    assert read_git(repository / "pkg").untracked == ["extra.py"]


def test_ignored_folder_is_unknown(repository: Path) -> None:
    (repository / "scratch").mkdir()
    (repository / "scratch/train.py").write_text("")
    assert read_git(repository).state == "clean"
    assert read_git(repository / "scratch") == GitState(
        "unknown", None, reason="the repository above ignores this folder"
    )


def test_repository_without_a_commit(tmp_path: Path) -> None:
    run(tmp_path, "init", "--quiet")
    assert read_git(tmp_path) == GitState("unknown", None, reason="the repository has no commit yet")
    (tmp_path / "a.py").write_text("")
    state = read_git(tmp_path)
    assert (state.state, state.commit, state.untracked) == ("unknown", None, ["a.py"])


def test_no_repository(tmp_path: Path) -> None:
    assert read_git(tmp_path) == GitState("unknown", None, reason="no git repository here")


def test_folder_that_does_not_exist(tmp_path: Path) -> None:
    state = read_git(tmp_path / "none")
    assert (state.state, state.commit) == ("unknown", None)
    assert state.reason == f"git failed: cannot change to '{tmp_path}/none': No such file or directory"


def test_bare_repository(tmp_path: Path) -> None:
    run(tmp_path, "init", "--quiet", "--bare")
    assert read_git(tmp_path) == GitState("unknown", None, reason="a git repository without a work tree")


def test_a_repository_that_has_lost_a_part_is_not_none(repository: Path) -> None:
    """git then says the same words as where there never was one; no lock may take that for the latter."""
    (repository / ".git/HEAD").unlink()
    (repository / "pkg").mkdir()
    assert read_git(repository) == read_git(repository / "pkg") == GitState("unknown", None, reason=BROKEN)


def test_a_worktree_speaks_for_itself_and_not_when_its_repository_has_moved(repository: Path, tmp_path: Path) -> None:
    run(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert read_git(tmp_path / "tree") == GitState("clean", run(repository, "rev-parse", "HEAD"))
    (tmp_path / "tree/train.py").write_text("lr = 2\n")
    assert (read_git(tmp_path / "tree").state, read_git(repository).state) == ("dirty", "clean")
    repository.rename(tmp_path / "elsewhere")
    assert read_git(tmp_path / "tree") == GitState("unknown", None, reason=BROKEN)


def test_a_shallow_clone_is_its_commit(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("lr = 2\n")
    run(repository, "commit", "--quiet", "--all", "--message", "second")
    run(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), "shallow")
    assert read_git(tmp_path / "shallow") == GitState("clean", run(repository, "rev-parse", "HEAD"))


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_was_told_not_to_look_at_is_looked_at(repository: Path, flag: str) -> None:
    run(repository, "update-index", flag, "train.py")
    assert read_git(repository).state == "clean"  # as it was committed
    digests = set()
    for text in ("lr = 2\n", "lr = 3\n", None):
        (repository / "train.py").write_text(text) if text else (repository / "train.py").unlink()
        assert run(repository, "status", "--porcelain") == ""
        state = read_git(repository)
        assert (state.state, state.reason) == ("dirty", "not looked at by git: train.py")
        digests.add(state.diff_digest)
    assert len(digests) == 3
    assert None not in digests


def test_git_missing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert read_git(repository) == GitState("unknown", None, reason="git is not installed")


def test_git_missing_where_there_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git(tmp_path).reason == NO_REPOSITORY


def test_broken_index(repository: Path) -> None:
    (repository / ".git/index").write_bytes(b"not an index, but long enough to be read as one")
    state = read_git(repository)
    assert (state.state, state.commit) == ("unknown", None)
    assert state.reason.startswith("git failed: bad signature 0x")  # the number depends on the byte order


def test_missing_commit_object(repository: Path) -> None:
    shutil.rmtree(repository / ".git/objects")
    (repository / ".git/objects").mkdir()
    assert read_git(repository).state == "unknown"


def fake_git(folder: Path, script: str) -> str:
    """A PATH whose `git` is this shell script; `$REAL` is the real one."""
    folder.mkdir()
    program = folder / "git"
    program.write_text(f"#!/bin/sh\nREAL={shutil.which('git')}\n{script}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_foreign_owner(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The switch of git's own test suite: needs no second user.
    script = 'GIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec "$REAL" "$@"'
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", script))
    reason = "git refuses a repository that belongs to another user (git config safe.directory)"
    assert read_git(repository) == GitState("unknown", None, reason=reason)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "*")
    assert read_git(repository).state == "clean"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param("exec sleep 30", "git gave no answer in 0.2 s", id="hangs"),
        pytest.param("exit 3", "git failed: without a word", id="fails-silently"),
    ],
)
def test_git_that_does_not_answer(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", script))
    monkeypatch.setattr(git, "TIMEOUT_SECONDS", 0.2)
    assert read_git(repository) == GitState("unknown", None, reason=reason)


def test_git_that_cannot_be_started(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", ""))
    (tmp_path / "bin/git").write_bytes(b"\x7fELF but not a program")
    assert read_git(repository) == GitState("unknown", None, reason="git could not be started: Exec format error")


def test_a_warning_beside_a_clean_answer_is_unknown(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """case "$*" in *status*) echo "warning: could not open directory 'x/': Permission denied" >&2;; esac
exec "$REAL" "$@\""""
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", script))
    state = read_git(repository)
    assert state.state == "unknown"
    assert state.reason == "git answered with a warning: could not open directory 'x/': Permission denied"


def test_variables_of_another_repository_are_not_obeyed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert read_git(repository).state == "clean"


def test_nothing_is_written(repository: Path) -> None:
    os.utime(repository / "train.py", (1, 1))  # makes git want to refresh its index
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")}
    assert read_git(repository).state == "clean"
    assert {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")} == before


def test_file_system_monitor_of_the_repository_is_not_started(repository: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    hook.chmod(0o755)
    run(repository, "config", "core.fsmonitor", str(hook))
    assert read_git(repository).state == "clean"
    assert not (tmp_path / "started").exists()


def test_large_untracked_file_counts_by_size(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "_MAX_UNTRACKED_BYTES", 4)
    (repository / "rows.bin").write_bytes(b"12345")
    first = read_git(repository).diff_digest
    (repository / "rows.bin").write_bytes(b"54321")
    assert read_git(repository).diff_digest == first
    (repository / "rows.bin").write_bytes(b"543210")
    assert read_git(repository).diff_digest != first


def test_without_digest_files_are_not_read(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 2\n")
    state = read_git(repository, with_digest=False)
    assert (state.state, state.diff_digest, state.reason) == ("dirty", None, "1 changed file")


@pytest.fixture
def with_submodule(repository: Path, tmp_path: Path) -> Path:
    inner = tmp_path / "inner"
    inner.mkdir()
    run(inner, "init", "--quiet")
    (inner / "lib.py").write_text("a = 1\n")
    run(inner, "add", ".")
    run(inner, "commit", "--quiet", "--message", "inner")
    run(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "lib")
    run(repository, "commit", "--quiet", "--message", "submodule")
    return repository


def test_a_submodule_that_is_not_checked_out_is_not_clean(with_submodule: Path, tmp_path: Path) -> None:
    """Its code is not there, and git says clean."""
    assert read_git(with_submodule).state == "clean"
    run(tmp_path, "clone", "--quiet", str(with_submodule), "clone")
    assert run(tmp_path / "clone", "status", "--porcelain") == ""
    state = read_git(tmp_path / "clone")
    assert (state.state, state.reason) == ("dirty", "submodule not checked out: lib")
    assert state.diff_digest is not None
    run(tmp_path / "clone", "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    assert read_git(tmp_path / "clone").state == "clean"


def test_a_submodule_whose_repository_is_gone_is_no_answer(with_submodule: Path) -> None:
    (with_submodule / "lib/.git").write_text("gitdir: ../nowhere\n")
    assert read_git(with_submodule) == GitState("unknown", None, reason=BROKEN)


def test_change_inside_a_submodule_is_seen(with_submodule: Path) -> None:
    repository = with_submodule
    run(repository, "config", "submodule.lib.ignore", "all")
    assert read_git(repository).state == "clean"
    digests = set()
    for text in ("a = 2\n", "a = 3\n"):
        (repository / "lib/lib.py").write_text(text)
        state = read_git(repository)
        assert state.state == "dirty"
        digests.add(state.diff_digest)
        # What brings it back is the text, not that something in there is dirty.
        assert f"-a = 1\n+{text}" in read_difference(repository, untracked=[])
    assert len(digests) == 2
