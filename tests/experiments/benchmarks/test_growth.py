"""The picture of what grows, by its lines."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks import growth, workloads


def _row(workload, framework, seconds, failure=None):
  return {
    "workload": workload,
    "framework": framework,
    "median_seconds": seconds,
    "peak_memory_mb": 600,
    "failure": failure,
  }


def test_each_framework_has_its_points_in_order_of_size(tmp_path):
  rows = [
    _row("clients_1000", "bare", 3.0),
    _row("clients_10", "bare", 1.0),
    _row("clients_10", "in_process", 2.0),
    _row("clients_100", "in_process", None, failure="It ended."),
    _row("weights_10000", "bare", 5.0),
    _row("A", "bare", 9.0),
  ]
  seconds = growth.draw(rows).axes[:3]
  lines = [
    {line.get_label(): line.get_xydata().tolist() for line in frame.lines}
    for frame in seconds
  ]
  assert lines == [
    {"bare": [[10, 1], [1000, 3]], "in_process": [[10, 2]]},
    {},
    {"bare": [[10_000, 5]]},
  ]
  for name, some in (("one", rows[:3]), ("two", rows[3:])):
    (tmp_path / name).mkdir()
    (tmp_path / name / "summary.jsonl").write_text("\n".join(map(json.dumps, some)))
  growth.main(str(tmp_path))
  assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_folder_without_benchmarks_is_one_sentence(tmp_path):
  with pytest.raises(SystemExit, match="holds no folder of a benchmark"):
    growth.main(str(tmp_path))
  assert not list(tmp_path.iterdir())


def test_sizes_are_what_names_say():
  for name, row in workloads.WORKLOADS.items():
    kind, _, size = name.partition("_")
    if kind in ("clients", "population"):
      assert row.num_clients == int(size)
      assert len(row.cohort(0)) == (100 if kind == "population" else int(size))
    elif kind == "weights":
      weights = 784 * row.width + row.width + 10 * row.width + 10
      assert abs(weights / int(size) - 1) < 0.05
