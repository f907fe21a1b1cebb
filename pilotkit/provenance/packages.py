"""Which distributions are installed and where each came from, and how torch was built.

Called for the lock and for every record. Reads metadata files only and imports none of the packages: torch is
described from the text of its own `torch/version.py`.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import site
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from pilotkit.provenance.digest import digest_of

Origin = Literal["index", "vcs", "editable", "local", "url"]

_TORCH_BUILD_NAMES = ("version", "cuda", "hip", "git_version", "debug")
_HEADERS = ("Name", "Version")
NO_VERSION = "none"
_SITE_NAMES = ("site-packages", "dist-packages")
# Python's `site` runs these lines or passes over them.
_NO_PATHS = ("#", "import ", "import\t")


@dataclass(frozen=True)
class Distribution:
    """One installed distribution; `name` is normalised (PEP 503).

    `source` is None for an index, `URL@commit` for a version control system, the folder as a `file:` URL for
    `editable`, and the URL, with `#sha256=...` where the installer kept it, for `local` and `url`. It never holds a
    user, a password or a token. `code` is a digest of what an editable install's folder holds, and `code_state` what
    git says about it; None for everything else.
    """

    name: str
    version: str
    origin: Origin
    source: str | None
    code: str | None = None
    code_state: str | None = None


def installed_distributions() -> list[Distribution]:
    """All distributions that this interpreter can import, by name; of two with one name the one found first.

    Among them, as editable, the folders of `.pth` files that belong to none.
    """
    found: dict[str, Distribution] = {}
    for installed in importlib.metadata.distributions():
        name, version = _name_and_version(installed)
        if not name or not version:  # left behind by an interrupted installer
            continue
        normalised = re.sub(r"[-_.]+", "-", name).lower()
        if normalised not in found:
            origin, source = _origin(installed)
            found[normalised] = Distribution(normalised, version, origin, source)
    found.update({item.name: item for item in _of_path_files([item.source for item in found.values()])})
    return [found[name] for name in sorted(found)]


def torch_build() -> dict[str, Any]:
    """How the installed torch was built: `version`, `cuda`, `hip`, `git_version`, `debug`; each None when unknown.

    Read from the text of `torch/version.py`, which torch's own build writes as plain assignments.
    """
    build: dict[str, Any] = dict.fromkeys(_TORCH_BUILD_NAMES)
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a stand-in in sys.modules without a spec
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            tree = ast.parse(Path(folder, "version.py").read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        for name, value in _literals(tree):
            key = "version" if name == "__version__" else name
            if key in build:
                build[key] = value
        return build
    return build


def _of_path_files(sources: Sequence[str | None]) -> list[Distribution]:
    """Folders that a `.pth` file puts on the path and that belong to no distribution: code without name and version.

    Named by the file. `sources` are those of the distributions: what lies in an editable one is pinned with it.
    """
    known = [Path(unquote(urlsplit(source).path)) for source in sources if source and source.startswith("file:")]
    found = []
    for site_folder in dict.fromkeys(Path(text) for text in sys.path if Path(text).name in _SITE_NAMES):
        for file in sorted(site_folder.glob("*.pth")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            paths = [site_folder / line.strip() for line in lines if line.strip() and not line.startswith(_NO_PATHS)]
            new = [path for path in paths if path.is_dir() and path.name not in _SITE_NAMES]
            new = [path for path in new if not any(path.is_relative_to(folder) for folder in known)]
            for number, path in enumerate(new, start=1):
                name = file.name if number == 1 else f"{file.name}#{number}"
                found.append(Distribution(name, NO_VERSION, "editable", path.absolute().as_uri()))
    return found


def _name_and_version(installed: importlib.metadata.Distribution) -> tuple[str | None, str | None]:
    """Both from the head of the metadata: the standard library's parser reads the whole description, ten times as long.

    The files are looked for in its order; the last is an `.egg-info` that is a file itself.
    """
    text = next((text for name in ("METADATA", "PKG-INFO", "") if (text := installed.read_text(name))), "")
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    found = [re.search(rf"^{field}:[ \t]*(\S.*?)[ \t\r]*$", head, re.MULTILINE | re.IGNORECASE) for field in _HEADERS]
    name, version = (match[1] if match else None for match in found)
    return name, version


def _literals(tree: ast.Module) -> list[tuple[str, Any]]:
    """Names that a module assigns a literal to at its top level, in order."""
    found: list[tuple[str, Any]] = []
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Constant):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found += [(target.id, node.value.value) for target in targets if isinstance(target, ast.Name)]
    return found


def _origin(installed: importlib.metadata.Distribution) -> tuple[Origin, str | None]:
    """Where a distribution came from, by its `direct_url.json` (PEP 610); without one it came from an index."""
    text = installed.read_text("direct_url.json")
    if text is None:
        if _is_source_tree(installed):
            return "editable", Path(str(installed.locate_file(""))).absolute().as_uri()
        return "index", None
    try:
        direct = json.loads(text)
        url = _without_secrets(str(direct["url"]))
    except (ValueError, KeyError, TypeError):
        return "url", None
    if "vcs_info" in direct:
        return "vcs", f"{direct['vcs_info'].get('vcs', 'vcs')}+{url}@{direct['vcs_info'].get('commit_id')}"
    if "dir_info" in direct:
        return ("editable" if direct["dir_info"].get("editable") else "local"), url
    source = f"{url}{_archive_hash(direct.get('archive_info', {}))}"
    return ("local" if url.startswith("file:") else "url"), source


def _archive_hash(archive: dict[str, Any]) -> str:
    hashes = archive.get("hashes") or {}
    if "sha256" in hashes:
        return f"#sha256={hashes['sha256']}"
    if archive.get("hash"):  # the older form of PEP 610
        return f"#{archive['hash']}"
    return f"#{digest_of(hashes)}" if hashes else ""


def _without_secrets(url: str) -> str:
    """The URL without user, password, query and fragment: tokens and signatures live in these."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _is_source_tree(installed: importlib.metadata.Distribution) -> bool:
    """True for a checkout on the path (an `.egg-info` beside the source), which no installer has put there."""
    if installed.read_text("INSTALLER") is not None:
        return False
    folder = Path(str(installed.locate_file("")))
    paths = sysconfig.get_paths()
    installed_to = {paths["purelib"], paths["platlib"], site.getusersitepackages(), *site.getsitepackages()}
    return str(folder) not in installed_to and folder.name not in ("site-packages", "dist-packages")
