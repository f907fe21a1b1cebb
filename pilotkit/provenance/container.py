"""Which container image the run uses, and whether that name can mean only one image.

Called for the lock. A tag can be built again on another base, so only a digest pins an image. Never asks a registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotkit.errors import ConfigError, Problem
from pilotkit.provenance.digest import digest_file

IMAGE_VARIABLE = "PILOTKIT_IMAGE"
_ALLOWED = "name@sha256:<64 hex digits>, name:tag@sha256:<64 hex digits>, or a .sif file; name:tag alone is not pinned"
# The OCI image specification writes digests in lower case.
_PINNED = re.compile(r"[^\s@]+@(?P<digest>sha256:[0-9a-f]{64})")
_CONTROL_GROUPS = (("libpod", "podman"), ("docker", "docker"), ("kubepods", "kubernetes"), ("containerd", "containerd"))


@dataclass(frozen=True)
class Container:
    """The image as the user named it and what it is pinned to (`sha256:<64 hex>`); `reason` says why it is not."""

    image: str | None
    digest: str | None
    locked: bool
    reason: str = ""


def read_container(
    image: str | None,
    *,
    launch_dir: Path | None = None,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
) -> Container:
    """Judge the option `image`, else PILOTKIT_IMAGE, else what the runtime says. A `.sif` file is pinned by its hash.

    A relative `.sif` starts at `launch_dir`, by default the working directory. Without an image the reason is
    empty outside a container and says so inside one. Raises ConfigError on `image` for a malformed digest, an
    empty name, or a `.sif` file that cannot be read. `root` and `environ` stand in for the real ones.
    """
    variables = os.environ if environ is None else environ
    image = variables.get(IMAGE_VARIABLE) if image is None else image
    if image is None:
        return _of_runtime(root, variables)
    return _judge(image, launch_dir=launch_dir)


def _of_runtime(root: Path, variables: Mapping[str, str]) -> Container:
    """Apptainer names its file; Podman leaves name and id of the image inside; Docker and Kubernetes tell nothing."""
    kind = running_in_container(root=root, environ=variables)
    if kind is None:
        return Container(None, None, False)
    file = variables.get("APPTAINER_CONTAINER") or variables.get("SINGULARITY_CONTAINER") or ""
    if file.endswith(".sif") and (root / file.lstrip("/")).is_file():
        return Container(file, f"sha256:{digest_file(root / file.lstrip('/'))}", True)
    try:
        told = (root / "run/.containerenv").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    fields = dict(re.findall(r'^(\w+)="([^"]*)"$', told, re.MULTILINE))
    identifier = fields.get("imageid", "").removeprefix("sha256:")
    if re.fullmatch(r"[0-9a-f]{64}", identifier):
        return Container(fields.get("image"), f"sha256:{identifier}", True)
    return Container(None, None, False, f"runs inside a container ({kind}) whose image is not named")


def _judge(image: str, *, launch_dir: Path | None) -> Container:
    if "@" in image or not image.strip() or re.search(r"\s", image):
        match = _PINNED.fullmatch(image)
        if match is None:
            raise ConfigError([_malformed(image)])
        return Container(image, match["digest"], True)
    if image.endswith(".sif"):
        path = (launch_dir or Path()) / Path(image).expanduser()
        try:
            return Container(image, f"sha256:{digest_file(path)}", True)
        except OSError as error:
            fix = f"{path.absolute()} cannot be read: {error.strerror}"
            raise ConfigError([Problem(key="image", value=image, allowed=_ALLOWED, fix=fix)]) from error
    return Container(image, None, False, "a tag is not identity: the same name can be another image tomorrow")


def running_in_container(*, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> str | None:
    """Name of the container runtime around this process, or None. `root` and `environ` stand in for the real ones."""
    variables = os.environ if environ is None else environ
    if "APPTAINER_CONTAINER" in variables or "SINGULARITY_CONTAINER" in variables or (root / ".singularity.d").exists():
        return "apptainer"
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    try:
        groups = (root / "proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        groups = ""
    for word, name in _CONTROL_GROUPS:
        if word in groups:
            return name
    return variables.get("container") or None  # systemd's convention, kept by podman and nspawn


def _malformed(image: str) -> Problem:
    digest = image.partition("@")[2]
    algorithm, _, hexadecimal = digest.partition(":")
    if algorithm == "sha256" and re.fullmatch(r"[0-9a-fA-F]*", hexadecimal) and len(hexadecimal) != 64:
        fix = f"the digest has {len(hexadecimal)} hex digits instead of 64; copy it whole from your registry"
    else:
        fix = "copy the digest from your registry, in lower case and without spaces"
    return Problem(key="image", value=image, allowed=_ALLOWED, fix=fix)
