"""What is said of the runs of tables and figures, by hand from made-up runs."""

from __future__ import annotations

import csv
import pathlib
import shutil

import pytest

from experiments.papers import fedagg, fedavg, fedgg, fedreg, twafl
from experiments.tables import measures, state_pages
from experiments.tables.cells import Settings
from experiments.tables.model import Cell, Column, Figure, Panel, Program, Row, Table
from experiments.tables.state import state_of
from tff_algos.errors import InputError

_RESULTS = pathlib.Path(__file__).resolve().parents[3] / "results"
_PAPERS = {
  "fedavg": fedavg.build,
  "fedgg": fedgg.build,
  "twafl": twafl.build,
  "fedagg": fedagg.build,
  "fedreg": fedreg.build,
}
_BEST = Column("best accuracy", measures.best, "%", 1)
_ROUNDS = Column("rounds to 50 %", measures.rounds_to(0.5))


@pytest.fixture
def write_accuracies(write_run, tmp_path):
  """`(cell, *accuracies, seed=0)`: a run with a round for each."""

  def write(name: str, *accuracies: float, seed: int = 0) -> None:
    rounds = [f"{t},1.0,{a},1.0,0,10,10" for t, a in enumerate(accuracies, 1)]
    write_run(tmp_path / "paper" / "runs" / name / f"seed{seed}", rounds=rounds)

  return write


def _cell(name: str, rounds: int = 2) -> Cell:
  return Cell(name, "fedavg", "digits_cnn", rounds)


def _row(labels: str, column: Column, paper, rounds: int = 2) -> Row:
  """Its cell has the name of its labels."""
  parts = tuple(labels.split())
  return Row(parts, (_cell("_".join(parts), rounds),), {column.name: paper})


def _state(table, tmp_path, key: str = "table1"):
  return state_of(table, key, Settings(str(tmp_path / "paper")))


def test_pairs_are_of_rows_that_differ_in_the_algorithm(write_accuracies, tmp_path):
  rows = [
    *[_row(f"x {a}", _BEST, p) for a, p in zip("abcd", (50.0, 60.0, 60.0, 70.0))],
    *[_row(f"y {a}", _BEST, p) for a, p in zip("ab", (10.0, 90.0))],
  ]
  table = Table("P, Table 1: t", ("data", "algorithm"), (_BEST,), tuple(rows))
  for name, best in {"x_a": 0.40, "x_b": 0.55, "x_c": 0.30, "y_a": 0.2}.items():
    write_accuracies(name, 0.1, best)
  write_accuracies("x_a", 0.1, 0.42, seed=1)
  # Of x: a < b is the paper's order, a > c is not, and b and c are equal there; d was not
  # run, and of y there is but one. Ours less the paper's: 41-50, 55-60, 30-60, 20-10.
  found = _state(table, tmp_path)
  assert (found.alike, found.pairs) == (1, 2)
  assert (found.run, found.of, sorted(found.seeds)) == (4, 6, [1, 1, 1, 2])
  assert found.difference == "-7.0 (best accuracy, %)"
  # Of all rows as one group a of y is last, in the paper too: 1 + 3 of 2 + 3.
  other = table._replace(labels=("data", "E"))
  assert (_state(other, tmp_path).alike, _state(other, tmp_path).pairs) == (4, 5)


def test_what_does_not_reach_its_mark_is_last(write_accuracies, tmp_path):
  papers = (3.0, 5.0, "-", "not reached")
  rows = tuple(_row(name, _ROUNDS, p) for name, p in zip("abcd", papers))
  table = Table("P, Table 1: t", ("algorithm",), (_ROUNDS,), rows)
  for name, last in zip("abcd", (0.4, 0.6, 0.7, 0.3)):
    write_accuracies(name, 0.1, last)
  # Rounds: none, 2, 2, none. The paper's order is a, b and then c and d, which is no
  # pair. Ours has b before d, and neither a before b, c and d nor b before c.
  found = _state(table, tmp_path)
  assert (found.alike, found.pairs, found.difference) == (1, 5, "-3.0 (rounds to 50 %)")


def test_accuracy_that_the_paper_lacks_is_below_all_others(write_accuracies, tmp_path):
  rows = tuple(_row(name, _BEST, paper) for name, paper in (("a", "-"), ("b", 60.0)))
  table = Table("P, Table 1: t", ("algorithm",), (_BEST,), rows)
  write_accuracies("a", 0.1, 0.4)
  write_accuracies("b", 0.1, 0.5)
  found = _state(table, tmp_path)
  assert (found.alike, found.pairs) == (1, 1)
  assert found.difference == "-10.0 (best accuracy, %)"


def test_seconds_of_runs_rank_nothing(write_accuracies, tmp_path):
  seconds = Column("over FedAvg", measures.relative_seconds, compares=True)
  rows = [_row(name, seconds, paper) for name, paper in (("a", 1.0), ("b", 1.5))]
  rows = [row._replace(reference=rows[0].cells[0]) for row in rows]
  for name in "ab":
    write_accuracies(name, 0.1, 0.2)
  table = Table("P, Table 1: t", ("algorithm",), (seconds,), tuple(rows))
  found = _state(table, tmp_path)
  assert (found.run, found.pairs, found.difference) == (2, 0, "")


def test_rounds_are_those_that_the_page_names(write_accuracies, tmp_path):
  """A run with fewer counts as run, with its share, and is not ranked."""
  rows = tuple(_row(n, _BEST, p, rounds=8) for n, p in zip("abc", (1.0, 2.0, 3.0)))
  table = Table("P, Table 1: t", ("algorithm",), (_BEST,), rows)
  write_accuracies("a", 0.1, 0.2)
  write_accuracies("b", 0.1, 0.3, 0.0, 0.0)
  write_accuracies("c", 0.9)
  found = _state(table, tmp_path)
  assert (found.run, found.pairs, found.link) == (3, 0, "")
  assert sorted(found.shares) == [1 / 8, 2 / 8, 4 / 8]
  page = tmp_path / "paper" / "table1.md"
  page.write_text("\nEvery cell ran 0.25 of the paper's rounds.\n")
  found = _state(table, tmp_path)
  assert (found.alike, found.pairs, found.link) == (1, 1, "table1.md")


def test_a_run_that_ended_with_its_accuracy_has_all_its_rounds(
  write_accuracies, tmp_path
):
  """Of 8 rounds 3, which reach the half, and 2, which do not."""
  rows = tuple(_row(n, _ROUNDS, p, rounds=8) for n, p in zip("ab", (3.0, 5.0)))
  ends = [r.cells[0]._replace(flags={"stop_at": "accuracy:0.5"}) for r in rows]
  rows = tuple(row._replace(cells=(cell,)) for row, cell in zip(rows, ends))
  write_accuracies("a", 0.1, 0.4, 0.6)
  write_accuracies("b", 0.1, 0.4)
  found = _state(Table("P, Table 1: t", ("algorithm",), (_ROUNDS,), rows), tmp_path)
  assert (found.run, sorted(found.shares)) == (2, [2 / 8, 1.0])
  assert found.difference == "+0.0 (rounds to 50 %)"


def test_of_a_rows_learning_rates_one_is_enough(write_accuracies, tmp_path):
  rows = [_row(name, _BEST, 50.0) for name in "ab"]
  rows[0] = rows[0]._replace(cells=(_cell("a"), _cell("a_other")))
  table = Table("P, Table 1: t", ("E",), (_BEST,), tuple(rows), of_several="most")
  write_accuracies("a", 0.1)
  write_accuracies("a_other", 0.1, 0.2)
  found = _state(table, tmp_path)
  assert (found.run, found.of, found.shares) == (1, 2, [1.0])
  found = _state(table._replace(of_several="mean"), tmp_path)
  assert (found.run, found.of, found.shares) == (2, 3, [0.5, 1.0])


def _items(tables=(), figures=()):
  return lambda: (dict(tables), dict(figures))


@pytest.fixture
def pages(tmp_path):
  """A folder of results whose pages have the marks."""
  marks = f"# P\n\n{state_pages.BEGIN}\n{state_pages.END}\n\nmore\n"
  (tmp_path / "paper").mkdir()
  for page in (tmp_path / "README.md", tmp_path / "paper" / "README.md"):
    page.write_text(marks)
  (tmp_path / "why.csv").write_text("paper,item,why\npaper,table1,Chance.\n")
  return tmp_path


def test_pages_say_what_agrees_differs_and_was_not_run(
  write_accuracies, pages, read_table
):
  numbers = {1: (10.0, 20.0), 2: (10.0, 20.0, 5.0), 3: (9.0, 8.0, 7.0, 1.0)}
  tables = {
    str(k): Table(
      f"P, Table {k}: title",
      ("algorithm",),
      (_BEST,),
      tuple(_row(name, _BEST, paper) for name, paper in zip("abcd", papers)),
    )
    for k, papers in numbers.items()
  }
  tables["4"] = tables["1"]._replace(rows=(_row("absent", _BEST, 1.0),))
  figures = {
    "1": Figure("P, Figure 1: curves", (Panel("p", {"a": _cell("a")}),)),
    "2": Program("P, Figure 2: splits", "x.py", {"one": {}, "two": {}}),
  }
  for k, name in enumerate("abc"):
    write_accuracies(name, 0.1, 0.2 + k / 10)
  folder = pages / "paper" / "figure2" / "two"
  folder.mkdir(parents=True)
  (folder / "table.md").write_text("")
  state_pages.write({"paper": _items(tables, figures)}, str(pages))
  page, own = (pages / "README.md"), (pages / "paper" / "README.md")
  # Ours are 20, 30 and 40 %.
  assert [row[2:] for row in read_table(page.read_text())] == [
    ["2 of 2", "1", "100 %", "its only pair", "+10.0 (best accuracy, %)", "Chance."],
    ["3 of 3", "1", "100 %", "1 of 3 pairs", "+10.0 (best accuracy, %)", ""],
    ["3 of 4", "1", "100 %", "0 of 3 pairs", "+22.0 (best accuracy, %)", ""],
    ["0 of 1", "", "", "", "", ""],
    ["1 of 1", "1", "100 %", "", "", ""],
    ["1 of 2 calls", "", "", "", "", ""],
  ]
  assert "| [P](paper/README.md) | [Figure 2](paper/figure2): splits" in page.read_text()
  lines = [line for line in own.read_text().split("\n") if line.startswith("- ")]
  assert lines == [
    "- **Agrees, all pairs of rows:** Table 1 (its only pair).",
    "- **Differs, some pairs or all:** Table 2 (1 of 3 pairs agrees), "
    "Table 3 (0 of 3 pairs agree).",
    "- **Not run:** Table 4; in part Table 3 (3 of 4 cells), Figure 2 (1 of 2 calls).",
    "- **Run, with nothing to rank:** Figure 1.",
  ]
  before = page.read_text(), own.read_text()
  assert all(text.startswith("# P\n") and text.endswith("\nmore\n") for text in before)
  state_pages.write({"paper": _items(tables, figures)}, str(pages))
  assert (page.read_text(), own.read_text()) == before


@pytest.mark.parametrize(
  "spoil, said",
  [
    ({"why.csv": "paper,item,why\npaper,table9,x\n"}, "paper has no table9; its names"),
    ({"why.csv": "item,why\ntable1,x\n"}, "the columns paper, item and why"),
    ({"paper/README.md": "# P\n"}, "must have a line <!-- Written"),
    ({"paper/runs/a/seed0/config.json": "{"}, "config.json"),
    ({"paper/runs/a/seed0/metrics.csv": "round,x\n1\n"}, "no run that can be read"),
  ],
)
def test_what_cannot_be_read_gets_one_sentence_and_nothing_is_written(
  write_accuracies, pages, spoil, said
):
  write_accuracies("a", 0.5, 0.6)
  table = Table("P, Table 1: t", ("E",), (_BEST,), (_row("a", _BEST, 50.0),))
  for name, text in spoil.items():
    (pages / name).write_text(text)
  before = (pages / "README.md").read_text()
  with pytest.raises(InputError, match=said) as raised:
    state_pages.write({"paper": _items({"1": table})}, str(pages))
  assert "\n" not in str(raised.value)
  assert (pages / "README.md").read_text() == before


def test_kept_pages_are_what_the_program_writes_now(tmp_path):
  """Else run binaries/state_of_results.py."""
  kept = [_RESULTS / "README.md", *(_RESULTS / p / "README.md" for p in _PAPERS)]
  for path in _RESULTS.iterdir():
    if path.name not in _PAPERS:
      (tmp_path / path.name).symlink_to(path)
      continue
    (tmp_path / path.name).mkdir()
    for below in path.iterdir():
      (tmp_path / path.name / below.name).symlink_to(below)
  copies = [tmp_path / path.relative_to(_RESULTS) for path in kept]
  for path, copy in zip(kept, copies):
    copy.unlink()
    shutil.copyfile(path, copy)
  state_pages.write(_PAPERS, str(tmp_path))
  for path, copy in zip(kept, copies):
    assert copy.read_text() == path.read_text(), path


def test_each_why_is_a_line():
  """More has its place on the paper's page."""
  with open(_RESULTS / "why.csv", encoding="utf-8", newline="") as file:
    longest = max(csv.DictReader(file), key=lambda row: len(row["why"]))
  assert len(longest["why"]) <= 220, longest
