"""Find the source of a factory (`package.module:callable`) without importing it.

Called by `pilotkit.provenance.revisions`. An import would run the user's code, and with it torch, in the driver.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pilotkit.provenance.digest import digest_files
from pilotkit.stdlib_text import files_below

# What Python may import from a package folder; data beside the code belongs to the data's own revision.
_CODE_SUFFIXES = (".py", ".so", ".pyd")


@dataclass(frozen=True)
class Source:
    """Code that a factory lives in: the module's own file, and the digest of every code file of its top package."""

    module: str
    file: Path
    digest: str


def find_source(factory: str, *, launch_dir: Path) -> Source | None:
    """Locate the factory's module; None when no file on the Python path holds it.

    `launch_dir` comes first, as it does for the workers, which start with `python -m`, except under PYTHONSAFEPATH.
    The digest covers the whole top package, since a factory in `pkg.models` is made of what else `pkg` holds.
    Raises OSError when a file cannot be read.
    """
    module = factory.partition(":")[0]
    top, *rest = module.split(".")
    if not all(part.isidentifier() for part in (top, *rest)):
        return None
    spec = top_spec = _find_top(top, launch_dir=launch_dir)
    name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        # Unlike importlib.util.find_spec, which imports the parents of a dotted name.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None or top_spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin)
    return Source(module, file, _digest_code(top_spec, file=file))


def _find_top(name: str, *, launch_dir: Path) -> ModuleSpec | None:
    try:
        if getattr(sys.flags, "safe_path", False):
            # Python was told not to look there first: the path of a sweep's job begins with the code that was kept.
            return importlib.util.find_spec(name) or PathFinder.find_spec(name, [str(launch_dir)])
        return PathFinder.find_spec(name, [str(launch_dir)]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module without a spec, such as one made by hand in sys.modules
        return None


def digest_package(root: Path, *, key: str) -> str:
    """Of the code below a package's folder. Raises ConfigError on `key` where a folder cannot be listed, OSError where
    a file cannot be read."""
    code = [path for path in files_below(root, key=key) if path.suffix in _CODE_SUFFIXES]
    return digest_files([path for path in code if "__pycache__" not in path.parts], root=root)


def _digest_code(top: ModuleSpec, *, file: Path) -> str:
    if top.has_location and top.submodule_search_locations is not None:
        return digest_package(Path(str(top.origin)).parent, key="factory")
    # One module, or a namespace package, which has no boundary: only the module's own file.
    return digest_files([file], root=file.parent)
