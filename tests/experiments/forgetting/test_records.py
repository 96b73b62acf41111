"""The table and the pictures of forgetting.py, by hand."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import figure

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
  assert text.split("\n")[-1] == "Rounds measured: 2, 2 to 4."
  found = [records.FisherRow(2, "a", c) for c in (0.0, 0.5, 1.0, float("nan"))]
  assert "0.50 (median), 0.25 to 0.75" in records.table(_ROWS, found)


def test_who_forgets_nothing_has_no_increase(read_table):
  [line, _] = read_table(records.table([*_ROWS, records.Row(4, "fedavg", "c", 1, 1)], []))
  # Increases of 2, -1/4 and 0.
  assert line == ["fedavg", "0.833", "1.417", "0.583", "0.000", "33 %"]


def test_where_a_local_model_diverged_nobody_is_counted(read_table):
  rows = [*_ROWS, records.Row(4, "fedavg", "c", 0.5, float("nan"))]
  [line, other] = read_table(records.table(rows, []))
  assert line == ["fedavg", "0.667", *["nan"] * 3, "nan %"]
  assert other[-1] == "100 %"


def test_names_of_clients_come_back(tmp_path):
  """Also those with what ends a line for Python, but not in a CSV."""
  rows = [
    records.Row(2, "fedavg", name, 1.0, 2.0)
    for name in ("a,b", 'a"b', "a\nb", "a\x0bb", "a\x1cb", "a\x85b", "a\u2028b")
  ]
  path = tmp_path / "rows.csv"
  file = records.RowFile(str(path), records.Row)
  file.cut(lambda t: True)
  file.add(rows)
  with open(path, "a") as f:
    f.write("2,fedavg,c,1.0,2.")
  assert records.read_rows(str(path), records.Row) == rows


def test_names_of_clients_are_written_in_any_locale(tmp_path):
  code = (
    "import sys; from experiments.forgetting import records as r; "
    "rows = [r.Row(2, 'fedavg', chr(235), 1.0, 2.0)]; "
    "file = r.RowFile(sys.argv[1], r.Row); file.cut(bool); file.add(rows); "
    "file.cut(bool); assert r.read_rows(sys.argv[1], r.Row) == rows"
  )
  ascii_only = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
  subprocess.run(
    [sys.executable, "-c", code, str(tmp_path / "rows.csv")],
    env={**os.environ, **ascii_only, "PYTHONPATH": os.pathsep.join(sys.path)},
    check=True,
  )


@pytest.mark.parametrize("rounds", [(2,), (2, 4)])
def test_band_is_of_the_quartiles(rounds):
  axes = figure.Figure().subplots()
  values = [9.0, 1.0, 3.0, 2.0, 4.0]  # In order 1, 2, 3, 4, 9.
  more = [10.0 * k for k in range(len(rounds))]  # Than in the first round.
  places = np.repeat(rounds, len(values))
  records._band(axes, list(places), [v + m for m in more for v in values])
  [line], [band] = axes.lines, axes.collections
  assert list(line.get_ydata()) == [3.0 + m for m in more]
  [path, *_] = band.get_paths()
  assert set(path.vertices[:, 1]) == {v + m for v in (2.0, 4.0) for m in more}


def test_pictures_are_drawn_of_one_and_of_several_rounds(tmp_path):
  for rows in (_ROWS[:2], _ROWS):
    records.draw_losses(rows, str(tmp_path / "a.png"), "x")
    records.draw_increase(rows, [], str(tmp_path / "b.png"), "x")
  for name in ("a.png", "b.png"):
    assert (tmp_path / name).stat().st_size > 5000
