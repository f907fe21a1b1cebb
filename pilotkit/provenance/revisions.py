"""What pins the model and the data: a hub commit, a content digest, or pilotkit's own version.

Called for the lock. Imports none of the factories, downloads nothing, and says why when something is not pinned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pilotkit
from pilotkit.errors import ConfigError, Problem
from pilotkit.provenance import hub
from pilotkit.provenance.digest import digest_files, digest_of
from pilotkit.provenance.git import read_git
from pilotkit.provenance.kept import read_kept
from pilotkit.provenance.source import find_source
from pilotkit.splits import split_sizes
from pilotkit.stdlib_text import files_below, stdlib_files, stdlib_root, text_files

Kind = Literal["built_in", "content", "hub", "code"]

_MODELS = "pilotkit.train.models."
_HF_MODEL = "pilotkit.train.models.huggingface:build"
_DATASETS = "pilotkit.train.datasets:"


@dataclass(frozen=True)
class Revision:
    """What a name stands for. `revision` identifies it: a digest (64 hex) or a hub commit (40 hex).

    `kind` says how: `built_in` (pilotkit's version and the kwargs), `content` (files), `hub` (commit) or `code`
    (source of a custom factory). `note` says in words what it covers, or why `locked` is False. `parts` are
    further things that the same option loads, such as a tokenizer. `num_files` and `num_bytes` are known of files
    that were read, `num_rows` by split of the built-in data sets; the rows of others are counted where they are opened.
    """

    kind: Kind
    name: str
    revision: str | None
    note: str
    locked: bool
    parts: tuple[Revision, ...] = ()
    num_files: int | None = None
    num_bytes: int | None = None
    num_rows: dict[str, int] | None = None


def resolve_model(
    *, name: str, factory: str, revision: str | None, kwargs: Mapping[str, Any], launch_dir: Path | None = None
) -> Revision:
    """Pin the model. A local folder is relative to `launch_dir`, by default the working directory.

    Raises ConfigError on `model.name` when a local folder cannot be read.
    """
    start = launch_dir or Path.cwd()
    if factory == _HF_MODEL:
        return _hugging_face("model", name=name, revision=revision, kwargs=kwargs, launch_dir=start)
    if factory.startswith(_MODELS):
        return _built_in(name, factory=factory, kwargs=kwargs, note="random weights")
    return _custom("model", name=name, factory=factory, launch_dir=start)


def resolve_data(
    *,
    name: str,
    factory: str,
    revision: str | None,
    path: str | None,
    kwargs: Mapping[str, Any],
    launch_dir: Path,
    seq_len: int | None = None,
) -> Revision:
    """Pin the data. `path` and a local folder are relative to `launch_dir`; rows of text have `seq_len` bytes.

    Raises ConfigError on `data.path` or `data.name` when files are missing or cannot be read.
    """
    kind = factory.removeprefix(_DATASETS) if factory.startswith(_DATASETS) else "custom"
    if kind == "stdlib":
        note = "source text of this Python's standard library"
        files = _content(name, files=stdlib_files(), root=stdlib_root(), note=note, key="data.name")
        return _with_rows(files, seq_len)
    if kind == "text_folder":
        return _with_rows(_text(name, path=path or kwargs.get("path"), kwargs=kwargs, launch_dir=launch_dir), seq_len)
    if kind == "synthetic":
        made = _built_in(name, factory=factory, kwargs=kwargs, note="made from train.seed")
        return dataclasses.replace(made, num_rows=split_sizes(kwargs["num_rows"])) if "num_rows" in kwargs else made
    if kind == "huggingface":
        return _hugging_face("data", name=name, revision=revision, kwargs=kwargs, launch_dir=launch_dir)
    code = _custom("data", name=name, factory=factory, launch_dir=launch_dir)
    if path is not None:
        rows = _text(name, path=path, kwargs={}, launch_dir=launch_dir)
        return Revision(code.kind, name, code.revision, code.note, code.locked and rows.locked, (rows,))
    if revision is not None:
        rows = Revision("hub", name, revision, "rows at data.revision, as given and not checked", True)
        return Revision(code.kind, name, code.revision, code.note, code.locked, (rows,))
    note = f"{code.note}; rows that it reads from elsewhere are covered only with data.path or data.revision"
    return Revision(code.kind, name, code.revision, note, code.locked)


def _with_rows(text: Revision, seq_len: int | None) -> Revision:
    if seq_len is None or text.num_bytes is None or text.num_bytes < 2 * seq_len:  # too short: the data set says so
        return text
    return dataclasses.replace(text, num_rows=split_sizes(text.num_bytes // seq_len))


def _built_in(name: str, *, factory: str, kwargs: Mapping[str, Any], note: str) -> Revision:
    identity = {"pilotkit": pilotkit.__version__, "factory": factory, "kwargs": dict(kwargs)}
    return Revision("built_in", name, digest_of(identity), f"pilotkit {pilotkit.__version__} and kwargs; {note}", True)


def _content(name: str, *, files: list[Path], root: Path, note: str, key: str) -> Revision:
    try:
        digest = digest_files(files, root=root)
        num_bytes = sum(path.stat().st_size for path in files)
    except OSError as error:
        fix = f"{error.filename}: {error.strerror}"
        raise ConfigError([Problem(key=key, value=name, allowed="files that can be read", fix=fix)]) from error
    words = f"{note}, {len(files)} files"
    return Revision("content", name, digest, words, True, num_files=len(files), num_bytes=num_bytes)


def _text(name: str, *, path: Any, kwargs: Mapping[str, Any], launch_dir: Path) -> Revision:
    if not path:
        fix = "name the folder with data.path=FOLDER"
        raise ConfigError([Problem(key="data.path", value=path, allowed="an existing file or folder", fix=fix)])
    start = launch_dir / Path(path).expanduser()
    files = text_files(start, pattern=str(kwargs.get("pattern", "*")))
    root = start if start.is_dir() else start.parent
    return _content(name, files=files, root=root, note="content of data.path", key="data.path")


def _hugging_face(
    section: Literal["model", "data"], *, name: str, revision: str | None, kwargs: Mapping[str, Any], launch_dir: Path
) -> Revision:
    repo_type: Literal["model", "dataset"] = "model" if section == "model" else "dataset"
    whole = _repository(name, revision=revision, repo_type=repo_type, launch_dir=launch_dir, key=f"{section}.name")
    tokenizer = kwargs.get("tokenizer")
    if not isinstance(tokenizer, str) or not tokenizer:
        return whole
    wanted = kwargs.get("tokenizer_revision")
    key = f"{section}.kwargs.tokenizer"
    part = _repository(tokenizer, revision=wanted, repo_type="model", launch_dir=launch_dir, key=key)
    note = whole.note if part.locked else f"{whole.note}; tokenizer {tokenizer}: {part.note}"
    return Revision(whole.kind, name, whole.revision, note, whole.locked and part.locked, (part,))


def _repository(
    name: str, *, revision: str | None, repo_type: Literal["model", "dataset"], launch_dir: Path, key: str
) -> Revision:
    """A local folder (or data file) by its content, else a hub id by its commit."""
    start = launch_dir / Path(name).expanduser()
    if start.is_dir():
        files = files_below(start, key=key)
        return _content(name, files=files, root=start, note="content of the local folder", key=key)
    if start.is_file():
        return _content(name, files=[start], root=start.parent, note="content of the local file", key=key)
    found = hub.resolve_commit(name, revision=revision, repo_type=repo_type)
    return Revision("hub", name, found.commit, found.note, found.commit is not None)


def _custom(section: Literal["model", "data"], *, name: str, factory: str, launch_dir: Path) -> Revision:
    try:
        source = find_source(factory, launch_dir=launch_dir)
    except OSError as error:
        return Revision("code", name, None, f"{factory}: {error.filename}: {error.strerror}", False)
    if source is None:
        note = f"module {factory.partition(':')[0]} was not found on the Python path; {section}.factory is not pinned"
        return Revision("code", name, None, note, False)
    # A sweep's copy of the code lies below the outputs: git would speak of the folder as it is by now.
    kept = read_kept(source.file)
    git = kept[0] if kept else read_git(source.file.parent, with_digest=False)
    where = f"git {git.state} at {git.commit}" if git.commit else f"git {git.state} ({git.reason})"
    return Revision("code", name, source.digest, f"source of {factory}; {where}", True)
