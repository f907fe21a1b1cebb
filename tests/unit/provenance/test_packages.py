"""Installed distributions, from metadata folders made here, and the build of torch without importing it."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pilotkit.provenance import editable
from pilotkit.provenance.git import GitState, read_git
from pilotkit.provenance.packages import Distribution, Origin, installed_distributions, torch_build


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder on the path, named as an installer would."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    sysconfig.get_config_vars()  # imports a module of the interpreter on its first call, which needs the real path
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def install(site: Path, name: str, version: str = "1.0", *, direct: dict[str, Any] | str | None = None) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct is not None:
        (folder / "direct_url.json").write_text(direct if isinstance(direct, str) else json.dumps(direct))


@pytest.mark.parametrize(
    ("direct", "origin", "source"),
    [
        pytest.param(None, "index", None, id="index"),
        pytest.param(
            {"url": "https://user:secret@example.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "vcs",
            "git+https://example.org/a.git@abc",
            id="vcs-without-password",
        ),
        pytest.param(
            {"url": "file:///src/a", "dir_info": {"editable": True}}, "editable", "file:///src/a", id="editable"
        ),
        pytest.param({"url": "file:///src/a", "dir_info": {}}, "local", "file:///src/a", id="local-folder"),
        pytest.param(
            {"url": "file:///w/a.whl", "archive_info": {"hashes": {"sha256": "12ab"}}},
            "local",
            "file:///w/a.whl#sha256=12ab",
            id="local-wheel",
        ),
        pytest.param(
            {"url": "https://token@example.org/a.whl?sig=secret#x", "archive_info": {"hash": "sha256=12ab"}},
            "url",
            "https://example.org/a.whl#sha256=12ab",
            id="url-without-signature",
        ),
        pytest.param(
            {"url": "https://example.org/a.whl", "archive_info": {}}, "url", "https://example.org/a.whl", id="url"
        ),
        pytest.param("{not json", "url", None, id="damaged"),
    ],
)
def test_origin(site: Path, direct: dict[str, Any] | str | None, origin: Origin, source: str | None) -> None:
    install(site, "a", direct=direct)
    assert installed_distributions() == [Distribution("a", "1.0", origin, source)]


def test_names_are_normalised_and_sorted(site: Path) -> None:
    for name in ("Zeta", "my.pkg__x", "Alpha-B"):
        install(site, name)
    assert [item.name for item in installed_distributions()] == ["alpha-b", "my-pkg-x", "zeta"]


def test_first_on_the_path_wins(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "a", "1.0")
    install(tmp_path / "later/site-packages", "A", "2.0")
    monkeypatch.setattr(sys, "path", [str(site), str(tmp_path / "later/site-packages")])
    assert installed_distributions() == [Distribution("a", "1.0", "index", None)]


def test_leftover_without_metadata_is_passed_over(site: Path) -> None:
    install(site, "good")
    (site / "bad-1.0.dist-info").mkdir()
    assert [item.name for item in installed_distributions()] == ["good"]


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("Metadata-Version: 2.1\r\nName: A.b \r\nVersion:1.0\r\n\r\nName: other\r\n", "a-b", "1.0"),
        ("name: a\nVERSION:\t2.0+cpu\n\nVersion: 3.0\n", "a", "2.0+cpu"),
        ("Name: a\nSummary: words\nVersion: 1.0", "a", "1.0"),
    ],
    ids=["carriage returns", "other case", "no description"],
)
def test_the_head_of_the_metadata_is_read_and_not_its_description(
    site: Path, text: str, name: str, version: str
) -> None:
    (site / "a-1.dist-info").mkdir()
    (site / "a-1.dist-info/METADATA").write_text(text, newline="")
    (installed,) = importlib.metadata.distributions()
    assert (re.sub("[.]", "-", installed.metadata["Name"].strip().lower()), installed.version) == (name, version)
    assert installed_distributions() == [Distribution(name, version, "index", None)]


@pytest.mark.parametrize("text", ["Name: a\n\nVersion: 1.0\n", "Name:\nVersion: 1.0\n", "Version: 1.0\n"])
def test_metadata_without_a_name_or_version_is_passed_over(site: Path, text: str) -> None:
    (site / "a-1.dist-info").mkdir()
    (site / "a-1.dist-info/METADATA").write_text(text)
    assert installed_distributions() == []


def test_checkout_on_the_path_is_editable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "checkout/a.egg-info"
    folder.mkdir(parents=True)
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: a\nVersion: 1.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "checkout")])
    assert installed_distributions() == [Distribution("a", "1.0", "editable", (tmp_path / "checkout").as_uri())]


@pytest.mark.parametrize("place", ["theirs_cuda.cpython-311.so", "src/theirs/kernels.so"])
def test_an_extension_that_was_compiled_in_place_counts_although_git_ignores_it(
    site: Path, tmp_path: Path, place: str
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / place).parent.mkdir(parents=True, exist_ok=True)
    (checkout / ".gitignore").write_text("*.so\n.venv\n")
    (checkout / place).write_bytes(b"first")
    (checkout / ".venv").mkdir()
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=checkout, check=True, capture_output=True)
    install(site, "theirs", direct={"url": checkout.as_uri(), "dir_info": {"editable": True}})
    (site / "theirs-1.0.dist-info/top_level.txt").write_text("theirs\ntheirs_cuda\n")

    def code() -> str | None:
        (item,) = editable.with_code(installed_distributions())
        assert item.code_state == "clean"
        return item.code

    before = code()
    (checkout / ".venv/torch.so").write_bytes(b"somebody else's")
    assert code() == before
    (checkout / place).write_bytes(b"again")
    assert code() != before


def test_the_folder_of_a_path_file_is_pinned_by_its_code_or_with_the_package_that_it_belongs_to(
    site: Path, tmp_path: Path
) -> None:
    """Python imports from there, and no metadata tells of it."""
    for name in ("loose/tool.py", "checkout/src/theirs.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x = 1\n")
    checkout = (tmp_path / "checkout").as_uri()
    install(site, "theirs", direct={"url": checkout, "dir_info": {"editable": True}})
    (site / "__editable__.theirs.pth").write_text(f"{tmp_path / 'checkout/src'}\n")
    (site / "mine.pth").write_text(f"# words\nimport sys\n{tmp_path / 'loose'}\n/nowhere\n../loose\n")
    found = {item.name: item for item in editable.with_code(installed_distributions())}
    assert list(found) == ["mine.pth", "mine.pth#2", "theirs"]
    assert (found["mine.pth"].origin, found["mine.pth"].version) == ("editable", "none")
    assert found["mine.pth"].code == found["mine.pth#2"].code is not None
    (tmp_path / "loose/tool.py").write_text("x = 2\n")
    again = {item.name: item for item in editable.with_code(installed_distributions())}
    assert again["mine.pth"].code != found["mine.pth"].code
    assert again["theirs"] == found["theirs"]


def test_target_folder_of_an_installer_is_not_editable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path / "vendored", "a")
    (tmp_path / "vendored/a-1.0.dist-info/INSTALLER").write_text("pip\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "vendored")])
    assert installed_distributions() == [Distribution("a", "1.0", "index", None)]


def test_this_environment_agrees_with_the_standard_library() -> None:
    found = {item.name: item.version for item in installed_distributions()}
    assert found["pytest"] == importlib.metadata.version("pytest")
    assert found["omegaconf"] == importlib.metadata.version("omegaconf")
    assert all(importlib.metadata.version(name) == version for name, version in found.items())


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.usefixtures("without_torch")
def test_torch_build_is_read_and_never_imported(site: Path) -> None:
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / "torch/version.py").write_text(
        "from typing import Optional\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        "__version__ = '2.9.1+rocm6.4'\n"
        "debug = False\n"
        "cuda: Optional[str] = None\n"
        "git_version = 'abc123'\n"
        "hip: Optional[str] = '6.4.43482'\n"
        "xpu: Optional[str] = None\n"
    )
    expected = {"version": "2.9.1+rocm6.4", "cuda": None, "hip": "6.4.43482", "git_version": "abc123", "debug": False}
    assert torch_build() == expected
    assert "torch" not in sys.modules


@pytest.mark.usefixtures("without_torch", "site")
def test_torch_that_is_not_installed() -> None:
    assert torch_build() == {"version": None, "cuda": None, "hip": None, "git_version": None, "debug": None}


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("text", [None, "cuda = = 1\n"], ids=["no-version-file", "damaged"])
def test_torch_without_a_readable_version(site: Path, text: str | None) -> None:
    (site / "torch").mkdir()
    (site / "torch/__init__.py").touch()
    if text is not None:
        (site / "torch/version.py").write_text(text)
    assert set(torch_build().values()) == {None}


def test_torch_of_this_environment_stays_out_of_the_process() -> None:
    code = (
        "import sys, importlib.metadata as m\n"
        "from pilotkit.provenance.packages import installed_distributions, torch_build\n"
        "installed_distributions()\n"
        "assert torch_build()['version'] == m.version('torch'), torch_build()\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_of_many_that_nobody_installed_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks: list[Path] = []

    def read(folder: Path, **options: Any) -> GitState:
        looks.append(folder)
        return read_git(folder, **options)

    monkeypatch.setattr(editable, "read_git", read)
    (tmp_path / "a.py").write_text("a = 1\n", encoding="utf-8")
    many = [Distribution(f"p{number}", "1.0", "editable", tmp_path.as_uri()) for number in range(300)]
    found = editable.with_code([*many, Distribution("q", "1.0", "index", None)])
    assert looks == [tmp_path]
    assert [item.name for item in found] == [*(item.name for item in many), "q"]
    assert len({item.code for item in found[:-1]}) == 1
    assert (found[0].code_state, found[-1].code) == ("unknown", None)
    assert found[0].code is not None
