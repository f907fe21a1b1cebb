"""Extensions: loaded, and used. That a module can be imported says nothing about its kernels.

Called by phase `qualify`. An extension counts as used when, during one real step, an operator that it registered was
dispatched, or a function of its compiled modules was called.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from pilotkit.errors import ConfigError
from pilotkit.provenance.digest import digest_files
from pilotkit.provenance.source import digest_package
from pilotkit.worker.qualify.rows import FAIL, PASS, Row, words_of

# What a compiled module that launches kernels is linked with (DT_NEEDED names).
_LIBRARIES = {
    "cuda": (b"libcudart", b"libc10_cuda", b"libtorch_cuda", b"libcuda.so"),
    "rocm": (b"libamdhip64", b"libc10_hip", b"libtorch_hip"),
}


@dataclass
class Extension:
    """One import name, what importing it did, and what of it was called in the step."""

    name: str
    error: str = ""
    warning: str = ""
    operators: frozenset[str] = frozenset()
    native_calls: set[str] = field(default_factory=set)
    python_calls: set[str] = field(default_factory=set)

    def describe(self) -> dict[str, Any]:
        """What identifies it, for the set: by content, as one that was built again keeps its version."""
        module = sys.modules.get(self.name)
        version, digest = _version(self.name, module), _digest(module)
        return {"version": version, "digest": digest, "operators": sorted(self.operators)}


def load_extensions(names: Sequence[str]) -> list[Extension]:
    """Import each and note which operators that registers; one that is imported already is credited by its name."""
    found = []
    for name in names:
        before = _registered()
        extension = Extension(name)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                importlib.import_module(name)
            extension.warning = str(caught[0].message).splitlines()[0] if caught else ""
        except Exception as error:
            extension.error = words_of(error)
        new = _registered() - before
        top = name.partition(".")[0]
        extension.operators = frozenset(new or {op for op in before if op.partition("::")[0] == top})
        found.append(extension)
    return found


@contextmanager
def watch_calls(extensions: Sequence[Extension]) -> Iterator[None]:
    """Note which functions of the extensions this thread calls meanwhile."""
    if not extensions:
        yield
        return
    before = sys.getprofile()
    sys.setprofile(_Watcher(extensions))
    try:
        yield
    finally:
        sys.setprofile(before)


class _Watcher:
    """A profile function: told of every call of Python and of compiled functions."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._by_top = {extension.name.partition(".")[0]: extension for extension in extensions}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            extension = self._by_top.get(_home(arg))
            if extension is not None:
                extension.native_calls.add(str(getattr(arg, "__name__", arg)))
        elif event == "call":
            extension = self._by_top.get(str(frame.f_globals.get("__name__", "")).partition(".")[0])
            if extension is not None:
                extension.python_calls.add(frame.f_code.co_name)


def judge_extension(extension: Extension, *, seen: frozenset[str], device_type: str) -> Row:
    """`seen` are the operators of the step, as `namespace::name`; `device_type` what they are to be built for."""
    check = "extension"
    if extension.error:
        return Row(check, extension.name, FAIL, f"cannot be imported: {extension.error}")
    wrong = _built_for_another(extension.name, device_type=device_type)
    if wrong:
        return Row(check, extension.name, FAIL, wrong)
    used = sorted(extension.operators & seen)
    native = sorted(extension.native_calls)
    if used or native:
        what = f"operators {', '.join(used)}" if used else f"compiled functions {', '.join(native[:5])}"
        return Row(check, extension.name, PASS, f"used in the step: {what}")
    note = "is imported, but no kernel of it ran in the step: "
    note += f"{len(extension.operators)} operators registered, none dispatched; no compiled function called"
    if extension.python_calls:
        note += f" (only Python: {', '.join(sorted(extension.python_calls)[:3])})"
    if extension.warning:
        note += f"; importing it warned: {extension.warning}"
    return Row(check, extension.name, FAIL, note)


def _built_for_another(name: str, *, device_type: str) -> str:
    """Compiled modules that name no library of the device's vendor run on the CPU, whatever torch.cuda says."""
    if device_type == "cpu":
        return ""
    module = sys.modules.get(name)
    folders = [Path(folder) for folder in getattr(module, "__path__", [])]
    file = getattr(module, "__file__", None)
    files = [path for folder in folders for path in folder.rglob("*.so")]
    files += [Path(file)] if file and file.endswith(".so") else []
    if not files or any(library in path.read_bytes() for path in files for library in _LIBRARIES[device_type]):
        return ""
    names = ", ".join(sorted(path.name for path in files)[:3])
    return f"is not built for {device_type}: none of its compiled modules ({names}) names a library of it"


def judge_kernel(name: str, *, seen: frozenset[str], device_type: str) -> Row:
    """An operator that the user counts on has to be registered, have a kernel for the device, and be used."""
    if name in seen:
        return Row("kernel", name, PASS, "dispatched in the step")
    if name not in _registered():
        return Row("kernel", name, FAIL, "no operator of this name is registered; is its extension in the list?")
    key = "CPU" if device_type == "cpu" else "CUDA"
    keys = (key, "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, candidate) for candidate in keys):
        return Row("kernel", name, FAIL, f"is registered, but has no kernel for {key}")
    return Row("kernel", name, FAIL, "is registered, but was not used in the step")


def _registered() -> frozenset[str]:
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return frozenset(name.partition(".")[0] for name in names)


def _home(function: Any) -> str:
    """Top module of a compiled function: of its own name, or of the module object that it is bound to."""
    module = getattr(function, "__module__", None)
    if module is None:
        owner = getattr(function, "__self__", None)
        module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    return str(module).partition(".")[0]


def _digest(module: ModuleType | None) -> str | None:
    """Of the code that Python loads from the module's folder, or of its one file; None when there is no such file."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    folders = [Path(folder) for folder in getattr(module, "__path__", [])]
    try:
        if folders:
            return digest_package(folders[0], key="qualify.extensions")
        return digest_files([Path(file)], root=Path(file).parent)
    except (OSError, ConfigError):
        return None


def _version(name: str, module: ModuleType | None) -> str:
    for distribution in importlib.metadata.packages_distributions().get(name.partition(".")[0], []):
        return importlib.metadata.version(distribution)
    return str(getattr(module, "__version__", "unknown"))
