"""The numbers of several runs in tables and figures."""

from __future__ import annotations

import csv
import os
import pathlib

import pytest

from experiments.tables import measures, program, writing
from experiments.tables.cells import Settings
from experiments.tables.model import Cell, Column, Figure, Panel, Row, Table
from tff_algos.errors import InputError


def _settings_with(write_run, tmp_path, accuracies: dict) -> Settings:
  """Runs of one round: `{(cell, seed): accuracy}`."""
  for (cell, seed), accuracy in accuracies.items():
    folder = tmp_path / "runs" / cell / f"seed{seed}"
    write_run(folder, rounds=[f"1,1.0,{accuracy},1.0,0,10,10"])
  return Settings(str(tmp_path), seeds=range(1 + max(seed for _, seed in accuracies)))


def _row(*names: str) -> Row:
  made = tuple(Cell(name, "fedavg", "digits_cnn", 1) for name in names)
  return Row(("row",), made, {"best accuracy": 50.0, "rounds": "-"})


_COLUMNS = (
  Column("best accuracy", measures.best, "%", 1),
  Column("rounds", measures.rounds_to(0.5)),
)


@pytest.fixture
def write_table(read_table):
  """`(table, settings) -> rows`: writes it, and gives the rows of the Markdown."""

  def write(table: Table, settings: Settings) -> list[list[str]]:
    path, _ = writing.write_table(table, "table1", settings)
    return read_table(pathlib.Path(path).read_text())

  return write


@pytest.fixture
def cells_of_row(write_run, write_table):
  """`(folder, row, accuracies, **options of Table) -> cells` of a table of one row."""

  def cells(folder, row: Row, accuracies, **options) -> list[str]:
    settings = _settings_with(write_run, folder, accuracies)
    [found] = write_table(Table("T", ("label",), _COLUMNS, (row,), **options), settings)
    return found

  return cells


def test_repeats_give_mean_and_sample_standard_deviation(cells_of_row, tmp_path):
  # Of 40, 50 and 60: 50 and sqrt((100 + 0 + 100) / 2); two of three reach one half.
  accuracies = {("a", 0): 0.4, ("a", 1): 0.5, ("a", 2): 0.6}
  found = cells_of_row(tmp_path, _row("a"), accuracies)
  assert found == ["row", "50.0 ± 10.0", "50.0", "+0.0", "1 ± 0.0 (2 of 3)", "-", ""]


def test_row_of_several_cells_takes_their_mean_or_the_best(cells_of_row, tmp_path):
  accuracies = {("a", 0): 0.4, ("b", 0): 0.8}
  row = _row("a", "b")
  mean = cells_of_row(tmp_path / "mean", row, accuracies)
  assert mean[:4] == ["row", "60.0 ± 28.3", "50.0", "+10.0"]
  most = cells_of_row(tmp_path / "most", row, accuracies, of_several="most")
  assert most[:4] == ["row", "80.0", "50.0", "+30.0"]
  assert most[-1] == "b"
  least = cells_of_row(tmp_path / "least", row, accuracies, of_several="least")
  assert least[:5] == ["row", "40.0", "50.0", "-10.0", "not reached"]
  assert least[-1] == "a"


def test_each_of_several_cells_counts_once(cells_of_row, tmp_path):
  # Of a 50, so that with b it is 65 and sqrt(2 * 15^2); over all runs 60.
  accuracies = {("a", 0): 0.4, ("a", 1): 0.6, ("b", 0): 0.8}
  found = cells_of_row(tmp_path, _row("a", "b"), accuracies)
  assert found[:5] == ["row", "65.0 ± 21.2", "50.0", "+15.0", "1 ± 0.0 (2 of 3)"]


def test_rate_that_reached_its_mark_is_better_than_one_that_did_not_or_was_not_run(
  write_run, write_table, tmp_path
):
  """Each of three learning rates in turn is the one that does."""
  column = Column("rounds", measures.rounds_to(0.5))

  def least(names: str, accuracies) -> list[str]:
    settings = _settings_with(write_run, tmp_path / names, accuracies)
    table = Table("T", ("l",), (column,), (_row(*names),), of_several="least")
    [[_, value, *_, runs]] = write_table(table, settings)
    return [value, runs]

  for names in ("abc", "bca", "cab"):
    assert least(names, {("a", 0): 0.1, ("b", 0): 0.6}) == ["1", "b"]
  for names in ("ab", "ba"):
    assert least(names, {("a", 0): 0.1}) == ["not reached", "a"]


def test_rate_with_which_more_seeds_reach_the_mark_is_better_though_slower(
  write_run, write_table, tmp_path
):
  curves = {"fast": [(0.6, 0.6), (0.1, 0.1), (0.1, 0.1)], "sure": [(0.1, 0.6)] * 3}
  for name, of_seeds in curves.items():
    for seed, accuracies in enumerate(of_seeds):
      rounds = [f"{t},1.0,{a},1.0,0,10,10" for t, a in enumerate(accuracies, 1)]
      folder = tmp_path / f"runs/{name}/seed{seed}"
      write_run(folder, rounds=rounds, flags={"seed": seed})
  cells_ = tuple(Cell(name, "fedavg", "digits_cnn", 2) for name in curves)
  column = Column("rounds", measures.rounds_to(0.5))
  table = Table("T", ("l",), (column,), (Row(("row",), cells_),), of_several="least")
  [[_, value, *_, runs]] = write_table(table, Settings(str(tmp_path), seeds=range(3)))
  assert (value, runs) == ("2 ± 0.0", "sure")


def test_value_that_lacks_its_reference_is_not_called_not_reached(
  write_run, write_table, tmp_path
):
  """Of two seeds whose reference was run for one, one counts."""
  accuracies = {("a", 0): 0.4, ("a", 1): 0.4, ("b", 1): 0.8}
  settings = _settings_with(write_run, tmp_path, accuracies)
  column = Column("R", measures.rounds_to_share_of_best(0.5), compares=True)

  def with_reference(reference: str) -> list[list[str]]:
    row = _row("a")._replace(reference=_row(reference).cells[0])
    return write_table(Table("T", ("l",), (column,), (row,)), settings)

  assert with_reference("absent") == [["row", "no reference"]]
  assert with_reference("b") == [["row", "1"]]


def test_reference_is_known_as_itself_though_its_loss_is_not_a_number(
  write_run, write_table, tmp_path
):
  rounds = [f"{t},nan,{a},1.0,0,10,10" for t, a in enumerate((0.5, 0.6, 0.4, 0.5), 1)]
  write_run(tmp_path / "runs/a/seed0", rounds=rounds)
  cell = Cell("a", "fedavg", "digits_cnn", 4)
  row = Row(("row",), (cell,), reference=cell)
  column = Column("rounds", measures.rounds_to_final_of_reference, compares=True)
  table = Table("T", ("l",), (column,), (row,))
  assert write_table(table, Settings(str(tmp_path))) == [["row", "4"]]


@pytest.mark.parametrize("loss", ["inf", "nan"])
def test_diverged_run_among_repeats_is_drawn_and_written(write_run, tmp_path, loss):
  head = "round,test_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
  for seed, value in enumerate(("1.0", loss)):
    folder = tmp_path / f"runs/a/seed{seed}"
    write_run(folder, rounds=[f"1,{value},0.5,1.0,0,10,10"], head=head)
  panel = Panel("p", {"a": Cell("a", "fedavg", "digits_cnn", 1)})
  settings = Settings(str(tmp_path), seeds=range(2))
  paths = writing.write_figure(Figure("F", (panel,), True), "figure1", settings)
  assert all(map(os.path.exists, paths))


def test_figure_has_the_means_of_its_runs(write_run, tmp_path):
  head = "round,test_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
  for seed, numbers in enumerate(("1.0,0.5", "4.0,0.75")):
    folder = tmp_path / f"runs/a/seed{seed}"
    write_run(
      folder, rounds=[f"1,{numbers},1.0,0,10,10"], head=head, flags={"seed": seed}
    )
  panel = Panel("p", {"a": Cell("a", "fedavg", "digits_cnn", 1)})
  settings = Settings(str(tmp_path), seeds=range(2))
  paths = writing.write_figure(Figure("F", (panel,)), "figure1", settings)
  [path] = [path for path in paths if path.endswith(".csv")]
  with open(path, newline="") as f:
    [row] = csv.DictReader(f)
  assert (float(row["loss"]), float(row["accuracy"]), row["runs"]) == (2.5, 0.625, "2")


def test_all_runs_count_and_any_may_be_under_way(write_run, write_table, tmp_path):
  """A row's second learning rate has begun: the row is shown, the runs are both its."""
  write_run(tmp_path / "runs/b/seed0", rounds=["1,1.0,0.1,1.0,0,10,10"])
  made = tuple(Cell(name, "fedavg", "digits_cnn", 2) for name in "ab")
  table = Table("T", ("label",), _COLUMNS, (Row(("row",), made),), of_several="least")
  [row] = write_table(table, Settings(str(tmp_path)))
  assert row[:2] == ["row", "1 of 2 rounds"] and row[-1] == "b"
  done = "1,1.0,0.1,1.0,0,10,10", "2,1.0,0.2,1.0,0,10,10"
  write_run(tmp_path / "runs/a/seed0", rounds=done)
  writing.write_table(table, "table1", Settings(str(tmp_path)))
  assert "1 of 2 runs are done" in (tmp_path / "table1.md").read_text()


def test_table_is_not_written_anew_with_fewer_numbers(write_run, tmp_path, monkeypatch):
  cell = Cell("a", "fedavg", "digits_cnn", 8)
  write_run(tmp_path / "runs/a/seed0")
  column = Column("best accuracy", measures.best, "%", 2)
  row = Row(("a",), (cell,))
  items = {"table1": Table("Digits", ("algorithm",), (column,), (row,))}
  half = Settings(str(tmp_path), rounds_scale=0.5)  # The four rounds that are there.
  program.make(items, half, run=False)
  before = (tmp_path / "table1.md").read_text()
  assert "Every cell ran 0.5 of the paper's rounds." in before
  for scale in (0.25, 1.0):
    with pytest.raises(InputError, match=r"written with --rounds_scale=0\.5"):
      program.make(items, half._replace(rounds_scale=scale), run=False)
  with pytest.raises(InputError, match=r"written with --rounds_scale=0\.5"):
    program.make(items, half._replace(rounds_scale=0.25), run=True)
  assert (tmp_path / "table1.md").read_text() == before
  program.make(items, half, run=False)
  # Others than these are to be run with more rounds.
  with pytest.raises(InputError, match=r"written with --rounds_scale=0\.5"):
    program.make(items, half._replace(rounds_scale=1.0, only=["other"]), run=True)
  assert (tmp_path / "table1.md").read_text() == before
  # More rounds are run, and the table is then of all of them.
  monkeypatch.setattr(program, "check_can_go_on", lambda *_: None)
  monkeypatch.setattr(program, "run_cells", lambda *_: [])  # It has not come far.
  program.make(items, half._replace(rounds_scale=1.0, only=["a"]), run=True)
  assert "4 of 8 rounds" in (tmp_path / "table1.md").read_text()
  # Which has no number yet that could be lost.
  program.make(items, half, run=False)
  assert (tmp_path / "table1.md").read_text() == before
  done = {
    "table2": items["table1"]._replace(rows=(Row(("a",), (cell._replace(rounds=4),)),))
  }
  program.make(done, half._replace(rounds_scale=1.0), run=False)
  with pytest.raises(InputError, match=r"written with --rounds_scale=1,"):
    program.make(done, half, run=True)


def test_seeds_that_are_not_run_on_are_not_lost(write_run, tmp_path):
  cell = Cell("a", "fedavg", "digits_cnn", 2)
  for seed in range(2):
    rounds = ["1,1.0,0.4,1.0,0,10,10"]
    write_run(tmp_path / f"runs/a/seed{seed}", rounds=rounds, flags={"seed": seed})
  column = Column("best accuracy", measures.best, "%", 2)
  items = {"table1": Table("T", ("l",), (column,), (Row(("a",), (cell,)),))}
  half = Settings(str(tmp_path), rounds_scale=0.5, seeds=range(2))
  program.make(items, half, run=False)
  with pytest.raises(InputError, match=r"written with --rounds_scale=0\.5"):
    program.make(items, half._replace(rounds_scale=1.0, seeds=range(1)), run=True)


def test_rows_that_were_not_run_leave_the_others_numbers_alone(write_run, tmp_path):
  settings = _settings_with(write_run, tmp_path, {("a", 0): 0.5})
  rows = tuple(_row(name) for name in "ab")
  items = {"table1": Table("T", ("label",), _COLUMNS, rows)}
  program.make(items, settings, run=False)
  with pytest.raises(InputError, match=r"written with --rounds_scale=1,"):
    program.make(items, settings._replace(rounds_scale=0.5), run=False)


def test_all_seeds_that_were_begun_are_shown(write_run, tmp_path):
  """Else fewer repeats, of which one is the default, would take numbers away."""
  cell = Cell("a", "fedavg", "digits_cnn", 1)
  for seed, accuracy in ((0, 0.5), (2, 0.7)):
    rounds = [f"1,1.0,{accuracy},1.0,0,10,10"]
    write_run(tmp_path / f"runs/a/seed{seed}", rounds=rounds, flags={"seed": seed})
  column = Column("best accuracy", measures.best, "%", 2)
  table = Table("Digits", ("algorithm",), (column,), (Row(("a",), (cell,)),))
  figure = Figure("F", (Panel("p", {"a": cell}),), True)
  items = {"table1": table, "figure1": figure}
  program.make(items, Settings(str(tmp_path)), run=False)
  assert "60.00 ± 14.14" in (tmp_path / "table1.md").read_text()
  for name in ("table1.csv", "figure1.csv"):
    with open(tmp_path / name, newline="") as f:
      assert {row["runs"] for row in csv.DictReader(f)} == {"2"}


def test_picture_has_the_rows_that_have_a_number_of_ours(
  write_run, monkeypatch, tmp_path
):
  """Others would stretch its axes; what all have in common is said once."""
  drawn = []
  monkeypatch.setattr(writing.pictures, "draw_table", lambda *words: drawn.append(words))
  accuracies = {("a", 0): 0.3, ("a", 1): 0.4, ("c", 0): 0.5}
  settings = _settings_with(write_run, tmp_path, accuracies)
  rows = tuple(
    Row((name, "1", "x", ""), _row(name).cells, {"best accuracy": 50.0}) for name in "abc"
  )
  table = Table("T", ("label", "E", "split", "changed"), _COLUMNS, rows)
  writing.write_table(table, "table1", settings)
  [(title, names, [best, rounds], _)] = drawn
  assert (title, names) == ("T\nE = 1, split = x", ["a", "c"])
  assert best.ours == [(35.0, pytest.approx(10 / 2**0.5)), (50.0, 0.0)]
  assert best.paper == [50.0, 50.0] and best.least_span == 5.0
  assert rounds.ours == [(None, 0.0), (1.0, 0.0)]


@pytest.mark.parametrize(
  "heading, label, name",
  [
    ("eta_s", "0.02", "eta_s = 0.02"),
    ("B", "inf", "B = inf"),
    ("split", "two shards", "two shards"),
    ("split", "", ""),
  ],
)
def test_numbers_have_their_names_in_the_picture(
  write_run, monkeypatch, tmp_path, heading, label, name
):
  drawn = []
  monkeypatch.setattr(writing.pictures, "draw_table", lambda *words: drawn.append(words))
  settings = _settings_with(write_run, tmp_path, {("a", 0): 0.3, ("b", 0): 0.5})
  rows = (Row((label, "x"), _row("a").cells), Row((label + "0", "y"), _row("b").cells))
  writing.write_table(Table("T", (heading, "k"), _COLUMNS, rows), "table1", settings)
  first = f"{name}, k = x" if name else "k = x"
  assert drawn[0][1][0] == first
  # What counts something has whole numbers on its axis.
  assert [column.is_whole for column in drawn[0][2]] == [False, True]


def test_models_without_accuracy_are_shown_by_their_loss(
  write_run, monkeypatch, read_table, tmp_path
):
  pictured = []
  save = "save_picture"
  monkeypatch.setattr(
    writing.pictures.durable_files, save, lambda picture, path: pictured.append(picture)
  )
  head = (
    "round,train_loss,test_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
  )
  rounds = ["1,2,0.5,,1,0,5,5", "2,1,0.25,,1,0,5,5"]
  write_run(tmp_path / "runs/a/seed0", head=head, rounds=rounds)
  cell = Cell("a", "fedavg", "digits_cnn", 2)
  settings = Settings(str(tmp_path), seeds=range(1))
  columns = (_COLUMNS[0], Column("least test loss", measures.least_loss, digits=4))
  # Of which neither is known.
  write_run(tmp_path / "runs/personal/seed0", rounds=["1,2,,1,0,5,5"])
  rows = (Row(("row",), (cell,)), Row(("other",), _row("personal").cells))
  path, _ = writing.write_table(Table("T", ("k",), columns, rows), "table", settings)
  text = pathlib.Path(path).read_text()
  assert read_table(text) == [["row", "0.2500"], ["other", "not measured"]]
  assert "accuracy" not in text
  path, rows = writing.write_figure(
    Figure("F", (Panel("p", {"l": cell}),)), "f", settings
  )
  [axes] = pictured[-1].axes
  assert axes.get_ylabel() == "test loss"
  text = pathlib.Path(path).read_text()
  assert "| p     | l     | 0.2500          |" in text and "accuracy" not in text
  with open(rows, newline="") as f:
    assert [(r["accuracy"], r["loss"]) for r in csv.DictReader(f)] == [
      ("", "0.5"),
      ("", "0.25"),
    ]


@pytest.mark.parametrize("panels", [1, 2, 5])
@pytest.mark.parametrize("with_loss", [False, True])
def test_every_panel_of_a_figure_is_drawn_with_a_closer_look(
  write_run, monkeypatch, tmp_path, panels, with_loss
):
  pictured = []
  save = "save_picture"
  monkeypatch.setattr(
    writing.pictures.durable_files, save, lambda picture, path: pictured.append(picture)
  )
  settings = _settings_with(write_run, tmp_path, {("a", 0): 0.4, ("b", 0): 0.5})
  curves = {name: Cell(name, "fedavg", "digits_cnn", 1) for name in "ab"}
  made = tuple(Panel(f"p{k}", curves, {"a": 60.0, "b": "-"}) for k in range(panels))
  figure = Figure("F", made, with_loss, smooth=3)
  path, _ = writing.write_figure(figure, "figure1", settings)
  seen = [axes for axes in pictured[0].axes if axes.get_visible()]
  assert len(seen) == panels * (2 + with_loss)
  closer = [axes for axes in seen if "closer" in axes.get_ylabel()]
  assert [axes.get_title() for axes in closer] == [f"p{k}" for k in range(panels)]
  # The paper's number of a is in its frame, that of b is a word.
  assert all(axes.get_ylim()[1] > 60 for axes in closer)
  text = pathlib.Path(path).read_text()
  assert "Diamonds" in text and "of the 3 rounds around each" in text
