"""The picture of a table."""

from __future__ import annotations

from experiments.tables import pictures


def test_column_without_a_number_gets_no_frame(tmp_path):
  known = pictures.Points("known", [(1.0, 0.5), (None, 0.0)], [2.0, None])
  empty = pictures.Points("empty", [(None, 0.0)] * 2, [None] * 2)
  for name, columns in (("one", [known]), ("both", [empty, known]), ("none", [empty])):
    pictures.draw_table("x", ["a", "b"], columns, str(tmp_path / f"{name}.png"))
  one, both, none = (
    (tmp_path / f"{n}.png").read_bytes() for n in ("one", "both", "none")
  )
  assert both == one != none
