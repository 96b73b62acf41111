"""`binaries/sweep.py`: its runs are those of train.py, its table, stopping, mistakes."""

from __future__ import annotations

import csv
import shutil
import statistics
import textwrap

import pytest
from programs import ROOT
from training import at_round, metrics, read_json, tree, without_seconds

_SMALL = (
  "--rounds=2",
  "--num_clients=8",
  "--clients_per_round=3",
  "--epochs=1",
  "--partition=iid",
  "--held_out_clients=2",
  "--eval_clients_every=1",
)
_RATES = ("0.05", "0.1")


@pytest.fixture(scope="module")
def swept(fork_program, tmp_path_factory):
  """A sweep of four runs that was stopped in the first and begun again."""
  folder = tmp_path_factory.mktemp("sweep")
  command = [
    *("--algorithms=fedavg", "--seeds=4,7", f"--grid=learning_rate={','.join(_RATES)}"),
    *(*_SMALL, f"--out={folder / 'out'}", f"--cache_dir={folder / 'cache'}"),
  ]
  # In the last round of a run, so that it is the next one that is not begun.
  interrupt = at_round(1, "os.kill(os.getpid(), signal.SIGINT)")
  stopped = fork_program("sweep.py", *command, cwd=folder, before=interrupt)
  held = tree(folder / "out")
  done = fork_program("sweep.py", *command, cwd=folder)
  again = fork_program("sweep.py", *command, cwd=folder)
  return folder, stopped, held, done, again


@pytest.mark.thorough
def test_a_stopped_sweep_goes_on_by_the_same_command(swept):
  folder, stopped, held, done, again = swept
  assert stopped.status == 75, stopped
  assert stopped.err.endswith("the same command goes on with what is left\n")
  first, *others = (f"fedavg_learning_rate={r}/seed{s}" for r in _RATES for s in (4, 7))
  assert f"runs/{first}/metrics.csv" in held and "table.md" in held
  assert not [run for run in others if f"runs/{run}" in held]
  assert (done.status, again.status) == (0, 0), (done, again)
  assert "cell 1 of 2" in done.out and "cell 2 of 2" in done.out
  assert "cell" not in again.out  # All was done.
  for run in (first, *others):
    assert len(metrics(folder / "out/runs" / run)) == 2
  assert read_json(folder / f"out/runs/{first}/summary.json")["stopped_early"] is False


_OWN = """
import dataclasses
import tff_algos

@dataclasses.dataclass(frozen=True)
class Hparams(tff_algos.FedAvgHparams):
  dropout: float = tff_algos.hparam(0.5, "Of one's own.", source="own", low=0, high=1)

def build_mine(model, hparams=Hparams()):
  assert 0 <= hparams.dropout <= 1
  return tff_algos.build_fed_avg(model, hparams)
"""


@pytest.mark.thorough
def test_hyper_parameter_that_is_called_as_a_setting_is(fork_program, tmp_path):
  (tmp_path / "own_dropout.py").write_text(_OWN)
  done = fork_program(
    *("sweep.py", *_SMALL, "--rounds=1", "--algorithms=own_dropout:build_mine"),
    *("--grid=mine_dropout=0.25", "--seeds=4", "--dropout=0.125"),
    *(f"--out={tmp_path / 'out'}", f"--cache_dir={tmp_path / 'cache'}"),
    cwd=tmp_path,
  )
  assert done.status == 0, done
  [config] = (tmp_path / "out").rglob("config.json")
  found = read_json(config)
  assert found["flags"]["dropout"] == 0.125 and found["hparams"]["dropout"] == 0.25


@pytest.mark.thorough
def test_its_last_run_is_that_of_train_py(swept, run_forked):
  """What other runs have left in the process makes no difference."""
  folder, *_ = swept
  flags = ["--learning_rate=0.1", "--seed=7", f"--run_dir={folder / 'alone'}"]
  done = run_forked(*_SMALL, *flags, f"--cache_dir={folder / 'cache'}", cwd=folder)
  assert done.status == 0, done
  last = folder / "out/runs/fedavg_learning_rate=0.1/seed7"
  ours, theirs = (without_seconds(metrics(run)) for run in (last, folder / "alone"))
  assert ours == theirs
  ours, theirs = (read_json(run / "config.json") for run in (last, folder / "alone"))
  for heading in ("hparams", "data", "model"):
    assert ours[heading] == theirs[heading]


@pytest.mark.thorough
def test_table_and_curves_are_of_the_runs(swept, read_table):
  folder, *_ = swept
  with open(folder / "out/table.csv") as f:
    lines = {(row["learning_rate"], row["column"]): row for row in csv.DictReader(f)}
  with open(folder / "out/curves.csv") as f:
    curves = {(row["curve"], row["round"]): row for row in csv.DictReader(f)}
  shown = read_table((folder / "out/table.md").read_text())
  for rate, row in zip(_RATES, shown):
    runs = [folder / f"out/runs/fedavg_learning_rate={rate}/seed{s}" for s in (4, 7)]
    last = [float(metrics(run)[-1]["test_accuracy"]) for run in runs]
    mean, std = statistics.mean(last), abs(last[0] - last[1]) / 2**0.5
    found = lines[rate, "final accuracy"]
    assert float(found["mean"]) == pytest.approx(100 * mean)
    assert float(found["std"]) == pytest.approx(100 * std)
    assert row[:2] == ["fedavg", rate]
    assert row[3] == f"{100 * mean:.2f} ± {100 * std:.2f}"
    own = [float(metrics(run)[-1]["held_out_accuracy_p50"]) for run in runs]
    found = lines[rate, "median held-out client"]
    assert float(found["mean"]) == pytest.approx(100 * statistics.mean(own))
    curve = curves[f"fedavg, learning_rate = {rate}", "2"]
    assert float(curve["accuracy"]) == pytest.approx(mean)
    assert float(curve["accuracy_std"]) == pytest.approx(std)
  for name in ("table.png", "curves.png"):
    assert (folder / "out" / name).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.thorough
def test_other_settings_do_not_go_on_with_its_runs(swept, fork_program):
  folder, *_ = swept
  done = fork_program(
    *("sweep.py", *_SMALL, "--grid=learning_rate=0.05", "--seeds=4", "--dropout=0.5"),
    *(f"--out={folder / 'out'}", f"--cache_dir={folder / 'cache'}"),
    cwd=folder,
  )
  assert (done.status, done.out) == (2, "")
  assert "dropout=0.0, not 0.5" in done.err and "choose another --out" in done.err


@pytest.mark.thorough
def test_more_rounds_without_checkpoints_are_refused(swept, fork_program, tmp_path):
  folder, *_ = swept
  run = "runs/fedavg_learning_rate=0.05/seed4"
  shutil.copytree(folder / "out" / run, tmp_path / "out" / run)
  shutil.rmtree(tmp_path / "out" / run / "checkpoints")
  held = tree(tmp_path / "out/runs")
  done = fork_program(
    *("sweep.py", *_SMALL, "--grid=learning_rate=0.05", "--seeds=4", "--rounds=3"),
    *(f"--out={tmp_path / 'out'}", f"--cache_dir={folder / 'cache'}"),
    cwd=folder,
  )
  assert done.status == 2, done
  assert "without their checkpoints" in done.err and "another --out" in done.err
  assert tree(tmp_path / "out/runs") == held


def test_fewer_rounds_do_not_take_its_place(fork_program, tmp_path):
  command = ["sweep.py", *_SMALL, "--algorithms=fedavg", "--seeds=4"]
  command += [f"--out={tmp_path / 'out'}", f"--cache_dir={tmp_path / 'cache'}"]
  done = fork_program(*command, cwd=tmp_path)
  assert done.status == 0, done
  before = (tmp_path / "out/table.md").read_bytes()
  done = fork_program(*command, "--rounds=1", cwd=tmp_path)
  assert (done.status, done.out) == (2, "")
  assert "seed4 has 2 rounds already: ask for as many or more" in done.err
  assert (tmp_path / "out/table.md").read_bytes() == before


@pytest.mark.parametrize(
  "flags, said",
  [
    (["--algorithms=fedavg,fedagv"], "fedagv"),
    (["--algorithms=fedavg,fedavg"], "--algorithms gives fedavg twice"),
    (["--algorithms=fedavg, fedavg"], "--algorithms gives fedavg twice"),
    (["--seeds=0,1,0"], "--seeds gives 0 twice"),
    (["--seeds=0,-1"], "--seeds must be whole numbers >= 0"),
    (["--seeds="], "--seeds must be whole numbers"),
    (["--grid=learning_rate"], "must be like learning_rate=0.05,0.1"),
    (["--grid=learning_rate=0.1,0.1"], "gives 0.1 twice"),
    (["--grid=partition=iid; iid"], "gives iid twice"),
    ([f"--grid=client_duration=lognormal:mean=1{'0' * 255}"], "name would have 2"),
    (["--grid=learning_rate=0.1,high"], "'high' cannot be used"),
    (["--grid=learning_rate=0.1,-1"], "learning_rate"),
    (["--grid=learning_rate=0.1", "--learning_rate=0.2"], "leave one out"),
    (["--grid=learning_rate=0.1", "--grid=learning_rate=0.2"], "is given twice"),
    (["--grid=threads=1,2"], "no setting that changes the numbers"),
    (["--grid=seed=1,2"], "give --seeds"),
    (["--grid=fedgg_mu=1,2"], "no setting that changes the numbers of fedavg"),
    (["--grid=partition=iid;shard"], "shard"),
    (["--grid=num_clients=4,0"], "num_clients must be at least 1"),
    (["--fedgg_mu=1"], "--fedgg_mu is a flag of fedgg"),
    (["--algorithms=fedavg,fedsgd", "--grid=epochs=1,2"], "fedsgd has no"),
    (["--algorithms=fedavg,fedsgd", "--epochs=2"], "fedsgd has no"),
    (["--stop_at=accuracy:0.9"], "different lengths"),
    (["--task=digits_cmm"], "digits_cmm"),
    # Only the data say so.
    (["--grid=num_clients=4,100000"], "100000"),
    (["--grid=num_clients=200000,100000"], "200000"),
  ],
)
def test_mistake_is_one_sentence_and_nothing_is_run(fork_program, tmp_path, flags, said):
  done = fork_program(
    "sweep.py", f"--out={tmp_path / 'out'}", f"--cache_dir={tmp_path / 'cache'}", *flags,
    cwd=tmp_path,
  )  # fmt: skip
  assert done.status == 2, done
  assert said in done.err and done.err.count("\n") == 1, done.err
  assert not (tmp_path / "out").exists()


def test_out_is_checked_where_it_will_be(fork_program, tmp_path):
  (tmp_path / "out").write_text("mine")
  home = f"import os; os.environ['HOME'] = {str(tmp_path)!r}"
  done = fork_program("sweep.py", "--out=~/out", cwd=tmp_path, before=home)
  assert done.status == 2 and done.err.startswith(f"{tmp_path}/out cannot be the out:")


def test_an_axis_of_one_algorithm_leaves_the_others_as_they_are(fork_program, tmp_path):
  """The plan alone: which runs there would be."""
  code = """
    import sys
    from experiments import command_line
    from experiments.sweeps import plan
    def main():
      raise SystemExit
    def start(main, parse, imports):
      parse(sys.argv)
      for key, config in plan.make().configs.items():
        print(*key, config.seed, config.hparams, config.partition, sep="|")
    command_line.start = start
  """
  done = fork_program(
    *("sweep.py", "--algorithms=fedavg,fedgg", "--seeds=3", "--grid=fedgg_mu=0.1,0.2"),
    *("--grid=partition=iid;dirichlet:beta=1,min_size=2", "--learning_rate=0.5"),
    f"--out={tmp_path / 'out'}",
    cwd=ROOT,
    before=textwrap.dedent(code),
  )
  assert done.status == 0, done
  _, *lines = done.out.splitlines()
  assert len(lines) == 2 + 4 and len({line.split("|")[0] for line in lines}) == 6
  dirichlet = "partition=dirichlet-beta=1-min_size=2"
  assert lines[1] == (
    f"fedavg_{dirichlet}|3|3|{{'learning_rate': 0.5}}|dirichlet:beta=1,min_size=2"
  )
  assert lines[-1] == (
    f"fedgg_fedgg_mu=0.2_{dirichlet}|3|3|{{'learning_rate': 0.5, 'mu': 0.2}}"
    "|dirichlet:beta=1,min_size=2"
  )


def test_patience_is_refused_in_a_sweep(fork_program, tmp_path):
  out = tmp_path / "out"
  done = fork_program("sweep.py", f"--out={out}", "--patience=3", cwd=tmp_path)
  assert done.status == 2 and "different lengths" in done.err
  assert not out.exists()


_FAILS = """
from experiments import runner
from tff_algos.errors import WorkerLostError

run = runner.run

def fails(config, **options):
  if config.seed == 4:
    raise WorkerLostError("The worker is gone.")
  return run(config, **options)

runner.run = fails
"""


def test_run_that_fails_is_said_and_the_others_are_done(fork_program, tmp_path):
  done = fork_program(
    *("sweep.py", *_SMALL, "--seeds=4,7", f"--out={tmp_path / 'out'}"),
    f"--cache_dir={tmp_path / 'cache'}",
    cwd=tmp_path,
    before=_FAILS,
  )
  assert done.status == 1
  assert "The worker is gone." in done.err
  assert "Runs that failed, 1: fedavg, seed 4." in done.err
  assert (tmp_path / "out/runs/fedavg/seed7/summary.json").exists()


@pytest.mark.thorough
def test_rounds_to_the_target_and_a_batch_of_all(fork_program, read_table, tmp_path):
  done = fork_program(
    *("sweep.py", *_SMALL, "--rounds=1", "--grid=batch_size=inf"),
    *("--target_accuracy=0.01", f"--out={tmp_path / 'out'}"),
    f"--cache_dir={tmp_path / 'cache'}",
    cwd=tmp_path,
  )
  assert done.status == 0, done
  [row] = read_table((tmp_path / "out/table.md").read_text())
  assert row[1] == "inf"  # As the command line has it.
  assert float(row[-1]) == 1, row
  assert (tmp_path / "out/runs/fedavg_batch_size=inf").is_dir()
