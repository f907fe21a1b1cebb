"""What the points of a sweep leave for each other; nothing of it is needed for a point to run."""

from __future__ import annotations

from pathlib import Path

from pilotkit.records.shared_traces import read_found, read_shapes, write_found, write_shapes


def test_shapes_of_one_kind(tmp_path: Path) -> None:
    assert read_shapes(tmp_path, "kind") == []
    write_shapes(tmp_path, "kind", [(8, 128), (4, 128), (8, 128)])
    assert read_shapes(tmp_path, "kind") == [(4, 128), (8, 128)]
    assert read_shapes(tmp_path, "another") == []


def test_what_was_found_for_another_point(tmp_path: Path) -> None:
    write_shapes(tmp_path, "kind", [(8, 128), (4, 128)])
    assert read_found(tmp_path, "kind", (8, 128)) is None
    found = {"run_id": "20260301-1", "result": {"metrics": {"num_params": 7}}}
    write_found(tmp_path, "kind", (8, 128), found)
    assert read_found(tmp_path, "kind", (8, 128)) == found


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    write_shapes(tmp_path, "kind", [(8, 128), (4, 128)])
    path = tmp_path / "traces" / "kind" / "8x128.json"
    for content in ("", "[]", '{"run_id": "x"}'):
        path.write_text(content)
        assert read_found(tmp_path, "kind", (8, 128)) is None
