"""The runs of cells: started, gone on with, left alone, and refused."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys

import pytest
from programs import ROOT

from experiments.tables import cells, measures, program
from experiments.tables.cells import Settings
from experiments.tables.model import Cell, Column, Figure, Panel, Program, Row, Table
from tff_algos.errors import InputError


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
  monkeypatch.setattr(cells, "run_program", run_in_fork)


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
  assert cells.run_cells([cell], settings._replace(only=["other"], seeds=range(2))) == []
  assert capfd.readouterr().out == ""


def test_what_a_run_may_end_with_is_enough(trained, capfd):
  """Four of ten rounds, with an accuracy that they have and one that they have not."""
  cell, settings, _ = trained
  (whole,) = cells.curves_of(cell, settings)
  best = max(whole.accuracy)

  def until(target):
    flags = {**cell.flags, "stop_at": f"accuracy:{target}"}
    return cell._replace(rounds=10, flags=flags)

  capfd.readouterr()
  assert cells.run_cells([until(best)], settings) == []
  assert capfd.readouterr().out == ""
  assert cells.curves_of(until(best), settings) == [whole]
  assert cells.unfinished([until(best)], settings) == ""
  assert cells.curves_of(until(best + 1e-4), settings) == []
  assert cells.unfinished([until(best + 1e-4)], settings) == "4 of 10 rounds"


@pytest.mark.thorough
@pytest.mark.usefixtures("in_forks")
def test_a_figure_goes_on_where_a_table_has_ended(trained, tmp_path):
  """Any accuracy at all ends the table's run after its first round."""
  settings = trained[1]._replace(out=str(tmp_path))
  table = trained[0]._replace(flags={**trained[0].flags, "stop_at": "accuracy:1e-9"})
  assert cells.run_cells([table], settings) == []
  (curve,) = cells.curves_of(table, settings)
  assert curve.rounds == [1]
  figure = table._replace(flags={**table.flags, "stop_at": ""})
  assert cells.unfinished([figure], settings) == "1 of 4 rounds"
  assert cells.run_cells([figure], settings) == []
  assert cells.curves_of(figure, settings)[0].rounds == [1, 2, 3, 4]


def test_table_of_a_run_has_its_numbers(trained, read_table):
  cell, settings, _ = trained
  (curve,) = cells.curves_of(cell, settings)
  absent = Cell("absent", "fedgg", "digits_cnn", 4)
  table = Table(
    "Digits",
    ("algorithm",),
    (Column("best accuracy", measures.best, "%", 2),),
    (
      Row(("fedavg",), (cell,), {"best accuracy": 90.0}),
      Row(("fedgg",), (absent,), {"best accuracy": 80.0}),
    ),
  )
  figure = Figure("Curves", (Panel("p", {"a": cell, "b": absent}),), True)
  items = {"table1": table, "figure1": figure}
  assert program.make(items, settings, run=False) == []
  best = 100 * max(curve.accuracy)
  with open(os.path.join(settings.out, "table1.csv"), newline="") as f:
    rows = list(csv.DictReader(f))
  assert [row["algorithm"] for row in rows] == ["fedavg", "fedgg"]
  assert math.isclose(float(rows[0]["mean"]), best)
  assert (rows[0]["paper"], rows[1]["mean"], rows[1]["runs"]) == ("90.0", "", "0")
  with open(os.path.join(settings.out, "table1.md")) as f:
    text = f.read()
  assert read_table(text) == [["fedavg", f"{best:.2f}", "90.00", f"{best - 90:+.2f}"]]
  assert "1 of 2 rows were not run" in text
  with open(os.path.join(settings.out, "figure1.csv"), newline="") as f:
    rows = list(csv.DictReader(f))
  assert [float(row["accuracy"]) for row in rows] == curve.accuracy
  assert [float(row["loss"]) for row in rows] == curve.loss
  for picture in ("table1.png", "figure1.png"):
    with open(os.path.join(settings.out, picture), "rb") as png:
      assert png.read(8) == b"\x89PNG\r\n\x1a\n"
  assert program.write_report("digits", settings).endswith("report.html")


@pytest.mark.usefixtures("in_forks")
def test_failed_cell_is_told_and_the_others_run(tmp_path, capfd):
  bad = Cell("bad", "fedavg", "digits_cnn", 1, {"num_clients": 0})
  assert cells.run_cells([bad], Settings(str(tmp_path))) == ["bad, seed 0"]
  assert "num_clients must be at least 1" in capfd.readouterr().err


@pytest.mark.parametrize(
  "text, name, wanted",
  [
    ("cifar10", "cifar10_lenet_beta0.1_fedgg", True),
    ("cifar10", "cifar100_vgg16_beta0.1_fedgg", False),
    ("iid", "mnist_cnn_noniid_C0.1", False),
    ("mnist_iid", "emnist_iid", False),
    ("_iid_20_", "mnist_cnn_iid_20", True),
    ("B10", "mnist_cnn_iid_C0.1_E5_B10", True),
  ],
)
def test_only_asks_for_whole_words(text, name, wanted, tmp_path):
  assert cells.is_wanted(name, Settings(str(tmp_path), only=["absent", text])) == wanted


@pytest.mark.usefixtures("in_forks")
def test_program_of_a_figure_is_called_once_and_for_what_is_wanted(tmp_path, capfd):
  settings = Settings(str(tmp_path), cache_dir=str(tmp_path / "cache"), only=["digits"])
  one = {"task": "digits_cnn", "num_clients": 4, "partitions": "iid"}
  bad = {"task": "absent", "partitions": "iid"}
  item = Program("Splits", "heterogeneity.py", {"digits": one, "bad": bad})
  assert cells.run_calls(item, "figure1", settings) == []
  with open(tmp_path / "figure1" / "digits" / "table.csv", newline="") as f:
    (row,) = csv.DictReader(f)
  assert row["clients"] == "4"
  capfd.readouterr()
  assert cells.run_calls(item, "figure1", settings) == []
  assert capfd.readouterr().out == ""
  other = item._replace(calls={"digits": {**one, "num_clients": 5}})
  with pytest.raises(InputError, match="made with num_clients=4, not 5: move it away"):
    cells.run_calls(other, "figure1", settings)
  every = settings._replace(only=())
  assert cells.run_calls(item, "figure1", every) == ["figure1, bad"]
  assert "There is no task 'absent'" in capfd.readouterr().err


def test_folder_of_another_run_is_refused(write_run, tmp_path):
  cell = Cell("a", "fedgg", "digits_cnn", 4, {"fedgg_mu": 0.1, "batch_size": "inf"})
  settings = Settings(str(tmp_path))
  folder = tmp_path / "runs" / "a" / "seed0"
  hparams = {"mu": 0.1, "batch_size": None}
  write_run(folder, "fedgg", hparams=hparams)
  assert len(cells.curves_of(cell, settings)) == 1
  other = cell._replace(flags={"fedgg_mu": 0.2, "batch_size": "inf"})
  with pytest.raises(InputError, match=r"run with mu=0.1, not 0.2"):
    cells.curves_of(other, settings)
  with pytest.raises(InputError, match=r"algorithm='fedgg', not 'fedavg'"):
    cells.curves_of(cell._replace(algorithm="fedavg", flags={}), settings)


@pytest.mark.parametrize(
  "config",
  [
    dict(data={"test_set": "b"}),
    dict(model={"layers": ["tanh"], "num_weights": 3}),
    dict(algorithm={"my_algorithms": "b"}),
    dict(task={"my_tasks": "b"}),
  ],
  ids=["data", "model", "algorithm", "task"],
)
def test_runs_of_other_data_models_or_code_are_not_averaged(write_run, tmp_path, config):
  cell = Cell("a", "fedavg", "digits_cnn", 4)
  settings = Settings(str(tmp_path), (0, 1, 2))
  held = dict(data={"test_set": "a"}, model={"layers": ["relu"], "num_weights": 3})
  held.update(algorithm={"my_algorithms": "a"}, task={"my_tasks": "a"})
  # The first is an older run, whose config.json says less; who trains is of the seed.
  write_run(tmp_path / "runs/a/seed0", data={"training": {"num_clients": 3}})
  training = {"training": {"num_clients": 4}}
  others = {**held, "data": {**held["data"], **training}}
  write_run(tmp_path / "runs/a/seed1", flags={"seed": 1}, **others)
  write_run(tmp_path / "runs/a/seed2", flags={"seed": 2}, **{**held, **config})
  two = settings._replace(seeds=(0, 1))
  assert len(cells.curves_of(cell, two)) == 2
  [name] = [next(iter(part)) for part in config.values()]
  said = rf"^\S+/seed1 and \S+/seed2 cannot be averaged, .* differ in {name}.*: move one"
  with pytest.raises(InputError, match=said):
    cells.curves_of(cell, settings)
  begun = []
  with pytest.raises(InputError, match=said):
    cells.run_cells([cell], settings, lambda *run: begun.append(run) or 0)
  assert not begun
  # Where it is a run that makes them differ, the next is not begun.
  later = (tmp_path / "runs/a/seed2").rename(tmp_path / "later")

  def run_one(cell, seed, settings):
    begun.append(seed)
    if seed == 0:
      later.rename(tmp_path / "runs/a/seed2")

  with pytest.raises(InputError, match=said):
    cells.run_cells([cell], settings, run_one)
  assert begun == [0]


@pytest.mark.parametrize("seeds", [(0, 1), (1, 0)])
def test_runs_are_averaged_at_rounds_that_all_have_measured(write_run, tmp_path, seeds):
  """The last round of the one was measured out of turn; the other went on beyond it."""
  head = "round,test_loss,test_accuracy,client_accuracy_p50,"
  head += "seconds,num_dropped,bytes_down,bytes_up"
  cell = Cell("a", "fedavg", "digits_cnn", 4, {"eval_every": 3})
  longer = ("1,,,,1,0,0,0", "2,,,,1,0,0,0", "3,2,0.5,0.25,1,0,0,0", "4,,,,1,0,0,0")
  longer += ("5,,,,1,0,0,0", "6,1,0.9,0.9,1,0,0,0")
  exact = (*longer[:2], "3,4,0.7,0.75,1,0,0,0", "4,1,0.9,0.9,1,0,0,0")
  for seed, rounds in enumerate((longer, exact)):
    flags = {"seed": seed, "eval_every": 3}
    write_run(tmp_path / f"runs/a/seed{seed}", rounds=rounds, head=head, flags=flags)
  curves = cells.curves_of(cell, Settings(str(tmp_path), seeds))
  [(t, accuracy, loss)] = measures.by_round(curves)
  assert t == 3 and set(zip(accuracy, loss)) == {(0.5, 2), (0.7, 4)}
  assert {measures.final(curve) for curve in curves} == {0.5, 0.7}
  assert {measures.best_of_clients(curve) for curve in curves} == {0.25, 0.75}
  # By itself, as it is.
  [curve] = cells.curves_of(cell, Settings(str(tmp_path), (1,)))
  assert curve.rounds == [3, 4]


@pytest.mark.parametrize(
  "flags, hparams, said",
  [
    ({"seed": 7}, {}, "seed=7, not 0"),
    ({"partition": "iid"}, {}, "partition='iid', not 'dirichlet"),
    ({"clients_per_round": 3}, {}, "clients_per_round=3, not"),
    ({"eval_every": 5}, {}, "eval_every=5, not 1"),
    ({"dropout": 0.9}, {}, "dropout=0.9, not 0.0"),
    ({"norm_limit": 2.0}, {}, "norm_limit=2.0, not None"),
    ({"num_clients": 3}, {}, "num_clients=3, not"),
    ({"held_out_clients": 1}, {}, "held_out_clients=1, not 0"),
    ({}, {"learning_rate": 9.0}, "learning_rate=9.0, not"),
    ({}, {"server_learning_rate": 0.5}, "server_learning_rate=0.5, not 1.0"),
  ],
)
def test_run_with_other_than_the_tasks_defaults_is_refused(
  write_run, tmp_path, flags, hparams, said
):
  cell, settings = Cell("a", "fedavg", "digits_cnn", 4), Settings(str(tmp_path))
  write_run(tmp_path / "runs/a/seed0", flags=flags, hparams=hparams)
  with pytest.raises(InputError, match=re.escape(said)):
    cells.curves_of(cell, settings)


@pytest.mark.parametrize(
  "rounds, scale, expected", [(11, 0.35, 4), (60, 0.33, 20), (10, 1.0, 10), (3, 0.01, 1)]
)
def test_scaled_rounds_are_the_nearest_whole_number_and_at_least_one(
  rounds, scale, expected
):
  assert cells.scaled(rounds, scale) == expected


def test_how_far_a_run_is_says_the_rounds_that_it_is_to_have(write_run, tmp_path):
  """Of 12 rounds with a scale, a run has done four."""
  cell = Cell("a", "fedavg", "digits_cnn", 12)
  write_run(tmp_path / "runs/a/seed0")
  settings = Settings(str(tmp_path))
  for scale, said in ((1.0, "4 of 12 rounds"), (0.5, "4 of 6 rounds"), (1 / 3, "")):
    assert cells.unfinished([cell], settings._replace(rounds_scale=scale)) == said


def test_runs_that_were_kept_without_checkpoints_are_refused_before_all_work(
  write_run, tmp_path
):
  cell = Cell("a", "fedavg", "digits_cnn", 8)
  folder = tmp_path / "runs/a/seed0"
  write_run(folder)
  (folder / "summary.json").write_text('{"rounds": 4}')
  settings = Settings(str(tmp_path))
  said = f"{folder} holds 4 of 8 rounds without their checkpoints, as runs are kept"
  with pytest.raises(InputError, match=said):
    cells.check_can_go_on([cell], settings)
  table = Table("T", ("what",), (), (Row(("a",), (cell,)),))
  with pytest.raises(InputError, match=said):
    program.make({"table1": table}, settings, run=True)
  assert [p.name for p in tmp_path.iterdir()] == ["runs"]
  for other in (settings._replace(rounds_scale=0.5), settings._replace(only=["b"])):
    cells.check_can_go_on([cell], other)
  (folder / "checkpoints").mkdir()
  cells.check_can_go_on([cell], settings)
  (folder / "checkpoints").rmdir()
  (folder / "summary.json").unlink()  # Killed before its first checkpoint.
  cells.check_can_go_on([cell], settings)


@pytest.mark.usefixtures("in_forks")
def test_run_that_was_killed_before_its_end_is_run_again(write_run, tmp_path, capfd):
  """It has all its rounds, but no summary; and one that has only begun has none."""
  settings = Settings(str(tmp_path), cache_dir=str(tmp_path / "cache"))
  wrong = {"clients_per_round": 21}  # More than there are, which is refused at once.
  cell = Cell("a", "fedavg", "digits_cnn", 4, wrong)
  folder = tmp_path / "runs/a/seed0"
  write_run(folder, flags=wrong)
  assert cells.run_cells([cell], settings) == ["a, seed 0"]
  # The rounds that are asked for are whole where it went on beyond them.
  assert cells.run_cells([cell._replace(rounds=3)], settings) == []
  (folder / "metrics.csv").unlink()
  assert cells.unfinished([cell], settings) == "0 of 4 rounds"
  write_run(tmp_path / "runs/b/seed0", flags=wrong)
  (tmp_path / "runs/b/seed0/summary.json").write_text('{"rounds": 4}')
  capfd.readouterr()
  assert cells.run_cells([cell._replace(name="b")], settings) == []


@pytest.mark.usefixtures("in_forks")
def test_run_of_a_figures_program_with_fewer_rounds_is_not_done(write_run, tmp_path):
  call = {"task": "absent", "rounds": 8}
  item = Program("F", "forgetting.py", {"a": call}, "table.md", "run_dir", "rounds")
  write_run(tmp_path / "figure1/a", flags={"task": "absent"})
  (tmp_path / "figure1/a/table.md").write_text("")
  settings = Settings(str(tmp_path))
  assert cells.run_calls(item, "figure1", settings) == ["figure1, a"]
  half = settings._replace(rounds_scale=0.5)  # Four rounds, which are there.
  assert cells.run_calls(item, "figure1", half) == []


# As the programs do, which need no TensorFlow themselves.
_IMPORT_CELLS = (
  "import sys; from tff_algos import preflight; preflight.defer_tensorflow(); "
  "from experiments.tables import cells"
)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_signal_stops_the_run_too(tmp_path, name):
  """Else it goes on alone, and a second start finds its folder in use."""
  said = tmp_path / "said"
  child = (
    "import signal, sys, time\n"
    f"def end(*_): open({str(said)!r}, 'a').write('ended'); sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)"
  )
  words = [sys.executable, "-c", child]
  code = (
    f"{_IMPORT_CELLS}\n"
    f"try: cells.run_program({words!r})\n"
    "except cells.StoppedEarlyError: sys.exit(75)"
  )
  command = [sys.executable, "-c", code]
  number = signal.Signals[name]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    program.send_signal(number)
    assert program.stdout.read() == ""  # Until the child has ended too.
    expected = -number if number == signal.SIGKILL else 75
    assert program.wait(timeout=60) == expected
  assert said.read_text() == "ended"


def test_killed_program_is_told_of(capfd):
  code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
  assert cells.run_program([sys.executable, "-c", code]) == -signal.SIGKILL
  assert "most likely for want of memory" in capfd.readouterr().err


def test_second_sigterm_is_passed_on_too(tmp_path):
  """By which a run ends at once; Ctrl-C is its terminal's to tell it."""
  child = (
    "import signal, sys, time\n"
    "told = []\n"
    "def stop(*_): told.append(1); print(len(told), flush=True)\n"
    "signal.signal(signal.SIGTERM, stop); print('ready', flush=True)\n"
    "for _ in range(3000): len(told) < 2 and time.sleep(0.01)\n"
    "time.sleep(0.5); sys.exit(len(told))"
  )
  code = (
    f"{_IMPORT_CELLS}\n"
    f"try: cells.run_program({[sys.executable, '-c', child]!r})\n"
    "except cells.StoppedEarlyError: sys.exit(75)"
  )
  with subprocess.Popen(
    [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
  ) as program:
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    numbers = (signal.SIGINT, signal.SIGINT, signal.SIGTERM)
    said = []
    for number in numbers:
      program.send_signal(number)
      if number == signal.SIGTERM or not said:
        said.append(program.stdout.readline())
    assert said == ["1\n", "2\n"]
    assert program.wait(timeout=60) == 75


def test_program_that_is_done_as_the_signal_comes_is_the_last(tmp_path):
  code = (
    f"{_IMPORT_CELLS}\n"
    "child = [sys.executable, '-c', 'import os, signal; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "os.kill(os.getppid(), signal.SIGTERM)']\n"
    "try: cells.run_program(child)\n"
    "except cells.StoppedEarlyError: sys.exit(75)"
  )
  done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60)
  assert done.returncode == 75
