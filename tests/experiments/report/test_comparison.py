"""The table of several runs, worked out by hand."""

from __future__ import annotations

from experiments.report import comparison
from experiments.run_folder.reading import read_run


def test_table_gives_best_final_and_the_way_to_the_target(
  write_run, read_table, tmp_path
):
  run = read_run(write_run(tmp_path / "a"))
  known = ["a", "75.00 % (round 3)", "50.00 %", "4", "6"]
  assert read_table(comparison.table([run], 0.75)) == [[*known, "3", "6"]]
  assert read_table(comparison.table([run], 0.8)) == [[*known, "not reached", ""]]
  assert read_table(comparison.table([run], None)) == [known]


def test_rounds_and_megabytes_are_of_all_rounds(write_run, read_table, tmp_path):
  rounds = ["1,1,0.4,1,0,1000000,0", "2,1,0.5,1,0,1000000,0", "3,1,,1,0,1000000,0"]
  run = read_run(write_run(tmp_path / "a", rounds=rounds))
  [row] = read_table(comparison.table([run], None))
  assert row[2:] == ["50.00 %", "3", "3"]


def test_every_line_has_as_many_cells_as_the_head(write_run, read_table, tmp_path):
  run = read_run(write_run(tmp_path / "a"))
  for target in (None, 0.5, 0.9):
    assert len(read_table(comparison.table([run, run], target))) == 2
