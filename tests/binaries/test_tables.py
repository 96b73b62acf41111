"""The programs of the papers: their cells, and what they write of them."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys

import pytest
from binaries.cells import Cell, Settings
from programs import ROOT

from binaries import (
  cells,
  command_line,
  curves,
  experiment,
  fedagg_tables,
  fedavg_tables,
  fedgg_tables,
  fedreg_tables,
  table_pictures,
  tables,
  twafl_tables,
)
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry

_PAPERS = {
  "fedavg": fedavg_tables,
  "fedgg": fedgg_tables,
  "twafl": twafl_tables,
  "fedagg": fedagg_tables,
  "fedreg": fedreg_tables,
}
# Rows of the papers' tables in `paper_numbers`, counted in the papers; FedAvg's rows have
# the two splits side by side, Table 1 two batch sizes as well.
_ROWS = {
  ("fedavg", "1_2nn"): 5 * 4,
  ("fedavg", "1_cnn"): 5 * 4,
  ("fedavg", "2_cnn"): 9 * 2,
  ("fedavg", "2_lstm"): 6 * 2,
  ("fedgg", "1"): 3 * 4,
  ("fedgg", "2"): 3 * 4,
  ("fedgg", "3"): 3 * 4,
  ("fedgg", "4"): 3 * 4,
  ("twafl", "4"): 3,
  ("twafl", "5"): 2,
  ("twafl", "6"): 3 * 3,
  ("twafl", "7_mnist"): 5 * 5,
  ("twafl", "7_har"): 5 * 5,
  ("fedagg", "3"): 13 * 2 * 5,
  ("fedagg", "5"): 13 * 5,
  ("fedagg", "6"): 6 * 2,
  ("fedreg", "1"): 3 * 6,
  ("fedreg", "2"): 2 * 6,
  ("fedreg", "3"): 3 * 6,
  ("fedreg", "4"): 4 * 5,
  ("fedreg", "C.1"): 4,
  ("fedreg", "C.2"): 2 * 4,
}


@pytest.fixture(scope="module")
def items():
  """Paper to its tables and its figures."""
  if not tables.flags.FLAGS.is_parsed():
    tables.flags.FLAGS(["pytest"])
  built = {paper: module.build() for paper, module in _PAPERS.items()}
  return built


def _cells(items) -> list[tuple[str, Cell]]:
  return [
    (paper, cell)
    for paper, groups in items.items()
    for group in groups
    for item in group.values()
    for cell in tables.cells_of(item)
  ]


def test_every_table_has_the_papers_rows(items):
  found = {
    (paper, name): len(table.rows)
    for paper, (of_paper, _) in items.items()
    for name, table in of_paper.items()
  }
  assert found == _ROWS


@pytest.mark.parametrize("paper", _PAPERS)
def test_every_cell_is_a_run_that_train_py_takes(items, paper):
  """Task and algorithm are there, and every flag is a setting or a hyper-parameter."""
  settings = set(experiment.Config.__dataclass_fields__)
  for owner, cell in _cells(items):
    if owner != paper:
      continue
    task = tasks_registry.get(cell.task)
    algorithm = algorithms_registry.get(cell.algorithm)
    given = {}
    for flag, value in cell.flags.items():
      if flag not in settings:
        common = flag in ("epochs", "batch_size", "learning_rate", "momentum")
        assert common or flag.startswith(f"{cell.algorithm}_"), (cell.name, flag)
        name = flag if common else flag[len(cell.algorithm) + 1 :]
        given[name] = None if value == "inf" else value
    experiment.make_hparams(algorithm, task, given)
    options = {k: v for k, v in cell.flags.items() if k in settings}
    experiment.make_config(cell.algorithm, cell.task, rounds=cell.rounds, **options)


def test_a_cells_name_says_all_that_it_is(items):
  """Two cells of a paper never share a folder, nor does one have two."""
  known: dict = {}
  for paper, cell in _cells(items):
    if paper == "fedavg":  # A table's patience decides the rounds; runs are gone on with.
      cell = cell._replace(rounds=0)
    assert known.setdefault((paper, cell.name), cell) == cell
  settings = [
    (paper, c.algorithm, c.task, c.rounds, str(sorted(c.flags.items())))
    for (paper, _), c in known.items()
  ]
  assert len(set(settings)) == len(settings)


def test_some_settings_of_the_papers(items):
  """Read off the papers, not off the code."""
  by_name = {(paper, cell.name): cell for paper, cell in _cells(items)}
  cell = by_name["fedreg", "cifar10_uniform_resnet9_fedreg"]
  assert cell.rounds == 240
  assert cell.flags == {
    "fedreg_gamma": 0.5,
    "fedreg_pseudo_step": 0.1,
    "learning_rate": 0.1,
  }
  # The weight 0.001 is of |w - x|^2, our mu of half of it.
  assert by_name["fedreg", "mnist_two_class_fedprox"].flags == {"fedprox_mu": 0.002}
  mg = by_name["fedreg", "emnist_digits_one_class_fedreg_mg"].flags
  assert mg == {"fedreg_mg_gamma": 0.4, "fedreg_mg_pseudo_step": 0.03}
  dp = by_name["fedreg", "covid_ct_cnn10_fedcurv_dpsgd"].flags
  assert dp == {
    "fedcurv_dpsgd_curvature": 0.001,
    "fedcurv_dpsgd_noise_multiplier": 0.001,
    "learning_rate": 0.001,
  }
  cell = by_name["fedagg", "cifar10_cnn3_dir0.6_100_fedadam"]
  assert (cell.rounds, cell.flags["learning_rate"]) == (100, 0.1)
  assert cell.flags["partition"] == "dirichlet_equal:beta=0.6"
  assert cell.flags["fedadam_server_learning_rate"] == 0.001
  cell = by_name["twafl", "mnist_1_twafl_base_e"]
  assert (cell.rounds, cell.flags["twafl_base"]) == (200, math.e)
  cell = by_name["fedgg", "cifar10_lenet_augmented_beta0.1_fedgg"]
  assert (cell.rounds, cell.flags["partition"]) == (100, "dirichlet:beta=0.1,min_size=10")
  of_table = {c.name: c for c in tables.cells_of(items["fedavg"][0]["2_cnn"])}
  cell = of_table["mnist_cnn_iid_C0.1_E5_Binf_lr0.1"]
  assert cell.flags["clients_per_round"] == 10
  assert cell.flags["batch_size"] == "inf"
  assert cell.rounds == math.ceil(1.5 * 179)


# --- Running ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_in_fork(fork_program):
  """What may stand for `cells.run_program`: a fork."""

  def run(command):
    done = fork_program(os.path.basename(command[1]), *command[2:], cwd=ROOT)
    print(done.out, end="")
    print(done.err, end="", file=sys.stderr)
    return done.status

  return run


@pytest.fixture
def in_forks(run_in_fork, monkeypatch):
  """Has programs run in forks."""
  for module in (cells, tables):
    monkeypatch.setattr(module, "run_program", run_in_fork)


@pytest.fixture(scope="module")
def trained(run_in_fork, tmp_path_factory):
  """A cell that was run for a part of its rounds, then for all; and what it printed."""
  cell = Cell("digits", "fedavg", "digits_cnn", 4, {"epochs": 1, "num_clients": 5})
  folder = tmp_path_factory.mktemp("paper")
  settings = Settings(str(folder / "out"), cache_dir=str(folder / "cache"))
  half = settings._replace(rounds_scale=0.5)
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(cells, "run_program", run_in_fork)
    assert cells.run_cells([cell], half) == []
  first = cells.curves_of(cell, half)
  assert cells.curves_of(cell, settings) == []
  assert cells.unfinished([cell], settings) == "2 of 4 rounds"
  assert cells.run_cells([cell], settings) == []
  return cell, settings, first


def test_more_rounds_go_on_with_the_same_run(trained, capfd):
  cell, settings, (half,) = trained
  (whole,) = cells.curves_of(cell, settings)
  assert (half.rounds, whole.rounds) == ([1, 2], [1, 2, 3, 4])
  assert whole.accuracy[:2] == half.accuracy
  # A run with more rounds is still the run of the fewer, and neither is run again.
  assert cells.curves_of(cell, settings._replace(rounds_scale=0.5))[0].rounds == [1, 2]
  capfd.readouterr()
  assert cells.run_cells([cell], settings) == []
  assert cells.run_cells([cell], settings._replace(only=["other"], repeats=2)) == []
  assert capfd.readouterr().out == ""


def test_table_of_a_run_has_its_numbers(trained):
  cell, settings, _ = trained
  (curve,) = cells.curves_of(cell, settings)
  absent = Cell("absent", "fedgg", "digits_cnn", 4)
  table = tables.Table(
    "Digits",
    ("algorithm",),
    (tables.Column("best accuracy", curves.best, "%", 2),),
    (
      tables.Row(("fedavg",), (cell,), {"best accuracy": 90.0}),
      tables.Row(("fedgg",), (absent,), {"best accuracy": 80.0}),
    ),
  )
  figure = tables.Figure("Curves", (tables.Panel("p", {"a": cell, "b": absent}),), True)
  program = {"table1": table, "figure1": figure}
  assert tables.make(program, settings, run=False) == []
  best = 100 * max(curve.accuracy)
  with open(os.path.join(settings.out, "table1.csv"), newline="") as f:
    rows = list(csv.DictReader(f))
  assert [row["algorithm"] for row in rows] == ["fedavg", "fedgg"]
  assert math.isclose(float(rows[0]["mean"]), best)
  assert (rows[0]["paper"], rows[1]["mean"], rows[1]["runs"]) == ("90.0", "", "0")
  with open(os.path.join(settings.out, "table1.md")) as f:
    text = f.read()
  assert f"| fedavg | {best:.2f} | 90.00 | {best - 90:+.2f} |" in text
  assert "1 of 2 rows were not run" in text
  with open(os.path.join(settings.out, "figure1.csv"), newline="") as f:
    rows = list(csv.DictReader(f))
  assert [float(row["accuracy"]) for row in rows] == curve.accuracy
  assert [float(row["loss"]) for row in rows] == curve.loss
  for picture in ("table1.png", "figure1.png"):
    with open(os.path.join(settings.out, picture), "rb") as png:
      assert png.read(8) == b"\x89PNG\r\n\x1a\n"
  assert tables.write_report("digits", settings).endswith("report.html")


def test_column_without_a_number_gets_no_frame(tmp_path):
  known = table_pictures.Points("known", [(1.0, 0.5), (None, 0.0)], [2.0, None])
  empty = table_pictures.Points("empty", [(None, 0.0)] * 2, [None] * 2)
  for name, columns in (("one", [known]), ("both", [empty, known]), ("none", [empty])):
    table_pictures.draw_table("x", ["a", "b"], columns, str(tmp_path / f"{name}.png"))
  one, both, none = (
    (tmp_path / f"{n}.png").read_bytes() for n in ("one", "both", "none")
  )
  assert both == one != none


@pytest.mark.usefixtures("in_forks")
def test_failed_cell_is_told_and_the_others_run(tmp_path, capfd):
  bad = Cell("bad", "fedavg", "digits_cnn", 1, {"num_clients": 0})
  assert cells.run_cells([bad], Settings(str(tmp_path))) == ["bad, seed 0"]
  assert "num_clients must be at least 1" in capfd.readouterr().err


@pytest.mark.usefixtures("in_forks")
def test_program_of_a_figure_is_called_once_and_for_what_is_wanted(tmp_path, capfd):
  settings = Settings(str(tmp_path), cache_dir=str(tmp_path / "cache"), only=["dig"])
  one = {"task": "digits_cnn", "num_clients": 4, "partitions": "iid"}
  bad = {"task": "absent", "partitions": "iid"}
  item = tables.Program("Splits", "heterogeneity.py", {"digits": one, "bad": bad})
  assert tables.run_calls(item, "figure1", settings) == []
  with open(tmp_path / "figure1" / "digits" / "table.csv", newline="") as f:
    (row,) = csv.DictReader(f)
  assert row["clients"] == "4"
  capfd.readouterr()
  assert tables.run_calls(item, "figure1", settings) == []
  assert capfd.readouterr().out == ""
  every = settings._replace(only=())
  assert tables.run_calls(item, "figure1", every) == ["figure1, bad"]
  assert "There is no task 'absent'" in capfd.readouterr().err


def test_folder_of_another_run_is_refused(write_run, tmp_path):
  cell = Cell("a", "fedgg", "digits_cnn", 4, {"fedgg_mu": 0.1, "batch_size": "inf"})
  settings = Settings(str(tmp_path))
  folder = tmp_path / "runs" / "a" / "seed0"
  hparams = {"mu": 0.1, "batch_size": None}
  write_run(folder, "fedgg", hparams=hparams)
  assert len(cells.curves_of(cell, settings)) == 1
  other = cell._replace(flags={"fedgg_mu": 0.2, "batch_size": "inf"})
  with pytest.raises(command_line.UsageError, match=r"run with mu=0.1, not 0.2"):
    cells.curves_of(other, settings)
  with pytest.raises(command_line.UsageError, match=r"algorithm='fedgg', not 'fedavg'"):
    cells.curves_of(cell._replace(algorithm="fedavg", flags={}), settings)


@pytest.mark.parametrize(
  "flags, hparams, said",
  [
    ({"seed": 7}, {}, "seed=7, not 0"),
    ({"partition": "iid"}, {}, "partition='iid', not 'dirichlet"),
    ({"clients_per_round": 3}, {}, "clients_per_round=3, not"),
    ({"eval_every": 5}, {}, "eval_every=5, not 1"),
    ({}, {"learning_rate": 9.0}, "learning_rate=9.0, not"),
  ],
)
def test_run_with_other_than_the_tasks_defaults_is_refused(
  write_run, tmp_path, flags, hparams, said
):
  cell, settings = Cell("a", "fedavg", "digits_cnn", 4), Settings(str(tmp_path))
  write_run(tmp_path / "runs/a/seed0", flags=flags, hparams=hparams)
  with pytest.raises(command_line.UsageError, match=re.escape(said)):
    cells.curves_of(cell, settings)


@pytest.mark.usefixtures("in_forks")
def test_run_that_was_killed_before_its_end_is_run_again(write_run, tmp_path, capfd):
  """It has all its rounds, but no summary; and one that has only begun has none."""
  settings = Settings(str(tmp_path), cache_dir=str(tmp_path / "cache"))
  cell = Cell("a", "fedavg", "digits_cnn", 4, {"num_clients": 0})  # Refused at once.
  folder = tmp_path / "runs/a/seed0"
  write_run(folder, flags={"num_clients": 0})
  assert cells.run_cells([cell], settings) == ["a, seed 0"]
  (folder / "metrics.csv").unlink()
  assert cells.unfinished([cell], settings) == "0 of 4 rounds"
  write_run(tmp_path / "runs/b/seed0", flags={"num_clients": 0})
  (tmp_path / "runs/b/seed0/summary.json").write_text('{"rounds": 4}')
  capfd.readouterr()
  assert cells.run_cells([cell._replace(name="b")], settings) == []


@pytest.mark.usefixtures("in_forks")
def test_run_of_a_figures_program_with_fewer_rounds_is_not_done(write_run, tmp_path):
  call = {"task": "absent", "rounds": 8}
  item = tables.Program(
    "F", "forgetting.py", {"a": call}, "table.md", "run_dir", "rounds"
  )
  write_run(tmp_path / "figure1/a")
  (tmp_path / "figure1/a/table.md").write_text("")
  settings = Settings(str(tmp_path))
  assert tables.run_calls(item, "figure1", settings) == ["figure1, a"]
  half = settings._replace(rounds_scale=0.5)  # Four rounds, which are there.
  assert tables.run_calls(item, "figure1", half) == []


def test_sigterm_ends_the_run_too(tmp_path):
  """Else it goes on alone, and a second start trains in its folder."""
  said = tmp_path / "said"
  child = (
    "import signal, sys, time\n"
    f"def end(*_): open({str(said)!r}, 'w').write('ended'); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)"
  )
  words = [sys.executable, "-c", child]
  code = f"from binaries import cells; cells.run_program({words!r})"
  command = [sys.executable, "-c", code]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    program.terminate()
    assert program.wait(timeout=60) == 128 + signal.SIGTERM
  assert said.read_text() == "ended"


# --- Numbers of several runs --------------------------------------------------------


def _settings_with(write_run, tmp_path, accuracies: dict) -> Settings:
  """Runs of one round: `{(cell, seed): accuracy}`."""
  for (cell, seed), accuracy in accuracies.items():
    folder = tmp_path / "runs" / cell / f"seed{seed}"
    write_run(folder, rounds=[f"1,1.0,{accuracy},1.0,0,10,10"])
  return Settings(str(tmp_path), repeats=1 + max(seed for _, seed in accuracies))


def _row(*names: str) -> tables.Row:
  made = tuple(Cell(name, "fedavg", "digits_cnn", 1) for name in names)
  return tables.Row(("row",), made, {"best accuracy": 50.0, "rounds": "-"})


_COLUMNS = (
  tables.Column("best accuracy", curves.best, "%", 1),
  tables.Column("rounds", curves.rounds_to(0.5)),
)


def _line(write_run, tmp_path, row: tables.Row, accuracies, **options) -> str:
  settings = _settings_with(write_run, tmp_path, accuracies)
  table = tables.Table("T", ("label",), _COLUMNS, (row,), **options)
  tables.write_table(table, "table1", settings)
  return (tmp_path / "table1.md").read_text().split("\n")[4]


def test_repeats_give_mean_and_sample_standard_deviation(write_run, tmp_path):
  # Of 40, 50 and 60: 50 and sqrt((100 + 0 + 100) / 2); two of three reach one half.
  accuracies = {("a", 0): 0.4, ("a", 1): 0.5, ("a", 2): 0.6}
  line = _line(write_run, tmp_path, _row("a"), accuracies)
  assert line == "| row | 50.0 ± 10.0 | 50.0 | +0.0 | 1 ± 0.0 (2 of 3) | - |  |"


def test_row_of_several_cells_takes_their_mean_or_the_best(write_run, tmp_path):
  accuracies = {("a", 0): 0.4, ("b", 0): 0.8}
  row = _row("a", "b")
  mean = _line(write_run, tmp_path / "mean", row, accuracies)
  assert mean.startswith("| row | 60.0 ± 28.3 | 50.0 | +10.0 |")
  most = _line(write_run, tmp_path / "most", row, accuracies, of_several="most")
  assert most.startswith("| row | 80.0 | 50.0 | +30.0 |")
  assert most.endswith("| b |")
  least = _line(write_run, tmp_path / "least", row, accuracies, of_several="least")
  assert least.startswith("| row | 40.0 | 50.0 | -10.0 | not reached |")


def test_value_that_lacks_its_reference_is_not_called_not_reached(write_run, tmp_path):
  """Of two seeds whose reference was run for one, one counts."""
  accuracies = {("a", 0): 0.4, ("a", 1): 0.4, ("b", 1): 0.8}
  settings = _settings_with(write_run, tmp_path, accuracies)
  column = tables.Column("R", curves.rounds_to_share_of_best(0.5), compares=True)

  def line(reference: str) -> str:
    row = _row("a")._replace(reference=_row(reference).cells[0])
    tables.write_table(tables.Table("T", ("l",), (column,), (row,)), "table1", settings)
    return (tmp_path / "table1.md").read_text().split("\n")[4]

  assert line("absent") == "| row | no reference |"
  assert line("b") == "| row | 1 |"


def test_reference_is_known_as_itself_though_its_loss_is_not_a_number(
  write_run, tmp_path
):
  rounds = [f"{t},nan,{a},1.0,0,10,10" for t, a in enumerate((0.5, 0.6, 0.4, 0.5), 1)]
  write_run(tmp_path / "runs/a/seed0", rounds=rounds)
  cell = Cell("a", "fedavg", "digits_cnn", 4)
  row = tables.Row(("row",), (cell,), reference=cell)
  column = tables.Column("rounds", curves.rounds_to_final_of_reference, compares=True)
  tables.write_table(
    tables.Table("T", ("l",), (column,), (row,)), "table1", Settings(str(tmp_path))
  )
  assert (tmp_path / "table1.md").read_text().split("\n")[4] == "| row | 4 |"


@pytest.mark.parametrize("loss", ["inf", "nan"])
def test_diverged_run_among_repeats_is_drawn_and_written(write_run, tmp_path, loss):
  head = "round,test_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
  for seed, value in enumerate(("1.0", loss)):
    folder = tmp_path / f"runs/a/seed{seed}"
    write_run(folder, rounds=[f"1,{value},0.5,1.0,0,10,10"], head=head)
  panel = tables.Panel("p", {"a": Cell("a", "fedavg", "digits_cnn", 1)})
  settings = Settings(str(tmp_path), repeats=2)
  paths = tables.write_figure(tables.Figure("F", (panel,), True), "figure1", settings)
  assert all(map(os.path.exists, paths))


def test_all_runs_count_and_any_may_be_under_way(write_run, tmp_path):
  """A row's second learning rate has begun: the row is shown, the runs are both its."""
  write_run(tmp_path / "runs/b/seed0", rounds=["1,1.0,0.1,1.0,0,10,10"])
  made = tuple(Cell(name, "fedavg", "digits_cnn", 2) for name in "ab")
  table = tables.Table(
    "T", ("label",), _COLUMNS, (tables.Row(("row",), made),), of_several="least"
  )
  tables.write_table(table, "table1", Settings(str(tmp_path)))
  line = (tmp_path / "table1.md").read_text().split("\n")[4]
  assert line.startswith("| row | 1 of 2 rounds |") and line.endswith("| b |")
  done = "1,1.0,0.1,1.0,0,10,10", "2,1.0,0.2,1.0,0,10,10"
  write_run(tmp_path / "runs/a/seed0", rounds=done)
  tables.write_table(table, "table1", Settings(str(tmp_path)))
  assert "1 of 2 runs are done" in (tmp_path / "table1.md").read_text()


def test_table_is_not_written_anew_with_fewer_numbers(write_run, tmp_path):
  cell = Cell("a", "fedavg", "digits_cnn", 8)
  write_run(tmp_path / "runs/a/seed0")
  column = tables.Column("best accuracy", curves.best, "%", 2)
  row = tables.Row(("a",), (cell,))
  items = {"table1": tables.Table("Digits", ("algorithm",), (column,), (row,))}
  half = Settings(str(tmp_path), rounds_scale=0.5)  # The four rounds that are there.
  tables.make(items, half, run=False)
  before = (tmp_path / "table1.md").read_text()
  assert "Every cell ran 0.5 of the paper's rounds." in before
  for scale in (0.25, 1.0):
    with pytest.raises(
      command_line.UsageError, match=r"written with --rounds_scale=0\.5"
    ):
      tables.make(items, half._replace(rounds_scale=scale), run=False)
  with pytest.raises(command_line.UsageError, match=r"written with --rounds_scale=0\.5"):
    tables.make(items, half._replace(rounds_scale=0.25), run=True)
  assert (tmp_path / "table1.md").read_text() == before
  tables.make(items, half, run=False)
  # More rounds are run, and the table is then of all of them.
  tables.make(items, half._replace(rounds_scale=1.0, only=["other"]), run=True)
  assert "4 of 8 rounds" in (tmp_path / "table1.md").read_text()
  with pytest.raises(command_line.UsageError, match=r"written with --rounds_scale=1,"):
    tables.make(items, half, run=True)


# --- The command line ---------------------------------------------------------------


def _program(*words: str) -> subprocess.CompletedProcess:
  command = [sys.executable, "binaries/fedgg_tables.py", *words]
  return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
  "words, said",
  [
    (["--table=9"], "There is no table 9 here: the tables are 1, 2, 3, 4."),
    ([], "Say which by --table or --figure; --list shows what there is."),
    (["--table=1", "--data_dirs=svhn"], "must be like cifar10=DIR,har=DIR"),
    (["--table=1", "--data_dirs=svhn=/absent"], "there is no folder /absent"),
    (["--table=1", "--rounds_scale=0"], "--rounds_scale must be more than 0"),
    (["--table=1", "--rounds_scale=nan"], "--rounds_scale must be more than 0"),
    (["--table=1", "--data_dirs=cifar=/tmp"], "there is no data set cifar, but c"),
    (["--table=1", "--repeats=0"], "repeats"),
    (["--table=1", "--norun", "--only=absent"], "--only=absent is in none of the names"),
  ],
)
def test_bad_input_gets_one_sentence(words, said, tmp_path):
  done = _program(*words, f"--out={tmp_path / 'out'}")
  assert done.returncode == 2
  assert said in done.stderr
  assert "Traceback" not in done.stderr
  assert not (tmp_path / "out").exists()


def test_out_that_is_no_folder_and_rates_that_are_none_get_one_sentence(tmp_path):
  (tmp_path / "file").write_text("")
  done = _program("--table=1", "--norun", f"--out={tmp_path / 'file'}")
  assert done.returncode == 2 and done.stderr.count("\n") == 1
  assert "is not a folder that can be written to" in done.stderr
  command = [sys.executable, "binaries/fedavg_tables.py", "--list"]
  command += ["--learning_rates=0.1,high"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  assert done.returncode == 2 and done.stderr.count("\n") == 1
  assert "must be positive numbers; found 'high'" in done.stderr


def test_what_only_lets_nothing_pass_of_is_not_written(tmp_path):
  done = _program("--table=1,2", "--norun", "--only=beta0.5", f"--out={tmp_path}")
  assert done.returncode == 0, done.stderr
  assert sorted(path.name for path in tmp_path.iterdir()) == ["table1.csv", "table1.md"]


def test_help_shows_the_flags_that_the_programs_share():
  done = _program("--help")
  assert done.returncode == 0
  for flag in ("--table", "--[no]run", "--rounds_scale", "--cache_dir"):
    assert f"  {flag}:" in done.stdout


def test_list_needs_no_data(tmp_path):
  done = _program("--list", f"--out={tmp_path}")
  assert done.returncode == 0, done.stderr
  assert "table2" in done.stdout
  assert "0 of 12 cells done" in done.stdout
