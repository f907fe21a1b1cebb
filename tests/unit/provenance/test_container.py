"""Case R98: what pins a container image."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pilotkit.errors import ConfigError
from pilotkit.provenance import container
from pilotkit.provenance.container import Container, read_container, running_in_container

DIGEST = "sha256:" + "0123456789abcdef" * 4
ALLOWED = "name@sha256:<64 hex digits>, name:tag@sha256:<64 hex digits>, or a .sif file; name:tag alone is not pinned"


@pytest.mark.parametrize(
    "image",
    [f"org/x@{DIGEST}", f"org/x:1.2@{DIGEST}", f"registry.example.org:5000/org/x@{DIGEST}", f"docker://org/x@{DIGEST}"],
    ids=["name", "name-and-tag", "registry-with-port", "apptainer-url"],
)
def test_digest_is_locked(image: str) -> None:
    assert read_container(image) == Container(image, DIGEST, True, "")


@pytest.mark.parametrize("image", ["org/x:1.2", "org/x", "org/x:latest"])
def test_tag_alone_is_not_locked(image: str) -> None:
    reason = "a tag is not identity: the same name can be another image tomorrow"
    assert read_container(image) == Container(image, None, False, reason)


@pytest.mark.parametrize(
    ("image", "fix"),
    [
        pytest.param(
            f"org/x@{DIGEST[:-1]}",
            "the digest has 63 hex digits instead of 64; copy it whole from your registry",
            id="63",
        ),
        pytest.param(
            f"org/x@{DIGEST}0", "the digest has 65 hex digits instead of 64; copy it whole from your registry", id="65"
        ),
        *(
            pytest.param(image, "copy the digest from your registry, in lower case and without spaces", id=name)
            for name, image in {
                "upper-case": f"org/x@{DIGEST[:-1]}F",
                "not-hex": f"org/x@{DIGEST[:-1]}g",
                "no-name": f"@{DIGEST}",
                "two-digests": f"org/x@{DIGEST}@{DIGEST}",
                "other-algorithm": "org/x@md5:0123",
                "space": f"org/x @{DIGEST}",
                "newline": f"org/x@{DIGEST}\n",
                "empty": "",
            }.items()
        ),
    ],
)
def test_malformed_digest_is_a_config_error(image: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_container(image)
    assert [str(problem) for problem in caught.value.problems] == [
        f"image={image}\n    allowed: {ALLOWED}\n    to mend: {fix}"
    ]


def test_sif_file_is_locked_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "x.sif").write_bytes(b"image")
    expected = f"sha256:{hashlib.sha256(b'image').hexdigest()}"
    assert read_container("x.sif", launch_dir=tmp_path) == Container("x.sif", expected, True, "")
    assert read_container(f"{tmp_path}/x.sif").digest == expected


def test_missing_sif_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_container("x.sif", launch_dir=tmp_path)
    assert str(caught.value.problems[0]) == (
        f"image=x.sif\n    allowed: {ALLOWED}\n    to mend: {tmp_path}/x.sif cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(None, ""), ("docker", "runs inside a container (docker) whose image is not named")],
    ids=["outside", "inside"],
)
def test_no_image(monkeypatch: pytest.MonkeyPatch, kind: str | None, reason: str) -> None:
    monkeypatch.setattr(container, "running_in_container", lambda **_: kind)
    assert read_container(None) == Container(None, None, False, reason)


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        pytest.param({"proc/1/cgroup": "0::/init.scope\n"}, {}, None, id="bare"),
        pytest.param({}, {"container": ""}, None, id="nothing-known"),
        pytest.param({".dockerenv": ""}, {}, "docker", id="docker"),
        pytest.param({"run/.containerenv": ""}, {"container": "podman"}, "podman", id="podman"),
        pytest.param({".dockerenv": ""}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer", id="apptainer"),
        pytest.param({".singularity.d/runscript": ""}, {}, "apptainer", id="singularity"),
        pytest.param({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", id="kubernetes"),
        pytest.param({"proc/1/cgroup": "12:cpu:/docker/ab12\n"}, {}, "docker", id="cgroup-docker"),
        pytest.param({"proc/1/cgroup": "1:x:/kubepods/besteffort/pod1\n"}, {}, "kubernetes", id="cgroup-kubernetes"),
        pytest.param({}, {"container": "systemd-nspawn"}, "systemd-nspawn", id="variable"),
    ],
)
def test_running_in_container(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: str | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert running_in_container(root=tmp_path, environ=environ) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            f'engine="podman-4.9"\nname="run"\nimage="org/x:1.2"\nimageid="{"0a" * 32}"\n',
            Container("org/x:1.2", "sha256:" + "0a" * 32, True),
        ),
        ("", Container(None, None, False, "runs inside a container (podman) whose image is not named")),
    ],
    ids=["privileged", "nothing is told"],
)
def test_podman_leaves_the_image_inside(tmp_path: Path, told: str, expected: Container) -> None:
    """Recorded form of /run/.containerenv (podman-run(1)); empty unless the container is privileged."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").write_text(told)
    assert read_container(None, root=tmp_path, environ={}) == expected


def test_apptainer_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.sif").write_bytes(b"image")
    found = read_container(None, root=tmp_path, environ={"APPTAINER_CONTAINER": "/images/a.sif"})
    assert found == Container("/images/a.sif", f"sha256:{hashlib.sha256(b'image').hexdigest()}", True)
    gone = read_container(None, root=tmp_path, environ={"APPTAINER_CONTAINER": "/images/b.sif"})
    assert gone.reason == "runs inside a container (apptainer) whose image is not named"


def test_the_variable_names_the_image_and_the_option_wins(tmp_path: Path) -> None:
    variables = {"PILOTKIT_IMAGE": f"org/x@{DIGEST}"}
    assert read_container(None, root=tmp_path, environ=variables).digest == DIGEST
    assert read_container("org/y:1", root=tmp_path, environ=variables).image == "org/y:1"
