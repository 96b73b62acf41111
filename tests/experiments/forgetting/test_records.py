"""The table and the pictures of forgetting.py, by hand."""

from __future__ import annotations

from experiments.forgetting import records

_ROWS = [
  records.Row(2, "fedavg", "a", 1.0, 3.0),
  records.Row(2, "fedreg", "a", 1.0, 1.5),
  records.Row(4, "fedavg", "b", 0.5, 0.25),
  records.Row(4, "fedreg", "b", 0.5, 1.0),
]


def test_table_by_hand(read_table):
  text = records.table(_ROWS, [])
  assert read_table(text) == [
    ["fedavg", "0.750", "1.625", "0.875", "0.875", "50 %"],
    ["fedreg", "0.750", "1.250", "0.500", "0.500", "100 %"],
  ]
  assert text.split("\n")[-1] == "2 rounds were measured, 2 to 4."
  found = [records.FisherRow(2, "a", c) for c in (0.0, 0.5, 1.0, float("nan"))]
  assert "0.50 (median), 0.25 to 0.75" in records.table(_ROWS, found)


def test_pictures_are_drawn_of_one_and_of_several_rounds(tmp_path):
  for rows in (_ROWS[:2], _ROWS):
    records.draw_losses(rows, str(tmp_path / "a.png"), "x")
    records.draw_increase(rows, [], str(tmp_path / "b.png"), "x")
  for name in ("a.png", "b.png"):
    assert (tmp_path / name).stat().st_size > 5000
