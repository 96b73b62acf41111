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


def test_a_narrow_column_is_shown_no_narrower_than_it_says(monkeypatch, tmp_path):
  """0.2 points are not to look like much."""
  pictured = []
  save = pictures.durable_files.save_picture
  monkeypatch.setattr(
    pictures.durable_files,
    "save_picture",
    lambda picture, path: (pictured.append(picture), save(picture, path)),
  )
  column = pictures.Points("x (%)", [(90.0, 0.0), (90.2, 0.0)], [None, None], 5.0)
  pictures.draw_table("x", ["a", "b"], [column], str(tmp_path / "x.png"))
  low, high = pictured[0].axes[0].get_xlim()
  assert high - low >= 5.0 - 1e-9 and low < 90 < high
