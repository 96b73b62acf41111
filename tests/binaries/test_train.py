"""The training program from its command line.

Whatever needs a process of its own is few real runs; the rest goes through forks.
"""

from __future__ import annotations

import csv
import fcntl
import glob
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
from typing import NamedTuple

import pytest
import tensorflow as tf
from programs import ROOT, Done, environment

from binaries import experiment
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry

_PROGRAM = str(ROOT / "binaries/train.py")

# Of the small network for digits; a round of FedAvg sends it and two tunable
# hyper-parameters down, and it, its weight and 24 bytes of metrics up.
_WEIGHTS = 13_706
_BY_PART = {
  "down": {"model": 4 * _WEIGHTS, "hparams": 2 * 4},
  "up": {"model": 4 * _WEIGHTS, "metrics": 24, "aggregation": 4},
}
_DOWN, _UP = (sum(parts.values()) for parts in _BY_PART.values())

# A small setting of the default task; everything that is run has it.
_SMALL = (
  "--num_clients=8",
  "--clients_per_round=3",
  "--epochs=1",
  "--partition=dirichlet:beta=0.5,min_size=20",
  "--seed=3",
)
_ROUNDS = 5

# A user's own tasks: all but the first have something wrong with them.
_OWN_TASKS = """
  import numpy as np
  import tensorflow as tf

  from tasks import registry
  from tasks.datasets import dataset

  layers = tf.keras.layers

  def data(*labels):
    def load(data_dir, cache_dir):
      x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
      y = (x[:, 0] > 0).astype(np.int32)
      y[: len(labels)] = labels
      return dataset.Dataset(x, y, x, y, num_classes=2)
    return load

  def model(*stack):
    return lambda shape, num_classes: tf.keras.Sequential(
      [layers.Input(shape), *(build() for build in stack)]
    )

  def dense(size=2):
    return lambda: layers.Dense(size)

  good = registry.Task(
    "own", "Two classes.", data(), model(dense()), partition="iid", num_clients=4,
    clients_per_round=2, rounds=2, hparams=dict(epochs=1, batch_size=5),
  )
  batch_norm = good._replace(
    build_keras_model=model(layers.BatchNormalization, dense())
  )
  nested_batch_norm = good._replace(
    build_keras_model=model(
      lambda: tf.keras.Sequential([layers.Dense(3), layers.BatchNormalization()]),
      dense(),
    )
  )
  labels_outside = good._replace(load_data=data(0, 2))
  negative_labels = good._replace(load_data=data(-1))
  few_outputs = good._replace(build_keras_model=model(dense(1)))
  wrong_shape = good._replace(
    build_keras_model=lambda shape, num_classes: model(dense())((5,), num_classes)
  )
  not_flat = good._replace(
    build_keras_model=model(lambda: layers.Reshape((4, 1)), dense())
  )
  not_built = good._replace(
    build_keras_model=lambda *_: tf.keras.Sequential([layers.Dense(2)])
  )
  no_hparam = good._replace(hparams=dict(epochs=0))
  not_a_task = 7
"""


@pytest.fixture(scope="module")
def run_forked(fork_program, tmp_path_factory):
  """`(*flags, cwd) -> Done`, in a fork of a process that has imported everything."""
  folder = tmp_path_factory.mktemp("own")
  (folder / "own_tasks.py").write_text(textwrap.dedent(_OWN_TASKS))

  def run(*flags: str, cwd) -> Done:
    return fork_program("train.py", *flags, cwd=cwd, paths=[str(folder)])

  return run


class _Process:
  """The program in a process, and process group, of its own; files take its output."""

  def __init__(self, *flags: str, cwd: pathlib.Path, home: pathlib.Path):
    self._files = [home / "process.out", home / "process.err"]
    with open(self._files[0], "w") as out, open(self._files[1], "w") as err:
      self.popen = subprocess.Popen(
        [sys.executable, _PROGRAM, *flags],
        cwd=cwd,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
        # A shell starts a job in the background with Ctrl-C ignored, these tests too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
      )

  def end(self, seconds: float = 200) -> Done:
    try:
      status = self.popen.wait(seconds)
    except subprocess.TimeoutExpired:
      self.popen.kill()
      self.popen.wait()
      raise
    return Done(status, *(path.read_text() for path in self._files))

  def wait_for_rounds(self, run_dir: pathlib.Path, rounds: int):
    deadline = time.monotonic() + 200
    while len(_rows(run_dir)) < rounds:
      assert self.popen.poll() is None, self.end()
      assert time.monotonic() < deadline, self.end(0)
      time.sleep(0.02)

  def workers(self) -> set[int]:
    """Ids of TFF's workers that run in its session, whether or not it still does."""
    found = set()
    for folder in glob.glob("/proc/[0-9]*"):
      try:
        with open(f"{folder}/stat") as f:
          state, _, _, session = f.read().rsplit(")", 1)[1].split()[:4]
        with open(f"{folder}/cmdline") as f:
          command = f.read()
      except OSError:
        continue  # It has just ended.
      if int(session) == self.popen.pid and state != "Z" and "worker_binary" in command:
        found.add(int(folder[len("/proc/") :]))
    return found


def _rows(run_dir: pathlib.Path) -> list[dict[str, str]]:
  """The whole rows of metrics.csv."""
  path = run_dir / "metrics.csv"
  if not path.exists():
    return []
  lines = path.read_text().splitlines(keepends=True)
  return list(csv.DictReader(line for line in lines if line.endswith("\n")))


def _without_seconds(rows: list[dict[str, str]]) -> list[dict[str, str]]:
  return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def _json(path: pathlib.Path):
  return json.loads(path.read_text())


def _tree(folder: pathlib.Path) -> set[str]:
  return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _png_size(path: pathlib.Path) -> tuple[int, int]:
  head = path.read_bytes()[:24]
  assert head[:8] == b"\x89PNG\r\n\x1a\n"
  return struct.unpack(">II", head[16:])


def _place(folder: pathlib.Path, name: str = "run") -> tuple[pathlib.Path, list[str]]:
  """A run's folder, and the flags that keep all it writes in `folder`."""
  run_dir = folder / name
  return run_dir, [f"--run_dir={run_dir}", f"--cache_dir={folder / 'cache'}"]


# --- A run to its end ---------------------------------------------------------------


class Finished(NamedTuple):
  """A run that was not disturbed."""

  folder: pathlib.Path
  run_dir: pathlib.Path
  flags: list[str]
  done: Done


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Finished:
  folder = tmp_path_factory.mktemp("finished")
  cwd = folder / "cwd"
  cwd.mkdir()
  run_dir, place = _place(folder, "results/first")
  flags = [*_SMALL, *place, f"--rounds={_ROUNDS}", "--target_accuracy=0.15"]
  process = _Process(*flags, cwd=cwd, home=folder)
  return Finished(folder, run_dir, flags, process.end())


def test_run_says_what_it_does(finished):
  status, out, err = finished.done
  assert (status, err) == (0, "")
  lines = out.splitlines()
  assert "fedavg on digits_cnn" in lines[0]
  assert "8 clients, 3 a round" in lines[0]
  assert "13,706 weights" in lines[0]
  assert f"results in {finished.run_dir}" in lines
  rounds = [line for line in lines if line.startswith("round ")]
  assert [line.split(":")[0] for line in rounds] == [f"round {r}" for r in range(1, 6)]
  assert lines[-1].startswith("5 rounds: best accuracy ")


def test_run_leaves_its_files_and_no_others(finished):
  assert sorted(os.listdir(finished.run_dir)) == [
    "accuracy.png",
    "checkpoints",
    "config.json",
    "metrics.csv",
    "partition.png",
    "summary.json",
    "tensorboard",
    "traffic.png",
  ]
  assert _tree(finished.folder / "cwd") == set()
  saved = os.listdir(finished.run_dir / "checkpoints")
  assert sorted(saved) == ["client_states", "round_0000005"]


def test_metrics_have_a_row_for_each_round(finished):
  rows = _rows(finished.run_dir)
  assert [row["round"] for row in rows] == [str(r) for r in range(1, _ROUNDS + 1)]
  sizes = _json(next((finished.folder / "cache").rglob("clients.json")))["num_examples"]
  for row in rows:
    assert float(row["train_loss"]) > 0
    assert float(row["test_loss"]) > 0
    # Of 360 test pictures.
    hits = 360 * float(row["test_accuracy"])
    assert abs(hits - round(hits)) < 1e-9
    assert float(row["seconds"]) > 0
    assert float(row["evaluation_seconds"]) > 0
    assert (row["num_accepted"], row["num_dropped"]) == ("3", "0")
    assert min(sizes) * 3 <= int(row["num_examples"]) <= max(sizes) * 3
    assert int(row["bytes_down"]) == 3 * _DOWN
    assert int(row["bytes_up"]) == 3 * _UP
    assert {name for name in row if name.startswith(("bytes_down_", "bytes_up_"))} == {
      f"bytes_{direction}_{part}"
      for direction, parts in _BY_PART.items()
      for part in parts
    }
    for direction, parts in _BY_PART.items():
      for part, count in parts.items():
        assert int(row[f"bytes_{direction}_{part}"]) == 3 * count


def test_config_holds_all_that_the_run_depends_on(finished):
  config = _json(finished.run_dir / "config.json")
  fields = set(experiment.Config.__dataclass_fields__)
  assert set(config["flags"]) == fields
  given = dict(
    algorithm="fedavg",
    task="digits_cnn",
    num_clients=8,
    clients_per_round=3,
    rounds=_ROUNDS,
    seed=3,
    partition="dirichlet:beta=0.5,min_size=20",
    partition_seed=0,
    target_accuracy=0.15,
    runtime="in_process",
    run_dir=str(finished.run_dir),
    hparams={"epochs": 1},
  )
  assert {k: config["flags"][k] for k in given} == given
  row = tasks_registry.get("digits_cnn")
  expected = {**row.hparams, "epochs": 1}
  assert {k: config["hparams"][k] for k in expected} == expected
  assert config["hparams"]["server_learning_rate"] == 1.0
  assert config["num_weights"] == _WEIGHTS
  assert config["data"]["examples"] + config["data"]["left_over"] == 1437
  assert (config["data"]["clients"], config["data"]["test_examples"]) == (8, 360)
  assert config["command"] == ["binaries/train.py", *finished.flags]
  versions = config["versions"]
  assert versions["python"] == sys.version.split()[0]
  assert versions["tensorflow"] == tf.__version__
  assert {"tensorflow-federated", "tensorflow-datasets", "numpy"} < set(versions)


def test_config_names_the_commit(finished):
  git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
  try:
    done = subprocess.run(git, capture_output=True, text=True, check=False)
  except FileNotFoundError:
    pytest.skip("no git")
  commit = done.stdout.strip() if done.returncode == 0 else None
  found = _json(finished.run_dir / "config.json")["git_commit"]
  assert found in ([commit, f"{commit}+changes"] if commit else [None])


def test_summary_is_of_the_rows(finished):
  summary = _json(finished.run_dir / "summary.json")
  rows = _rows(finished.run_dir)
  accuracies = [float(row["test_accuracy"]) for row in rows]
  assert summary["rounds"] == _ROUNDS
  assert summary["best_accuracy"] == max(accuracies)
  assert summary["best_accuracy_round"] == 1 + accuracies.index(max(accuracies))
  assert summary["final_accuracy"] == accuracies[-1]
  assert summary["final_accuracy_round"] == _ROUNDS
  reached = [r for r, value in enumerate(accuracies, 1) if value >= 0.15]
  assert summary["target_accuracy"] == 0.15
  assert summary["rounds_to_target"] == (reached[0] if reached else None)
  assert summary["bytes_down"] == 3 * _ROUNDS * _DOWN
  assert summary["bytes_up"] == 3 * _ROUNDS * _UP
  by_part = summary["bytes_by_part"]
  assert by_part == {
    direction: {part: 3 * _ROUNDS * count for part, count in parts.items()}
    for direction, parts in _BY_PART.items()
  }
  assert [list(parts) for parts in by_part.values()] == [
    list(parts)
    for parts in _BY_PART.values()  # The most first.
  ]
  assert summary["clients_dropped"] == 0
  assert summary["stopped_early"] is False
  assert summary["first_round_seconds"] == float(rows[0]["seconds"])
  # TensorFlow alone takes more than 100 MB; nothing here comes near 20 GB.
  assert 1e8 < summary["peak_memory_bytes"] < 2e10


def test_run_learns(finished):
  """Guessing gets 10 %; five rounds of three small clients are well above."""
  assert _json(finished.run_dir / "summary.json")["best_accuracy"] > 0.3


def test_pictures_are_pictures(finished):
  for name in ("accuracy.png", "partition.png", "traffic.png"):
    width, height = _png_size(finished.run_dir / name)
    assert 400 <= width <= 3000
    assert 300 <= height <= 3000
    pixels = tf.io.decode_png((finished.run_dir / name).read_bytes(), channels=1)
    assert len(set(pixels.numpy().ravel().tolist())) > 10


def test_tensorboard_shows_the_rows(finished):
  found = {}
  for path in (finished.run_dir / "tensorboard").iterdir():
    for raw in tf.data.TFRecordDataset(str(path)):
      event = tf.compat.v1.Event.FromString(raw.numpy())
      for value in event.summary.value:
        found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
  for row in _rows(finished.run_dir):
    for name in ("train_loss", "test_loss", "test_accuracy", "seconds", "bytes_up"):
      shown = found[name, int(row["round"])]
      assert shown == pytest.approx(float(row[name]), rel=1e-6)


# --- Breaks and resumption ----------------------------------------------------------


def _assert_goes_on(run_forked, finished, run_dir, flags, rounds_done: int):
  """The run is resumed to at least `_ROUNDS`, and is the undisturbed one."""
  rounds = max(_ROUNDS, rounds_done + 1)
  resume = [*flags, f"--rounds={rounds}", "--resume"]
  done = run_forked(*resume, cwd=finished.folder / "cwd")
  assert (done.status, done.err) == (0, "")
  rows = _rows(run_dir)
  assert [row["round"] for row in rows] == [str(r) for r in range(1, rounds + 1)]
  expected = _without_seconds(_rows(finished.run_dir))[:_ROUNDS]
  assert _without_seconds(rows)[:_ROUNDS] == expected
  summary = _json(run_dir / "summary.json")
  assert (summary["rounds"], summary["stopped_early"]) == (rounds, False)


def test_ctrl_c_ends_the_run_after_its_round_and_resume_goes_on(
  finished, run_forked, tmp_path
):
  run_dir, place = _place(tmp_path)
  flags = [*_SMALL, *place]
  process = _Process(*flags, "--rounds=5000", cwd=tmp_path, home=tmp_path)
  process.wait_for_rounds(run_dir, 2)
  process.popen.send_signal(signal.SIGINT)
  status, out, err = process.end()
  assert status == 0
  assert "Traceback" not in err
  assert len(err.strip().splitlines()) == 1
  rounds_done = len(_rows(run_dir))
  assert 2 <= rounds_done < 5000
  summary = _json(run_dir / "summary.json")
  assert (summary["rounds"], summary["stopped_early"]) == (rounds_done, True)
  assert (run_dir / "accuracy.png").exists()
  assert f"--run_dir={run_dir} --resume" in out.splitlines()[-1]
  _assert_goes_on(run_forked, finished, run_dir, flags, rounds_done)


def test_killed_run_is_resumed_from_its_checkpoint(finished, run_forked, tmp_path):
  run_dir, place = _place(tmp_path)
  flags = [*_SMALL, *place, "--checkpoint_every=2"]
  process = _Process(*flags, "--rounds=5000", cwd=tmp_path, home=tmp_path)
  process.wait_for_rounds(run_dir, 3)
  process.popen.kill()
  assert process.end().status == -signal.SIGKILL
  assert not (run_dir / "summary.json").exists()
  [name] = glob.glob(str(run_dir / "checkpoints/round_???????"))
  saved = int(name[-7:])
  assert saved >= 2
  _assert_goes_on(run_forked, finished, run_dir, flags, saved)


def test_local_worker_from_the_command_line_ends_with_ctrl_c(finished, tmp_path):
  """Ctrl-C reaches the whole process group, as in a terminal; its round is finished.

  Also where programs are told of a proxy, which must not be asked for the worker. Both
  runtimes give the same numbers up to the order of float operations.
  """
  run_dir, place = _place(tmp_path, "a/new/folder")
  flags = [*_SMALL, *place, "--runtime=local_worker", "--rounds=5000"]
  process = _Process(*flags, cwd=tmp_path, home=tmp_path)
  process.wait_for_rounds(run_dir, 2)
  assert len(process.workers()) == 1
  os.killpg(process.popen.pid, signal.SIGINT)
  status, out, err = process.end()
  assert "Traceback" not in err
  assert status == 0
  assert process.workers() == set()
  assert "local_worker" in out.splitlines()[0]
  assert "port" in out
  rows = _rows(run_dir)
  assert _json(run_dir / "summary.json")["rounds"] == len(rows) >= 2
  for row, expected in zip(rows[:2], _rows(finished.run_dir)):
    for name in ("train_loss", "test_loss"):
      assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-3)
    for name in ("num_examples", "num_accepted", "bytes_down", "bytes_up"):
      assert row[name] == expected[name]


def test_remote_workers_from_the_command_line(
  finished, start_worker, certificates, run_forked, tmp_path
):
  """With two runs of binaries/worker.py; resumed without them."""
  run_dir, place = _place(tmp_path)
  programs = [start_worker(), start_worker()]
  workers = ",".join(f"localhost:{program.port}" for program in programs)
  flags = [
    *(*_SMALL, *place, "--rounds=2", "--runtime=remote_workers", f"--workers={workers}"),
    f"--worker_certificate={certificates / 'program.pem'}",
    f"--worker_key={certificates / 'program.key'}",
    f"--worker_authority={certificates / 'ca.pem'}",
  ]
  status, out, err = _Process(*flags, cwd=tmp_path, home=tmp_path).end()
  assert (status, err) == (0, "")
  assert "2 of 2 workers answer" in out
  for row, expected in zip(_rows(run_dir), _rows(finished.run_dir)):
    for name in ("train_loss", "test_loss"):
      assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-3)
    for name in ("num_examples", "num_accepted", "bytes_down", "bytes_up"):
      assert row[name] == expected[name]
  done = run_forked(*_SMALL, *place, "--rounds=2", "--resume", cwd=tmp_path)
  assert done.status == 0, done.err


@pytest.mark.parametrize(
  "changed",
  [
    "--seed=4",
    "--learning_rate=0.2",
    "--algorithm=fedgg",
    "--clients_per_round=4",
    "--partition_seed=1",
    "--eval_every=2",
    "--epochs=2",
    "--rounds=1",
  ],
)
def test_resuming_with_another_setting_is_refused(finished, run_forked, changed):
  before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
  cwd = finished.folder / "cwd"
  done = run_forked(*finished.flags, changed, "--resume", cwd=cwd)
  name, _, value = changed.lstrip("-").partition("=")
  _assert_refused(done, str(finished.run_dir), name)
  assert value in done.err
  after = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
  assert after == before


def test_folder_of_a_run_is_not_written_over(finished, run_forked):
  before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
  done = run_forked(*finished.flags, cwd=finished.folder / "cwd")
  _assert_refused(done, str(finished.run_dir), "--resume")
  after = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
  assert after == before


def test_finished_run_resumed_does_nothing_more(finished, run_forked):
  rows = _rows(finished.run_dir)
  done = run_forked(*finished.flags, "--resume", cwd=finished.folder / "cwd")
  assert (done.status, done.err) == (0, "")
  assert _rows(finished.run_dir) == rows
  assert _json(finished.run_dir / "summary.json")["stopped_early"] is False


def test_finished_run_without_its_checkpoints_is_not_written_over(
  finished, run_forked, tmp_path
):
  run_dir, place = _place(tmp_path)
  without = shutil.ignore_patterns("checkpoints")
  shutil.copytree(finished.run_dir, run_dir, ignore=without)
  before = _rows(run_dir)
  flags = [*finished.flags, *place, f"--rounds={_ROUNDS + 1}", "--resume"]
  _assert_refused(run_forked(*flags, cwd=tmp_path), "without its checkpoints")
  assert _rows(run_dir) == before


def test_ctrl_c_while_tensorflow_is_imported_is_no_traceback(tmp_path):
  _, place = _place(tmp_path / "results")
  process = _Process(*place, cwd=tmp_path, home=tmp_path)
  maps = pathlib.Path(f"/proc/{process.popen.pid}/maps")
  deadline = time.monotonic() + 60
  while "libtensorflow" not in maps.read_text():
    assert process.popen.poll() is None, process.end()
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.popen.send_signal(signal.SIGINT)
  done = process.end()
  assert "Traceback" not in done.err
  assert (done.status, done.out) == (130, "")
  assert not (tmp_path / "results").exists()


# --- Help ---------------------------------------------------------------------------


def test_list_names_every_algorithm_and_task(run_forked, tmp_path):
  status, out, err = run_forked("--list", "--epochs=3", cwd=tmp_path)
  assert (status, err) == (0, "")
  first_words = [line.split()[0] for line in out.splitlines()]
  assert first_words == [
    "algorithms:",
    *algorithms_registry.ALGORITHMS,
    "tasks:",
    *tasks_registry.TASKS,
  ]
  assert _tree(tmp_path) == set()


def test_help_shows_the_flags_of_the_chosen_algorithm_only(run_forked, tmp_path):
  status, out, err = run_forked("--algorithm=fedgg", "--help", cwd=tmp_path)
  assert (status, err) == (0, "")
  for shown in (
    "--fedgg_mu:",
    "--fedgg_direction:",
    "--epochs:",
    "--task:",
    "--run_dir:",
  ):
    assert shown in out, shown
  assert "--scaffold_option" not in out
  status, out, _ = run_forked("--algorithm", "scaffold", "--help", cwd=tmp_path)
  assert status == 0
  assert "--scaffold_option:" in out
  assert "fedgg_mu" not in out


# --- Mistakes -----------------------------------------------------------------------


def _assert_refused(done: Done, *words: str):
  """Status 2, nothing on standard output and one sentence that says these words."""
  assert "Traceback" not in done.err, done.err
  assert (done.status, done.out) == (2, ""), done
  assert len(done.err.splitlines()) == 1, done.err
  assert done.err.endswith("\n")
  for word in words:
    assert word in done.err, done.err


_MISTAKES = {
  "unknown algorithm": (["--algorithm=fedavgg"], ["fedavgg", "did you mean 'fedavg'"]),
  "no algorithm": (["--algorithm="], ["''"]),
  "unknown task": (["--task=digit_cnn"], ["digit_cnn", "did you mean 'digits_cnn'"]),
  "unknown flag": (["--runds=3"], ["runds", "rounds"]),
  "no flag": (["digits_cnn"], ["digits_cnn", "--flag=value"]),
  "flag of another algorithm": (
    ["--scaffold_option=I"],
    ["--scaffold_option", "scaffold", "fedavg"],
  ),
  "flag the algorithm has not": (
    ["--algorithm=fedsgd", "--epochs=2"],
    ["fedsgd", "epochs"],
  ),
  "hyper-parameter it has not": (["--fedavg_mu=1"], ["fedavg_mu"]),
  "word for a number": (["--rounds=ten"], ["rounds", "ten"]),
  "fraction for a count": (["--rounds=1.5"], ["rounds", "1.5"]),
  "word for a rate": (["--learning_rate=fast"], ["learning_rate", "fast"]),
  "word for a batch size": (["--batch_size=all"], ["batch_size", "all", "inf"]),
  "no rounds": (["--rounds=0"], ["rounds", "at least 1"]),
  "negative rounds": (["--rounds=-1"], ["rounds", "-1"]),
  "no clients": (["--num_clients=0"], ["num_clients"]),
  "empty cohort": (["--clients_per_round=0"], ["clients_per_round"]),
  "more clients a round than clients": (
    ["--num_clients=5", "--clients_per_round=6"],
    ["clients_per_round is 6", "5 clients"],
  ),
  "more clients a round than the task has": (
    ["--clients_per_round=21"],
    ["clients_per_round is 21", "20 clients"],
  ),
  "no epochs": (["--epochs=0"], ["epochs", ">= 1"]),
  "empty batch": (["--batch_size=0"], ["batch_size", ">= 1", "or inf"]),
  "negative batch": (["--batch_size=-3"], ["batch_size", "-3"]),
  "rate of zero": (["--learning_rate=0"], ["learning_rate", "> 0"]),
  "negative rate": (["--learning_rate=-0.1"], ["learning_rate", "-0.1"]),
  "rate that is not a number": (["--learning_rate=nan"], ["learning_rate", "nan"]),
  "infinite rate": (["--learning_rate=inf"], ["learning_rate", "inf"]),
  "server's rate of zero": (
    ["--fedavg_server_learning_rate=0"],
    ["server_learning_rate", "> 0"],
  ),
  "momentum of one": (["--momentum=1"], ["momentum", "0.999"]),
  "no such option": (
    ["--algorithm=scaffold", "--scaffold_option=III"],
    ["option", "I, II", "III"],
  ),
  "negative mu": (["--algorithm=fedgg", "--fedgg_mu=-1"], ["mu", ">= 0"]),
  "batch size beyond int32": (["--batch_size=10000000000"], ["batch_size"]),
  "epochs beyond int32": (["--epochs=1000000000000"], ["epochs"]),
  "negative seed": (["--seed=-1"], ["seed"]),
  "negative seed of the split": (["--partition_seed=-1"], ["partition_seed"]),
  "no evaluation": (["--eval_every=0"], ["eval_every"]),
  "negative interval": (["--checkpoint_every=-1"], ["checkpoint_every"]),
  "no threads": (["--threads=0"], ["threads"]),
  "no such device": (["--devices=CPU:0,GPU:7"], ["GPU:7", "CPU:0"]),
  "a device twice": (["--devices=cpu:0,CPU:0"], ["twice", "CPU:0"]),
  "no device": (["--devices="], ["device"]),
  "target above one": (["--target_accuracy=97"], ["target_accuracy", "97"]),
  "unknown runtime": (["--runtime=remote"], ["remote", "in_process, local_worker"]),
  "remote workers without addresses": (
    ["--runtime=remote_workers"],
    ["remote_workers", "host:port"],
  ),
  "a worker without a port": (
    ["--runtime=remote_workers", "--workers=localhost"],
    ["host:port", "'localhost'"],
  ),
  "workers of another runtime": (
    ["--workers=localhost:8470"],
    ["workers", "in_process", "remote_workers"],
  ),
  "a certificate without its key": (
    [
      *("--runtime=remote_workers", "--workers=localhost:8470"),
      *("--worker_certificate=a.pem", "--worker_authority=ca.pem"),
    ],
    ["worker_key is missing"],
  ),
  "certificates that are not there": (
    [
      *("--runtime=remote_workers", "--workers=localhost:8470"),
      *("--worker_certificate=a.pem", "--worker_key=a.key", "--worker_authority=c.pem"),
    ],
    ["There is no file a.pem"],
  ),
  "unknown split": (["--partition=dirichle"], ["dirichle", "dirichlet"]),
  "split without its parameter": (["--partition=dirichlet"], ["beta"]),
  "word in a split": (["--partition=dirichlet:beta=x"], ["beta"]),
  "split out of range": (["--partition=dirichlet:beta=0"], ["beta"]),
  "unknown parameter of a split": (["--partition=iid:beta=1"], ["beta", "iid"]),
  "clients that may be empty": (
    ["--partition=dirichlet:beta=0.5,min_size=0"],
    ["min_size", "at least 1"],
  ),
  "more clients than examples": (
    ["--partition=iid", "--num_clients=1438", "--clients_per_round=1"],
    ["1438 clients", "1437"],
  ),
  "no such module": (["--task=no_such_module:task"], ["no_such_module"]),
  "no such attribute": (["--task=own_tasks:nothing"], ["own_tasks:nothing"]),
  "no task": (["--task=own_tasks:not_a_task"], ["tasks.registry.Task"]),
  "batch normalization": (["--task=own_tasks:batch_norm"], ["GroupNormalization"]),
  "nested batch normalization": (
    ["--task=own_tasks:nested_batch_norm"],
    ["GroupNormalization"],
  ),
  "labels outside the classes": (
    ["--task=own_tasks:labels_outside"],
    ["label 2", "2 classes"],
  ),
  "negative labels": (["--task=own_tasks:negative_labels"], ["label -1"]),
  "fewer outputs than classes": (["--task=own_tasks:few_outputs"], ["2 classes"]),
  "model of other inputs": (["--task=own_tasks:wrong_shape"], ["5"]),
  "predictions of another rank": (["--task=own_tasks:not_flat"], ["shape"]),
  "model that is not built": (["--task=own_tasks:not_built"], ["not built"]),
  "task with an impossible default": (["--task=own_tasks:no_hparam"], ["epochs"]),
  "task without a module": (["--task=:"], ["':'", "cannot be imported"]),
  "cache that is not local": (["--cache_dir=gs://a/b"], ["gs://a/b", "local folder"]),
  "missing file of flags": (["--flagfile=no_such_file"], ["no_such_file"]),
}


@pytest.mark.parametrize("kind", _MISTAKES)
def test_mistake_is_one_sentence_and_nothing_is_written(run_forked, tmp_path, kind):
  flags, words = _MISTAKES[kind]
  cwd = tmp_path / "cwd"
  cwd.mkdir()
  _, place = _place(tmp_path)
  done = run_forked(*place, *flags, cwd=cwd)
  _assert_refused(done, *words)
  assert _tree(tmp_path) == {"cwd"}


@pytest.mark.parametrize("task", ["mnist_2nn", "cifar10_lenet"])
def test_missing_data_are_named_and_how_to_get_them(run_forked, tmp_path, task):
  cwd = tmp_path / "cwd"
  cwd.mkdir()
  _, place = _place(tmp_path)
  flags = [f"--task={task}", f"--data_dir={tmp_path / 'nothing'}"]
  done = run_forked(*place, *flags, cwd=cwd)
  _assert_refused(done, "binaries/import_data.py", str(tmp_path / "nothing"))
  assert _tree(tmp_path) == {"cwd"}


@pytest.mark.parametrize(
  "run_dir", ["notes", "notes/file.txt", "notes/file.txt/below", ""]
)
def test_folder_that_cannot_be_the_runs_is_refused(run_forked, tmp_path, run_dir):
  """A folder with other files, a file, below a file, none."""
  cwd = tmp_path / "cwd"
  (cwd / "notes").mkdir(parents=True)
  (cwd / "notes/file.txt").write_text("mine")
  before = _tree(tmp_path)
  flags = [f"--run_dir={run_dir}", f"--cache_dir={tmp_path / 'cache'}"]
  _assert_refused(run_forked(*_SMALL, *flags, cwd=cwd), run_dir, "run_dir")
  assert _tree(tmp_path) == before


def test_resuming_needs_the_folder_of_a_run(run_forked, tmp_path):
  _assert_refused(run_forked("--resume", cwd=tmp_path), "--resume needs --run_dir")
  assert _tree(tmp_path) == set()


def test_cache_that_is_a_file_is_refused(run_forked, tmp_path):
  (tmp_path / "file.txt").write_text("mine")
  flags = [f"--run_dir={tmp_path / 'run'}", f"--cache_dir={tmp_path / 'file.txt'}"]
  _assert_refused(run_forked(*_SMALL, *flags, cwd=tmp_path), "file.txt")
  assert _tree(tmp_path) == {"file.txt"}


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"flags": 3}'])
@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_config_of_another_program_is_refused(run_forked, tmp_path, content, resume):
  run_dir, place = _place(tmp_path)
  run_dir.mkdir()
  (run_dir / "config.json").write_text(content)
  done = run_forked(*_SMALL, *place, *resume, cwd=tmp_path)
  _assert_refused(done, str(run_dir))
  assert _tree(tmp_path) == {"run", "run/config.json"}


def test_folder_that_another_process_writes_is_refused(run_forked, tmp_path):
  run_dir, place = _place(tmp_path)
  run_dir.mkdir()
  handle = os.open(run_dir, os.O_RDONLY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX)
    done = run_forked(*_SMALL, *place, cwd=tmp_path)
  finally:
    os.close(handle)
  _assert_refused(done, "is being written by another process")
  assert not list(run_dir.iterdir())


def test_only_with_verbosity_a_mistake_has_a_traceback(run_forked, tmp_path):
  _, place = _place(tmp_path)
  done = run_forked(*place, "--rounds=0", "--verbosity=1", cwd=tmp_path)
  assert done.status == 2
  assert "Traceback" in done.err
  assert "rounds must be at least 1" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--algorithm=fedavgg"], ["did you mean 'fedavg'"]),
    (["--task=digit_cnn"], ["did you mean 'digits_cnn'"]),
    # Found after TFF was imported, which does things, and may print, when Python ends.
    (["--partition=nonsense", "--devices=CPU:0"], ["nonsense", "iid"]),
  ],
)
def test_mistake_in_a_process_of_its_own(tmp_path, tmp_path_factory, flags, words):
  """Nothing of TensorFlow's, TFF's or Python's is on standard error either."""
  home = tmp_path_factory.mktemp("home")  # Keras and Matplotlib keep settings there.
  _, place = _place(tmp_path)
  done = _Process(*place, *flags, cwd=tmp_path, home=home).end()
  _assert_refused(done, *words)
  assert _tree(tmp_path) == set()


# --- Other ways to say what is wanted -----------------------------------------------


def test_task_of_ones_own_from_the_folder_one_is_in(run_forked, tmp_path):
  (tmp_path / "my_tasks.py").write_text("from own_tasks import good as mine\n")
  run_dir, place = _place(tmp_path)
  done = run_forked(*place, "--task=my_tasks:mine", "--rounds=1", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert len(_rows(run_dir)) == 1


def test_rounds_of_two_kinds_have_the_same_columns(run_forked, tmp_path):
  """The bias, 2 weights, travels in every second round only."""
  run_dir, place = _place(tmp_path)
  flags = ["--algorithm=twafl", "--twafl_rounds_in_loop=2", "--twafl_freq=1"]
  done = run_forked(*flags, *place, "--task=own_tasks:good", "--rounds=3", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  rows = _rows(run_dir)
  for direction in ("down", "up"):
    deep = [int(row[f"bytes_{direction}_deep"]) for row in rows]
    shallow = [int(row[f"bytes_{direction}_shallow"]) for row in rows]
    assert (deep, shallow) == ([0, 2 * 8, 0], [2 * 32] * 3)
  by_part = _json(run_dir / "summary.json")["bytes_by_part"]
  assert (by_part["up"]["deep"], by_part["up"]["shallow"]) == (16, 3 * 64)


def test_flags_from_a_file(run_forked, tmp_path):
  run_dir, place = _place(tmp_path)
  flags = ["--algorithm=fedgg", "--fedgg_mu=0.5", "--task=own_tasks:good", *place]
  (tmp_path / "flags").write_text("\n".join(flags))
  done = run_forked("--flagfile=flags", "--rounds=1", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  config = _json(run_dir / "config.json")
  assert config["flags"]["algorithm"] == "fedgg"
  assert config["hparams"]["mu"] == 0.5


def test_without_a_folder_the_run_gets_one_of_its_own(run_forked, tmp_path):
  cache = f"--cache_dir={tmp_path / 'cache'}"
  flags = [cache, "--task=own_tasks:good", "--rounds=1", "--batch_size=inf"]
  done = run_forked(*flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  [run_dir] = (tmp_path / "runs").iterdir()
  assert "own" in run_dir.name
  assert "fedavg" in run_dir.name
  config = _json(run_dir / "config.json")
  assert config["hparams"]["batch_size"] is None
