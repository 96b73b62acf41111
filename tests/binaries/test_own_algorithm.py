"""train.py with an algorithm that is written outside this repository."""

from __future__ import annotations

import pathlib
import re
import shutil

import pytest
from programs import ROOT
from training import (
  assert_refused,
  at_round,
  metrics,
  place,
  read_json,
  tree,
  without_seconds,
)

_PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
_CODE, _ = re.findall(r"^```python\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
_TASK = ("--task=own_tasks:good", "--rounds=4", "--epochs=2", "--seed=5")
_STOP = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
  """Where one is, with the file of docs/python.md in it."""
  folder = tmp_path_factory.mktemp("own")
  (folder / "my_algorithms.py").write_text(_CODE)
  return folder


@pytest.fixture(scope="module")
def unbroken(run_forked, folder) -> pathlib.Path:
  run_dir, where = place(folder, "unbroken")
  flags = ["--algorithm=my_algorithms:build_fed_avg_m", "--fed_avg_m_server_momentum=0.5"]
  done = run_forked(*flags, *_TASK, *where, cwd=folder)
  assert (done.status, done.err) == (0, "")
  assert done.out.startswith("my_algorithms:build_fed_avg_m on own_tasks:good")
  return run_dir


def test_run_leaves_what_every_run_does(unbroken):
  there = tree(unbroken)
  assert {"accuracy.png", "traffic.png", "partition.png", "metrics.csv"} <= there
  config = read_json(unbroken / "config.json")
  assert config["flags"]["algorithm"] == "my_algorithms:build_fed_avg_m"
  assert config["flags"]["hparams"] == {"epochs": 2, "server_momentum": 0.5}
  assert config["hparams"]["server_momentum"] == 0.5
  assert list(config["algorithm"]) == ["my_algorithms"]
  assert re.fullmatch("[0-9a-f]{64}", config["algorithm"]["my_algorithms"])
  # As task's and not the class's default.
  assert config["hparams"]["batch_size"] == 5


def test_its_row_is_the_same_algorithm(run_forked, folder, unbroken):
  """The row's name begins its flags."""
  run_dir, where = place(folder, "row")
  flags = ["--algorithm=my_algorithms:ALGORITHMS", "--fedavgm_server_momentum=0.5"]
  done = run_forked(*flags, *_TASK, *where, cwd=folder)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(unbroken))


def test_stopped_and_resumed_by_its_folder_alone_it_is_the_unbroken_run(
  run_forked, folder, unbroken
):
  run_dir, where = place(folder, "stopped")
  flags = ["--algorithm=my_algorithms:build_fed_avg_m", "--fed_avg_m_server_momentum=0.5"]
  done = run_forked(*flags, *_TASK, *where, cwd=folder, before=at_round(1, _STOP))
  assert done.status == 75
  assert len(metrics(run_dir)) == 2
  done = run_forked(f"--run_dir={run_dir}", "--resume", cwd=folder)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(unbroken))


def test_resuming_with_another_source_is_refused(run_forked, unbroken, tmp_path):
  (tmp_path / "my_algorithms.py").write_text(_CODE + "\n# A remark is a change too.\n")
  flags = [f"--run_dir={unbroken}", "--rounds=5", "--resume"]
  before = tree(unbroken)
  done = run_forked(*flags, cwd=tmp_path)
  assert_refused(done, "another version of my_algorithms: put", str(unbroken))
  assert tree(unbroken) == before
  (tmp_path / "my_algorithms.py").unlink()
  done = run_forked(*flags, cwd=tmp_path)
  assert_refused(done, "there is no module 'my_algorithms'")


def test_a_run_is_not_evaluated_without_its_source(fork_program, unbroken, tmp_path):
  shutil.copytree(unbroken, tmp_path / "run")
  (tmp_path / "run/model.keras").unlink()
  paths = [str(ROOT / "tests")]  # Its task is there.
  done = fork_program("evaluate.py", "--run=run", cwd=tmp_path, paths=paths)
  assert_refused(done, "there is no module 'my_algorithms'")


def test_help_shows_its_flags(run_forked, folder):
  done = run_forked("--algorithm=my_algorithms:build_fed_avg_m", "--help", cwd=folder)
  assert (done.status, done.err) == (0, "")
  assert "--fed_avg_m_server_momentum:" in done.out
  assert "Range: >= 0 and <= 0.999" in " ".join(done.out.split())


def test_a_report_shows_it(fork_program, folder, unbroken):
  flags = [f"--runs={unbroken}", f"--out={folder / 'report.html'}"]
  done = fork_program("report.py", *flags, cwd=folder)
  assert done.status == 0, done.err
  assert "my_algorithms:build_fed_avg_m" in (folder / "report.html").read_text()


@pytest.mark.thorough
def test_a_choice_is_a_flag_without_a_value_and_a_number_one_with(run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=own_algorithms:good", "--task=own_tasks:good", *where]
  own = ["--good_is_doubled", "--good_clip=0.5"]
  done = run_forked(*flags, *own, "--rounds=1", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  hparams = read_json(run_dir / "config.json")["hparams"]
  assert (hparams["is_doubled"], hparams["clip"]) == (True, 0.5)


def test_a_number_that_is_none_is_told_by_its_flag(run_forked, tmp_path):
  flags = ["--algorithm=own_algorithms:good", "--task=own_tasks:good"]
  done = run_forked(*flags, "--good_clip=high", cwd=tmp_path)
  assert done.status == 2 and done.err.startswith("--good_clip "), done


def test_what_it_measures_is_in_the_table(run_forked, tmp_path):
  """In the place of the loss its clients' steps: 10 examples each, in batches of 5."""
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=own_algorithms:build_counting", "--task=own_tasks:two_metrics"]
  done = run_forked(*flags, *where, "--rounds=2", "--epochs=3", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  for row in metrics(run_dir):
    assert float(row["train_steps"]) == 6 and row["train_loss"] == ""
    assert float(row["test_half"]) == 0.5
    assert 0 < float(row["test_first"]) < 1 and row["test_accuracy"] == ""
    assert row["num_accepted"] == "2"


@pytest.mark.thorough
def test_a_process_of_tffs_that_measures_nothing_trains(run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=own_algorithms:build_stock", "--runtime=local_worker"]
  done = run_forked(*flags, *where, "--task=own_tasks:good", "--rounds=2", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert [row["train_loss"] for row in metrics(run_dir)] == ["", ""]
  assert all(float(row["test_accuracy"]) > 0 for row in metrics(run_dir))


@pytest.mark.parametrize(
  "program",
  [
    pytest.param("lying_clients.py", marks=pytest.mark.thorough),
    "gradient_inversion.py",
  ],
)
def test_attacks_refuse_a_process_of_tffs_in_one_sentence(
  fork_program, tmp_path, program
):
  flags = {
    "lying_clients.py": ["--rounds=1", "--num_clients=4", "--clients_per_round=2"],
    "gradient_inversion.py": ["--num_examples=1"],
  }
  shutil.copy(ROOT / "tests/own_algorithms.py", tmp_path)
  done = fork_program(
    program,
    "--task=digits_cnn",
    "--algorithms=own_algorithms:build_stock",
    f"--out={tmp_path / 'out'}",
    *flags[program],
    cwd=tmp_path,
  )
  assert done.status == 2 and "compose_process has" in done.err.splitlines()[-1]
  assert "defect" not in done.err and not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_another_runtime_takes_the_folder_of_one_that_could_do_no_round(
  run_forked, tmp_path
):
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=own_algorithms:build_with_variable", "--rounds=1", *where]
  flags.append("--task=own_tasks:good")
  assert "local_worker" in run_forked(*flags, cwd=tmp_path).err
  assert not list(run_dir.iterdir())
  done = run_forked(*flags, "--runtime=local_worker", cwd=tmp_path)
  assert done.status == 0, done.err
  assert len(metrics(run_dir)) == 1


_MISTAKES = {
  "no such module": ("no_such_module:x", ["there is no module 'no_such_module'"]),
  "a flag that is there": ("own_algorithms:same_flag", ["--tls_key", "rename"]),
  "no personal model": (
    "own_algorithms:no_personal_model",
    ["has no personal_model, but its row has is_personal=True"],
  ),
  "no process": ("own_algorithms:build_nothing", ["nothing", "StatefulProcess"]),
}


@pytest.mark.parametrize("kind", _MISTAKES)
def test_what_is_no_algorithm_is_refused(run_forked, tmp_path, kind):
  name, words = _MISTAKES[kind]
  run_dir, where = place(tmp_path)
  flags = [f"--algorithm={name}", "--task=own_tasks:good", *where]
  assert_refused(run_forked(*flags, cwd=tmp_path), *words)
  assert not run_dir.exists()
