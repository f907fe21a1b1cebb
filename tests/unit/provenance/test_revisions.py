"""What pins the model and the data, for every kind of factory."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pilotkit
from pilotkit.errors import ConfigError
from pilotkit.provenance import revisions
from pilotkit.provenance.digest import digest_files, digest_of
from pilotkit.provenance.git import GitState
from pilotkit.provenance.revisions import Revision, resolve_data, resolve_model
from pilotkit.stdlib_text import stdlib_files, stdlib_root

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GPT = "pilotkit.train.models.gpt:build"
HF_MODEL = "pilotkit.train.models.huggingface:build"
UNRESOLVED = "'main' is not a commit, and huggingface_hub is not installed to resolve it"


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


def model(tmp_path: Path, *, factory: str = HF_MODEL, name: str = "m", **options: Any) -> Revision:
    values: dict[str, Any] = {"revision": None, "kwargs": {}, **options}
    return resolve_model(name=name, factory=factory, launch_dir=tmp_path, **values)


def data(tmp_path: Path, *, factory: str, name: str = "d", **options: Any) -> Revision:
    values: dict[str, Any] = {"revision": None, "path": None, "kwargs": {}, **options}
    return resolve_data(name=name, factory=factory, launch_dir=tmp_path, **values)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_built_in_model_is_the_version_and_the_kwargs(tmp_path: Path) -> None:
    found = model(tmp_path, factory=GPT, kwargs={"num_layers": 4})
    version = pilotkit.__version__
    digest = digest_of({"pilotkit": version, "factory": GPT, "kwargs": {"num_layers": 4}})
    assert found == Revision("built_in", "m", digest, f"pilotkit {version} and kwargs; random weights", True)
    assert model(tmp_path, factory=GPT, kwargs={"num_layers": 5}).revision != digest


def test_synthetic_data_is_the_version_and_the_kwargs(tmp_path: Path) -> None:
    factory = "pilotkit.train.datasets:synthetic"
    found = data(tmp_path, factory=factory, kwargs={"vocab_size": 256})
    version = pilotkit.__version__
    digest = digest_of({"pilotkit": version, "factory": factory, "kwargs": {"vocab_size": 256}})
    assert found == Revision("built_in", "d", digest, f"pilotkit {version} and kwargs; made from train.seed", True)


def test_stdlib_data_is_the_content_of_its_files(tmp_path: Path) -> None:
    found = data(tmp_path, factory="pilotkit.train.datasets:stdlib", name="stdlib")
    files = stdlib_files()
    note = f"source text of this Python's standard library, {len(files)} files"
    assert found == Revision(
        "content", "stdlib", digest_files(files, root=stdlib_root()), note, True,
        num_files=len(files), num_bytes=sum(path.stat().st_size for path in files),
    )  # fmt: skip


@pytest.mark.parametrize("given", ["path", "kwargs"])
def test_text_folder_is_the_content_of_matching_files(tmp_path: Path, given: str) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.txt").write_text("alpha")
    (tmp_path / "corpus/b.md").write_text("beta")
    kwargs: Mapping[str, Any] = {"path": "corpus", "pattern": "*.txt"}
    found = data(
        tmp_path,
        factory="pilotkit.train.datasets:text_folder",
        path="corpus" if given == "path" else None,
        kwargs=kwargs,
    )
    assert found == Revision(
        "content",
        "d",
        digest_of([["a.txt", sha("alpha")]]),
        "content of data.path, 1 files",
        True,
        num_files=1,
        num_bytes=5,
    )


@pytest.mark.parametrize(
    ("num_bytes", "seq_len", "rows"),
    [(4000, 10, {"train": 380, "eval": 20}), (25, 10, {"train": 1, "eval": 1}), (19, 10, None), (4000, None, None)],
)
def test_rows_of_text_are_counted_by_split(
    tmp_path: Path, num_bytes: int, seq_len: int | None, rows: dict[str, int] | None
) -> None:
    (tmp_path / "book.txt").write_bytes(b"a" * num_bytes)
    factory = "pilotkit.train.datasets:text_folder"
    assert data(tmp_path, factory=factory, path="book.txt", kwargs={}, seq_len=seq_len).num_rows == rows


def test_rows_of_random_tokens_are_counted_by_split(tmp_path: Path) -> None:
    found = data(tmp_path, factory="pilotkit.train.datasets:synthetic", kwargs={"num_rows": 100}, seq_len=8)
    assert found.num_rows == {"train": 95, "eval": 5}


def test_text_folder_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("alpha")
    found = data(tmp_path, factory="pilotkit.train.datasets:text_folder", path="book.txt", kwargs={"pattern": "*"})
    assert found.revision == digest_of([["book.txt", sha("alpha")]])


def test_text_folder_without_a_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        data(tmp_path, factory="pilotkit.train.datasets:text_folder")
    assert str(caught.value.problems[0]) == (
        "data.path=None\n    allowed: an existing file or folder\n    to mend: name the folder with data.path=FOLDER"
    )


def test_local_model_folder_is_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / ".gitattributes").write_text("x")
    digest = digest_of([["config.json", sha("{}")]])
    note = "content of the local folder, 1 files"
    expected = Revision("content", "./my-model", digest, note, True, num_files=1, num_bytes=2)
    assert model(tmp_path, name="./my-model") == expected
    assert model(tmp_path, name="./my-model", revision="main").revision == digest


def test_unreadable_file_of_a_model_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")

    def refuse(files: list[Path], *, root: Path) -> str:
        raise PermissionError(13, "Permission denied", str(files[0]))

    monkeypatch.setattr(revisions, "digest_files", refuse)  # root in a container may read everything
    with pytest.raises(ConfigError) as caught:
        model(tmp_path)
    assert str(caught.value.problems[0]) == (
        f"model.name=m\n    allowed: files that can be read\n    to mend: {tmp_path}/m/config.json: Permission denied"
    )


def test_hub_commit_is_taken_as_it_is(tmp_path: Path) -> None:
    expected = Revision("hub", "org/x", COMMIT, "commit as given", True)
    assert model(tmp_path, name="org/x", revision=COMMIT) == expected
    assert data(tmp_path, name="org/x", factory="pilotkit.train.datasets:huggingface", revision=COMMIT) == expected


@pytest.mark.parametrize("revision", [None, "main"])
def test_hub_branch_without_the_hub_is_not_locked(tmp_path: Path, revision: str | None) -> None:
    assert model(tmp_path, name="org/x", revision=revision) == Revision("hub", "org/x", None, UNRESOLVED, False)


def test_tokenizer_is_pinned_apart(tmp_path: Path) -> None:
    factory = "pilotkit.train.datasets:huggingface"
    loose = data(tmp_path, factory=factory, name="org/d", revision=COMMIT, kwargs={"tokenizer": "org/t"})
    part = Revision("hub", "org/t", None, UNRESOLVED, False)
    assert loose == Revision("hub", "org/d", COMMIT, f"commit as given; tokenizer org/t: {UNRESOLVED}", False, (part,))
    kwargs = {"tokenizer": "org/t", "tokenizer_revision": "f" * 40}
    pinned = data(tmp_path, factory=factory, name="org/d", revision=COMMIT, kwargs=kwargs)
    part = Revision("hub", "org/t", "f" * 40, "commit as given", True)
    assert pinned == Revision("hub", "org/d", COMMIT, "commit as given", True, (part,))


@pytest.fixture
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Digest of a module in the launch folder that must not be imported."""
    (tmp_path / "mine.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(
        revisions, "read_git", lambda folder, with_digest: GitState("dirty", COMMIT, None, [], "1 file")
    )
    return digest_files([tmp_path / "mine.py"], root=tmp_path)


def test_custom_model_is_its_source(tmp_path: Path, custom: str) -> None:
    note = f"source of mine:build; git dirty at {COMMIT}"
    assert model(tmp_path, factory="mine:build") == Revision("code", "m", custom, note, True)


def test_custom_model_outside_git(tmp_path: Path, custom: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = GitState("unknown", None, reason="no git repository here")
    monkeypatch.setattr(revisions, "read_git", lambda folder, with_digest: nowhere)
    found = model(tmp_path, factory="mine:build")
    assert (found.revision, found.locked) == (custom, True)
    assert found.note == "source of mine:build; git unknown (no git repository here)"


def test_custom_model_that_is_not_there(tmp_path: Path) -> None:
    note = "module no_such.models was not found on the Python path; model.factory is not pinned"
    assert model(tmp_path, factory="no_such.models:build") == Revision("code", "m", None, note, False)


def test_custom_data_says_that_rows_are_not_covered(tmp_path: Path, custom: str) -> None:
    found = data(tmp_path, factory="mine:rows")
    assert (found.revision, found.locked, found.parts) == (custom, True, ())
    assert found.note == (
        f"source of mine:rows; git dirty at {COMMIT}; "
        "rows that it reads from elsewhere are covered only with data.path or data.revision"
    )


def test_custom_data_with_a_path_covers_the_rows(tmp_path: Path, custom: str) -> None:
    (tmp_path / "rows.bin").write_text("alpha")
    found = data(tmp_path, factory="mine:rows", path="rows.bin")
    digest = digest_of([["rows.bin", sha("alpha")]])
    rows = Revision("content", "d", digest, "content of data.path, 1 files", True, num_files=1, num_bytes=5)
    assert (found.revision, found.locked, found.parts) == (custom, True, (rows,))


def test_custom_data_with_a_revision_keeps_it(tmp_path: Path, custom: str) -> None:
    found = data(tmp_path, factory="mine:rows", revision="v7")
    rows = Revision("hub", "d", "v7", "rows at data.revision, as given and not checked", True)
    assert (found.revision, found.parts) == (custom, (rows,))


def test_nothing_of_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n")
    code = (
        "import sys; from pathlib import Path\n"
        "from pilotkit.provenance.revisions import resolve_model\n"
        "here = Path(sys.argv[1])\n"
        "for factory in ('mine:build', 'pilotkit.train.models.gpt:build'):\n"
        "    assert resolve_model(name='x', factory=factory, revision=None, kwargs={}, launch_dir=here).locked\n"
        "assert not {'torch', 'mine', 'pilotkit.train'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
