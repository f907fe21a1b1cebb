"""Peak resident memory: the kernel's own figure, and what happens where the kernel does not tell or refuses."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pilotkit.meter import peak_rss_bytes, reset_peak_rss


def test_peak_rises_and_falls_with_a_reset() -> None:
    held = bytearray(64 * 1024**2)
    with_it = peak_rss_bytes()
    assert with_it is not None
    assert with_it >= psutil.Process().memory_info().rss - 1024**2
    del held
    if not reset_peak_rss():
        pytest.skip("this kernel does not let the peak be reset")
    after = peak_rss_bytes()
    assert after is not None
    assert after < with_it - 32 * 1024**2


def test_peak_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n")
    assert peak_rss_bytes(proc=tmp_path) == 2 * 1024**2


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert peak_rss_bytes(proc=tmp_path) is None
    (tmp_path / "status").write_text("Name:\tpython\n")
    assert peak_rss_bytes(proc=tmp_path) is None


def test_a_reset_that_is_refused(tmp_path: Path) -> None:
    assert reset_peak_rss(proc=tmp_path / "none") is False
    assert reset_peak_rss(proc=tmp_path) is True
    assert (tmp_path / "clear_refs").read_text() == "5"
