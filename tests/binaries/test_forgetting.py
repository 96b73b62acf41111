"""`binaries/forgetting.py`: its flags, and a run that is gone on with."""

from __future__ import annotations

import json

import pytest
from programs import ROOT
from training import assert_refused, at_round


def test_bad_flag_gets_one_sentence_and_nothing_is_written(fork_program, tmp_path):
  flags = ["--rounds=1", f"--run_dir={tmp_path / 'run'}"]
  done = fork_program("forgetting.py", *flags, cwd=tmp_path)
  assert_refused(done, "--rounds=1")
  assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_the_folder_alone_is_enough_to_go_on(fork_program, tmp_path):
  """With a driver and measurements that are no defaults."""
  run_dir = tmp_path / "run"
  flags = [
    *("--task=digits_cnn", "--driver=fedavg", "--algorithms=fedavg,fedreg"),
    *("--hparams=epochs=1,fedreg:gamma=0.5", "--num_clients=10", "--clients_per_round=2"),
    *("--eval_every=2", "--rounds=4", f"--cache_dir={tmp_path / 'cache'}"),
    "--loss_epsilon=0.001",
  ]
  whole = fork_program(
    "forgetting.py", *flags, f"--run_dir={tmp_path / 'whole'}", cwd=tmp_path
  )
  assert (whole.status, whole.err) == (0, "")
  assert whole.out.startswith("forgetting on digits_cnn: loading TensorFlow and data\n")
  stop = at_round(1, "os.kill(os.getpid(), signal.SIGTERM)")
  place = f"--run_dir={run_dir}"
  done = fork_program("forgetting.py", *flags, place, cwd=tmp_path, before=stop)
  assert done.status == 75
  done = fork_program("forgetting.py", place, "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert done.out.startswith("forgetting on digits_cnn: loading TensorFlow and data\n")
  for name in ("forgetting.csv", "table.md"):
    assert (run_dir / name).read_text() == (tmp_path / "whole" / name).read_text()

  # Other measurements are refused, and so is train.py, which would make none.
  other = "--algorithms=fedavg"
  done = fork_program("forgetting.py", place, "--resume", other, cwd=tmp_path)
  assert_refused(done, "algorithms.fedreg={", ", not None")
  done = fork_program(
    "forgetting.py", place, "--resume", "--hparams=fedreg:gamma=0.25", cwd=tmp_path
  )
  assert_refused(done, "algorithms.fedreg.gamma=0.5, not 0.25")
  held = json.loads((run_dir / "config.json").read_text())
  assert held["flags"]["loss_epsilon"] == 0.001
  done = fork_program("train.py", place, "--resume", cwd=tmp_path)
  assert_refused(done, "holds a run of forgetting.py, whose measurements")
  assert json.loads((run_dir / "config.json").read_text()) == held


@pytest.mark.parametrize(
  "flags, said",
  [
    (["--algorithms="], "--algorithms must name at least one, each once."),
    (["--algorithms=fedavg,fedavg"], "--algorithms must name at least one, each once."),
    (["--algorithms=fedavgg"], "did you mean 'fedavg'"),
    (["--driver=fedavgg"], "did you mean 'fedavg'"),
    (["--driver=fedavg", "--algorithms=fedavg", "--fisher"], "name fedreg in"),
    (["--eval_every=0"], "--eval_every=0"),
    (["--hparams=gama=1"], "'gama=1' is no name=value"),
    (["--resume"], "--resume needs --run_dir"),
    (["--task=mnist_two_clas"], "did you mean 'mnist_two_class'"),
  ],
)
def test_mistake_is_one_sentence_and_nothing_is_written(
  fork_program, tmp_path, flags, said
):
  done = fork_program("forgetting.py", *flags, cwd=tmp_path)
  assert_refused(done, said)
  assert not list(tmp_path.iterdir())


def test_a_folder_whose_first_round_cannot_be_done_is_emptied(fork_program, tmp_path):
  flags = [
    *("--task=own_tasks:good", "--driver=own_algorithms:build_with_variable"),
    *("--algorithms=fedavg", "--rounds=2"),
    *(f"--cache_dir={tmp_path / 'cache'}", f"--run_dir={tmp_path / 'run'}"),
  ]
  paths = [str(ROOT / "tests/binaries"), str(ROOT / "tests")]
  done = fork_program("forgetting.py", *flags, cwd=tmp_path, paths=paths)
  assert done.status == 1 and "use the local_worker runtime" in done.err
  assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("held", ['{"settings": {}}', '{"flags": {}}'])
def test_folder_of_another_program_is_refused(fork_program, tmp_path, held):
  (tmp_path / "config.json").write_text(held)
  flags = ("--resume", f"--run_dir={tmp_path}")
  done = fork_program("forgetting.py", *flags, cwd=tmp_path)
  assert_refused(done, "holds no run: choose another --run_dir")
