"""The training program from its command line: a run to its end, help, other ways."""

from __future__ import annotations

import datetime
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
import tensorflow as tf
from programs import ROOT, Done
from training import SMALL, Process, metrics, place, read_json, tree

from experiments.config import field_names
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry

# Of the small network for digits; a round of FedAvg sends it and two tunable
# hyper-parameters down, and it, its weight and 24 bytes of metrics up.
_WEIGHTS = 13_706
_BY_PART = {
  "down": {"model": 4 * _WEIGHTS, "hparams": 2 * 4},
  "up": {"model": 4 * _WEIGHTS, "metrics": 24, "aggregation": 4},
}
_DOWN, _UP = (sum(parts.values()) for parts in _BY_PART.values())

_ROUNDS = 5
_FIRST_LINE = "fedavg on digits_cnn: loading TensorFlow and data\n"


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
  run_dir, where = place(folder, "results/first")
  flags = [*SMALL, *where, f"--rounds={_ROUNDS}", "--target_accuracy=0.15"]
  process = Process(*flags, cwd=cwd, home=folder)
  return Finished(folder, run_dir, flags, process.end())


def test_run_says_what_it_does(finished):
  status, out, err = finished.done
  assert (status, err) == (0, "")
  lines = out.splitlines()
  assert f"{lines[0]}\n" == _FIRST_LINE
  assert "fedavg on digits_cnn" in lines[1]
  assert "8 clients, 3 a round" in lines[1]
  assert "13,706 weights" in lines[1]
  assert f"results in {finished.run_dir}" in lines
  rounds = [line for line in lines if line.startswith("round ")]
  assert [line.split(":")[0] for line in rounds] == [f"round {r}" for r in range(1, 6)]
  for line in rounds:
    assert re.fullmatch(
      r"round \d: train loss \d+\.\d{4}, test accuracy \d+\.\d\d %, \d+\.\d\d s/round",
      line,
    )
  assert lines[-1].startswith("5 rounds: best test accuracy ")


def test_run_leaves_its_files_and_no_others(finished):
  assert sorted(os.listdir(finished.run_dir)) == [
    "accuracy.png",
    "best_model.keras",
    "checkpoints",
    "config.json",
    "metrics.csv",
    "model.keras",
    "partition.png",
    "summary.json",
    "tensorboard",
    "traffic.png",
  ]
  assert tree(finished.folder / "cwd") == set()
  saved = os.listdir(finished.run_dir / "checkpoints")
  assert saved == ["round_0000005"]


def test_metrics_have_a_row_for_each_round(finished):
  rows = metrics(finished.run_dir)
  assert [row["round"] for row in rows] == [str(r) for r in range(1, _ROUNDS + 1)]
  sizes = read_json(next((finished.folder / "cache").rglob("clients.json")))[
    "num_examples"
  ]
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
  config = read_json(finished.run_dir / "config.json")
  assert list(config) == ["flags", "hparams", "data", "model", "sessions"]
  assert set(config["flags"]) == set(field_names())
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
  assert config["data"]["examples"] + config["data"]["left_over"] == 1437
  assert (config["data"]["clients"], config["data"]["test_examples"]) == (8, 360)
  for digest in ("client_files", "test_set"):
    assert re.fullmatch("[0-9a-f]{64}", config["data"][digest])
  model = config["model"]
  assert model["num_weights"] == _WEIGHTS
  sizes = [math.prod(map(int, shape.split("x"))) for shape in model["weights"]]
  assert sum(sizes) == _WEIGHTS
  assert any("Conv2D" in layer and "relu" in layer for layer in model["layers"])
  [session] = config["sessions"]
  assert session["command"] == ["binaries/train.py", *finished.flags]
  started = datetime.datetime.fromisoformat(session["started"])
  now = datetime.datetime.now(datetime.timezone.utc)
  assert started <= now < started + datetime.timedelta(days=1)
  assert (session["first_round"], session["last_round"]) == (1, _ROUNDS)
  assert session["machine"]["cores"] == len(os.sched_getaffinity(0))
  versions = session["versions"]
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
  [session] = read_json(finished.run_dir / "config.json")["sessions"]
  assert session["git_commit"] in ([commit, f"{commit}+changes"] if commit else [None])


def test_summary_is_of_the_rows(finished):
  summary = read_json(finished.run_dir / "summary.json")
  rows = metrics(finished.run_dir)
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
  assert read_json(finished.run_dir / "summary.json")["best_accuracy"] > 0.3


def _png_size(path: pathlib.Path) -> tuple[int, int]:
  head = path.read_bytes()[:24]
  assert head[:8] == b"\x89PNG\r\n\x1a\n"
  return struct.unpack(">II", head[16:])


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
  for row in metrics(finished.run_dir):
    for name in ("train_loss", "test_loss", "test_accuracy", "seconds", "bytes_up"):
      shown = found[name, int(row["round"])]
      assert shown == pytest.approx(float(row[name]), rel=1e-6)


# --- Other runtimes, and Ctrl-C -----------------------------------------------------


@pytest.mark.thorough
def test_local_worker_from_the_command_line_ends_with_ctrl_c(finished, tmp_path):
  """Ctrl-C reaches the whole process group, as in a terminal; its round is finished.

  Also where programs are told of a proxy, which must not be asked for the worker. Both
  runtimes give the same numbers up to the order of float operations.
  """
  run_dir, where = place(tmp_path, "a/new/folder")
  flags = [*SMALL, *where, "--runtime=local_worker", "--rounds=5000"]
  process = Process(*flags, cwd=tmp_path, home=tmp_path)
  process.wait_for_rounds(run_dir, 2)
  assert len(process.workers()) == 1
  os.killpg(process.popen.pid, signal.SIGINT)
  status, out, err = process.end()
  assert "Traceback" not in err
  assert status == 75
  assert process.workers() == set()
  assert "local_worker" in out.splitlines()[1]
  assert "port" in out
  rows = metrics(run_dir)
  assert read_json(run_dir / "summary.json")["rounds"] == len(rows) >= 2
  for row, expected in zip(rows[:2], metrics(finished.run_dir)):
    for name in ("train_loss", "test_loss"):
      assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-3)
    for name in ("num_examples", "num_accepted", "bytes_down", "bytes_up"):
      assert row[name] == expected[name]


def _without_seconds(rows):
  return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.mark.thorough
def test_processes_of_dask_give_the_same_metrics(finished, tmp_path):
  """Byte for byte; gone on with in one process."""
  run_dir, where = place(tmp_path)
  flags = [*SMALL, *where, "--rounds=1", "--runtime=dask", "--workers=2"]
  status, out, err = Process(*flags, cwd=tmp_path, home=tmp_path).end()
  assert (status, err) == (0, "")
  assert "2 workers" in out and "127.0.0.1" in out
  more = [*where, "--rounds=2", "--resume", "--runtime=in_process"]
  done = Process(*SMALL, *more, cwd=tmp_path, home=tmp_path).end()
  assert done.status == 0, done.err
  expected = _without_seconds(metrics(finished.run_dir))
  assert _without_seconds(metrics(run_dir)) == expected[:2]


def test_ctrl_c_while_tensorflow_is_imported_is_no_traceback(tmp_path):
  _, where = place(tmp_path / "results")
  process = Process(*where, cwd=tmp_path, home=tmp_path)
  maps = pathlib.Path(f"/proc/{process.popen.pid}/maps")
  deadline = time.monotonic() + 300
  while "libtensorflow" not in maps.read_text():
    assert process.popen.poll() is None, process.end()
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.popen.send_signal(signal.SIGINT)
  done = process.end()
  assert "Traceback" not in done.err
  assert (done.status, done.out) == (130, _FIRST_LINE)
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
  assert tree(tmp_path) == set()


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
  # Some tasks set it, and none the other.
  weighting = out.partition("--fedgg_client_weighting:")[2].partition("Source:")[0]
  assert " ".join(weighting.split()).endswith("Default: the task's, else examples.")
  mu = out.partition("--fedgg_mu:")[2].partition("Source:")[0]
  assert " ".join(mu.split()).endswith("Default: 0.01.")
  status, out, _ = run_forked("--algorithm", "scaffold", "--help", cwd=tmp_path)
  assert status == 0
  assert "--scaffold_option:" in out
  assert "fedgg_mu" not in out


# --- Other ways to say what is wanted -----------------------------------------------


def test_task_of_ones_own_from_the_folder_one_is_in(run_forked, tmp_path):
  (tmp_path / "my_tasks.py").write_text("from own_tasks import good as mine\n")
  run_dir, where = place(tmp_path)
  done = run_forked(*where, "--task=my_tasks:mine", "--rounds=1", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert len(metrics(run_dir)) == 1


@pytest.mark.thorough
def test_rounds_of_two_kinds_have_the_same_columns(run_forked, tmp_path):
  """The bias, 2 weights, travels in every second round only."""
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=twafl", "--twafl_rounds_in_loop=2", "--twafl_freq=1"]
  done = run_forked(*flags, *where, "--task=own_tasks:good", "--rounds=3", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  rows = metrics(run_dir)
  for direction in ("down", "up"):
    deep = [int(row[f"bytes_{direction}_deep"]) for row in rows]
    shallow = [int(row[f"bytes_{direction}_shallow"]) for row in rows]
    assert (deep, shallow) == ([0, 2 * 8, 0], [2 * 32] * 3)
  by_part = read_json(run_dir / "summary.json")["bytes_by_part"]
  assert (by_part["up"]["deep"], by_part["up"]["shallow"]) == (16, 3 * 64)


def test_flags_from_a_file(run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=fedgg", "--fedgg_mu=0.5", "--task=own_tasks:good", *where]
  (tmp_path / "flags").write_text("\n".join(flags))
  done = run_forked("--flagfile=flags", "--rounds=1", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  config = read_json(run_dir / "config.json")
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
  config = read_json(run_dir / "config.json")
  assert config["hparams"]["batch_size"] is None
