"""A run's model, evaluated again by evaluate.py."""

from __future__ import annotations

import csv
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from programs import ROOT
from training import assert_refused, metrics, place, read_json, tree

from tasks.datasets import digits
from tff_algos import client_data
from tff_algos.models import functional

_SPEC = functional.ExampleSpec(
  tf.TensorSpec([8, 8, 1], tf.uint8), tf.TensorSpec([], tf.int32)
)


@pytest.fixture(scope="module")
def evaluate(fork_program, trained):
  """`(*flags) -> Done` of evaluate.py, on the run unless another is named."""

  def run(*flags: str, run_dir=trained.run_dir, before="", cwd=trained.folder):
    where = dict(cwd=cwd, paths=[str(ROOT / "tests")])
    given = [f"--run={run_dir}", *flags]
    return fork_program("evaluate.py", *given, **where, before=before)

  return run


@pytest.fixture(scope="module")
def mine(trained, tmp_path_factory) -> pathlib.Path:
  """A copy of the run, whose folder may be written."""
  run_dir = tmp_path_factory.mktemp("mine") / "run"
  shutil.copytree(trained.run_dir, run_dir)
  return run_dir


@pytest.fixture(scope="module")
def evaluated(evaluate, mine):
  done = evaluate(run_dir=mine)
  assert (done.status, done.err) == (0, "")
  return done.out


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
  with open(path, newline="") as f:
    return list(csv.DictReader(f))


def _words(loss: str, accuracy: str) -> str:
  return f"360 examples: loss {float(loss):.4f}, accuracy {100 * float(accuracy):.2f} %"


def test_test_set_has_the_numbers_of_the_run(trained, evaluated, evaluate, tmp_path):
  last = metrics(trained.run_dir)[-1]
  assert _words(last["test_loss"], last["test_accuracy"]) in evaluated
  best = read_json(trained.run_dir / "summary.json")["best_accuracy_round"]
  assert best < trained.rounds
  done = evaluate("--best", f"--out={tmp_path / 'best.csv'}")
  row = metrics(trained.run_dir)[best - 1]
  assert _words(row["test_loss"], row["test_accuracy"]) in done.out
  assert f"round {best}" in done.out
  assert len(_rows(tmp_path / "best.csv")) == 8


def _clients(trained) -> client_data.ClientDirectory:
  [manifest] = (trained.folder / "cache").rglob("clients.json")
  return client_data.ClientDirectory(str(manifest.parent))


def test_each_client_has_the_numbers_of_its_own_examples(trained, evaluated, mine):
  """By the Keras model that the run has kept, and NumPy."""
  rows, clients = _rows(mine / "clients.csv"), _clients(trained)
  assert [row["client"] for row in rows] == list(clients.ids)
  assert list(rows[0]) == ["client", "examples", "held_out", "loss", "accuracy"]
  model = tf.keras.models.load_model(mine / "model.keras")
  for row in rows:
    x, y = clients.examples(row["client"], _SPEC)
    logits = model.predict(x, verbose=0).astype(np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    assert int(row["examples"]) == len(y)
    assert float(row["loss"]) == pytest.approx(losses.mean(), rel=1e-4)
    assert float(row["accuracy"]) == np.mean(logits.argmax(axis=1) == y)


def test_clients_together_are_the_training_set(trained, mine, evaluated):
  """Less what the split leaves over."""
  rows, data = _rows(mine / "clients.csv"), digits.load()
  config = read_json(trained.run_dir / "config.json")
  left_over = config["data"]["left_over"]
  assert sum(int(row["examples"]) for row in rows) == len(data.train_y) - left_over
  hits = sum(int(row["examples"]) * float(row["accuracy"]) for row in rows)
  model = tf.keras.models.load_model(mine / "model.keras")
  found = model.predict(data.train_x, verbose=0).argmax(axis=1)
  assert 0 <= np.sum(found == data.train_y) - hits <= left_over + 1e-6
  trained_on = sum(int(row["examples"]) for row in rows if row["held_out"] == "0")
  assert trained_on == config["data"]["training"]["num_examples"]


def test_percentiles_are_those_of_the_lines(mine, evaluated):
  rows = _rows(mine / "clients.csv")
  for held_out, words, number in (("0", "clients", 6), ("1", "held-out clients", 2)):
    own = [100 * float(r["accuracy"]) for r in rows if r["held_out"] == held_out]
    assert len(own) == number
    [line] = [x for x in evaluated.splitlines() if x.startswith(f"{number} {words}:")]
    said = [float(value) for value in re.findall(r"([\d.]+) %", line)]
    middle, low, high = np.percentile(own, (50, 10, 90))
    assert said == pytest.approx([middle, low, high, min(own)], abs=0.0051)


def test_model_file_alone_gives_the_same(mine, evaluated, evaluate, tmp_path):
  """As a folder of results has it, without its checkpoints and where it was tracked."""
  run_dir = tmp_path / "run"
  shutil.copytree(mine, run_dir, ignore=shutil.ignore_patterns("checkpoints", "*.csv"))
  config = read_json(run_dir / "config.json")
  config["flags"]["tracker"] = ["wandb"]  # Which is not installed.
  (run_dir / "config.json").write_text(json.dumps(config))
  done = evaluate(run_dir=run_dir)
  assert (done.status, done.err) == (0, "")
  assert f"{run_dir / 'model.keras'}:" in done.out
  for a, b in zip(evaluated.splitlines()[1:-1], done.out.splitlines()[1:-1]):
    assert a == b
  for a, b in zip(_rows(mine / "clients.csv"), _rows(run_dir / "clients.csv")):
    assert (a["client"], a["accuracy"]) == (b["client"], b["accuracy"])
    assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)


def _with_config(mine: pathlib.Path, folder: pathlib.Path, **data) -> pathlib.Path:
  run_dir = folder / "run"
  shutil.copytree(mine, run_dir)
  config = read_json(run_dir / "config.json")
  config["data"].update(data)
  (run_dir / "config.json").write_text(json.dumps(config))
  return run_dir


def test_other_data_are_refused_unless_they_are_asked_for(mine, evaluate, tmp_path):
  run_dir = _with_config(mine, tmp_path, test_set="0" * 64)
  (run_dir / "clients.csv").unlink(missing_ok=True)
  before = tree(tmp_path)
  done = evaluate(run_dir=run_dir)
  assert_refused(done, f"not the data of {run_dir}", "test_set", "--other_data")
  assert tree(tmp_path) == before
  done = evaluate("--other_data", run_dir=run_dir)
  assert done.status == 0, done.err
  assert tree(tmp_path) == before | {"run/clients.csv"}


def test_data_of_another_dtype_are_not_those_of_the_runs_model(mine, evaluate, tmp_path):
  """They would be scaled otherwise than those that it was trained on."""
  run_dir = _with_config(mine, tmp_path)
  config = read_json(run_dir / "config.json")
  assert config["model"]["input"] == "uint8[8, 8, 1]"
  config["model"]["input"] = "float32[8, 8, 1]"
  (run_dir / "config.json").write_text(json.dumps(config))
  before = tree(tmp_path)
  done = evaluate("--other_data", run_dir=run_dir)
  assert_refused(done, "a model with input='float32[8, 8, 1]', not 'uint8[8, 8, 1]'")
  assert tree(tmp_path) == before


def test_fewer_clients_than_were_held_out_are_refused_before_all_work(
  mine, evaluate, tmp_path
):
  run_dir = _with_config(mine, tmp_path)
  config = read_json(run_dir / "config.json")
  config["flags"]["held_out_clients"] = 1000
  (run_dir / "config.json").write_text(json.dumps(config))
  before = tree(tmp_path)
  done = evaluate("--other_data", run_dir=run_dir)
  assert_refused(done, "held_out_clients must be in 0..", "found 1000")
  assert tree(tmp_path) == before


def test_out_is_no_other_file(mine, evaluate, tmp_path):
  run_dir = _with_config(mine, tmp_path)
  before = (run_dir / "config.json").read_bytes()
  done = evaluate(f"--out={run_dir / 'config.json'}", run_dir=run_dir)
  assert_refused(done, "cannot be the --out: it is another file")
  assert (run_dir / "config.json").read_bytes() == before
  out = tmp_path / "clients.csv"
  for _ in range(2):  # One of ours is replaced.
    done = evaluate(f"--out={out}", run_dir=run_dir)
    assert done.status == 0, done.err


def test_checkpoint_of_another_model_is_refused(mine, evaluate, tmp_path):
  """Whose weights may fit; the model file, where it is alone, is the one that trained."""
  run_dir = tmp_path / "run"
  shutil.copytree(mine, run_dir, ignore=shutil.ignore_patterns("*.csv"))
  config = read_json(run_dir / "config.json")
  config["model"]["num_weights"] = 1
  (run_dir / "config.json").write_text(json.dumps(config))
  before = tree(tmp_path)
  done = evaluate("--other_data", run_dir=run_dir)
  assert_refused(done, f"{run_dir} holds a run of a model with num_weights=1, not ")
  assert tree(tmp_path) == before
  shutil.rmtree(run_dir / "checkpoints")
  assert evaluate(run_dir=run_dir).status == 0


@pytest.mark.thorough
def test_checkpoint_of_a_task_whose_preprocessing_changed_is_refused(
  run_forked, evaluate, tmp_path
):
  """Its weights, layers and data are the same; without a model file it is in the task."""
  run_dir, where = place(tmp_path)
  source = tmp_path / "mine.py"
  source.write_text("from own_tasks import good, own_preprocess as task\n")
  done = run_forked("--task=mine:task", "--rounds=1", *where, cwd=tmp_path)
  assert done.status == 0, done.err
  done = evaluate(run_dir=run_dir, cwd=tmp_path)
  assert done.status == 0, done.err
  source.write_text("from own_tasks import own_preprocess, good as task\n")
  before = tree(tmp_path)
  done = evaluate(run_dir=run_dir, cwd=tmp_path)
  assert_refused(done, f"{run_dir} holds a run of a model with mine='", "files")
  assert tree(tmp_path) == before


def test_damaged_checkpoint_or_model_is_said_with_what_is_left(mine, evaluate, tmp_path):
  run_dir = tmp_path / "run"
  shutil.copytree(mine, run_dir, ignore=shutil.ignore_patterns("clients.csv"))
  for path in run_dir.glob("checkpoints/*/server.npz"):
    path.write_bytes(b"")
  before = tree(tmp_path)
  done = evaluate(run_dir=run_dir)
  checkpoints, model = run_dir / "checkpoints", run_dir / "model.keras"
  said = f"Or move {checkpoints} away, so that {model} is taken.\n"
  assert done.status == 2 and done.err.endswith(said), done.err
  model.unlink()
  done = evaluate(run_dir=run_dir)
  assert done.status == 2 and done.err.endswith("begin anew, in another folder.\n")
  shutil.rmtree(checkpoints)
  # HDF5 must not open it: it would crash when the process ends.
  model.write_bytes((mine / "model.keras").read_bytes()[:1000])
  done = evaluate(run_dir=run_dir)
  remedy = "do the run again, in another folder."
  assert_refused(done, f"cannot be opened (File is not a zip file): {remedy}")
  whole = bytearray((mine / "model.keras").read_bytes())
  whole[whole.index(b"HDF") + 3000] ^= 1
  model.write_bytes(whole)
  done = evaluate(run_dir=run_dir)
  assert_refused(done, f"(model.weights.h5 in it is damaged): {remedy}")
  assert tree(tmp_path) == {path for path in before if "checkpoints" not in path}


def test_folder_without_a_model_is_refused(mine, evaluate, tmp_path):
  run_dir = tmp_path / "run"
  ignored = shutil.ignore_patterns("checkpoints", "*.keras", "clients.csv")
  shutil.copytree(mine, run_dir, ignore=ignored)
  before = tree(tmp_path)
  assert_refused(evaluate(run_dir=run_dir), "neither model.keras nor a checkpoint")
  assert_refused(evaluate(run_dir=tmp_path), "is no folder of a run")
  assert tree(tmp_path) == before


def test_folder_for_the_file_is_refused_before_anything_is_evaluated(
  mine, evaluate, tmp_path
):
  for out in (str(tmp_path), f"{tmp_path}/new/"):
    done = evaluate(f"--out={out}", run_dir=mine)
    assert_refused(done, f"{out} cannot be the --out: it is a folder")
    assert not done.out
  assert not list(tmp_path.iterdir())


def test_cache_that_is_a_file_is_refused(mine, evaluate, tmp_path):
  (tmp_path / "file").write_text("mine")
  done = evaluate(f"--cache_dir={tmp_path / 'file'}", run_dir=mine)
  assert_refused(done, f"{tmp_path / 'file'} cannot be the cache_dir: ")
  assert not done.out


def test_defect_where_a_checkpoint_is_read_is_not_the_users(mine, evaluate, tmp_path):
  run_dir = tmp_path / "run"
  shutil.copytree(mine, run_dir, ignore=shutil.ignore_patterns("*.keras"))
  done = evaluate(
    run_dir=run_dir,
    before="def restore(*_, **__): raise ValueError('operands could not be broadcast')\n"
    "from tff_algos.simulation import checkpoints; checkpoints.restore = restore",
  )
  assert done.status == 1 and done.err.startswith("Traceback")
  assert "\nValueError: operands could not be broadcast\n" in done.err
  assert "please report it" in done.err.splitlines()[-1]
