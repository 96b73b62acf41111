"""A run's model, taken out of its folder by export.py and used without us."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest
from programs import ROOT
from training import (
  assert_refused,
  keras_weights,
  metrics,
  place,
  read_json,
  tree,
)


@pytest.fixture
def export(fork_program, request, tmp_path):
  """`(*flags) -> Done` of export.py, on the run `trained` unless another is named."""

  def run(*flags: str, run_dir=None):
    run_dir = run_dir or request.getfixturevalue("trained").run_dir
    paths = [str(ROOT / "tests")]
    return fork_program(
      "export.py", f"--run={run_dir}", *flags, cwd=tmp_path, paths=paths
    )

  return run


def _accuracy(run_dir: pathlib.Path, best: bool) -> float:
  """As metrics.csv and summary.json have it."""
  summary = read_json(run_dir / "summary.json")
  last = float(metrics(run_dir)[-1]["test_accuracy"])
  return summary["best_accuracy"] if best else last


# What a user of each format does with the raw pictures.
_USE = {
  "keras": """
    import tensorflow as tf

    logits = tf.keras.models.load_model(path).predict(x, verbose=0)
  """,
  "saved_model": """
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serving_default"]
    logits = serve(inputs=tf.constant(x))["logits"].numpy()
  """,
  "tflite": """
    import tensorflow as tf

    run = tf.lite.Interpreter(path).get_signature_runner("serving_default")
    logits = run(inputs=x)["logits"]
  """,
  "tflite_training": """
    import tensorflow as tf

    run = tf.lite.Interpreter(path).get_signature_runner("infer")
    logits = run(inputs=x)["logits"]
  """,
}
_ALONE = """
import sys

for name in ("tff_algos", "tasks", "experiments"):
  sys.modules[name] = None  # Whoever imports it fails.
import numpy as np

*paths, data = sys.argv[1:]
x, y = (np.load(data)[name] for name in "xy")
assert x.dtype == np.uint8
"""
_NAMES = {
  "keras": "m.keras",
  "saved_model": "served/digits/1",
  "tflite": "m.tflite",
  "tflite_training": "t.tflite",
}


def _accuracies(files: dict[str, pathlib.Path], folder: pathlib.Path) -> list[float]:
  """The accuracy of exported files on the raw test pictures, in another process."""
  from tasks.datasets import digits

  data = digits.load()
  np.savez(folder / "data.npz", x=data.test_x, y=data.test_y)
  code = _ALONE
  for k, name in enumerate(files):
    code += f"\npath = paths[{k}]\n{textwrap.dedent(_USE[name])}"
    code += "\nprint(np.mean(logits.argmax(1) == y))\n"
  command = [sys.executable, "-c", code, *map(str, files.values())]
  done = subprocess.run(
    [*command, str(folder / "data.npz")],
    capture_output=True,
    text=True,
    cwd=folder,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return [float(line) for line in done.stdout.split()]


@pytest.mark.thorough
def test_every_format_gives_the_runs_accuracy_on_raw_pictures(trained, export, tmp_path):
  files = {}
  for name, last in _NAMES.items():
    files[name] = tmp_path / last
    done = export(f"--format={name}", f"--out={files[name]}")
    assert done.status == 0, done.err
    assert "model.keras" in done.out and str(files[name]) in done.out
    assert "0.0001 is allowed" in done.out
  expected = _accuracy(trained.run_dir, best=False)
  assert 0.3 < expected < 1
  assert _accuracies(files, tmp_path) == pytest.approx([expected] * 4, abs=1e-12)
  assert {path.name for path in tmp_path.iterdir()} == {
    *("m.keras", "served", "m.tflite", "t.tflite", "data.npz")
  }


@pytest.mark.thorough
def test_the_best_round_is_another_model(trained, export, tmp_path):
  expected = _accuracy(trained.run_dir, best=True)
  assert expected > _accuracy(trained.run_dir, best=False)
  file = tmp_path / "best.keras"
  done = export("--format=keras", "--best", f"--out={file}")
  assert done.status == 0, done.err
  assert _accuracies({"keras": file}, tmp_path) == pytest.approx([expected], abs=1e-12)


@pytest.fixture
def old(trained, tmp_path) -> pathlib.Path:
  """The run as an older version left it: a checkpoint of arrays without names."""
  run_dir = tmp_path / "old"
  shutil.copytree(trained.run_dir, run_dir)
  for name in ("model.keras", "best_model.keras"):
    os.remove(run_dir / name)
  [checkpoint] = (run_dir / "checkpoints").glob("round_*")
  with np.load(checkpoint / "server.npz") as file:
    arrays = [file[name] for name in file.files]
    assert "variables/model/dense/kernel" in file.files
  np.savez(checkpoint / "server.npz", *arrays)
  os.remove(checkpoint / "best.npz")
  records = (checkpoint / "records.json").read_text()
  records = records[: records.index(', "best"')] + "}"
  (checkpoint / "records.json").write_text(records)
  digests = {
    name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    for name in ("server.npz", "records.json")
  }
  (checkpoint / "manifest.json").write_text(json.dumps(digests))
  return run_dir


@pytest.mark.thorough
def test_folder_of_an_older_version_is_exported_from_its_checkpoint(
  trained, old, export, tmp_path
):
  file = tmp_path / "model.keras"
  done = export("--format=keras", f"--out={file}", run_dir=old)
  assert done.status == 0, done.err
  assert f"checkpoints, round {trained.rounds}" in done.out
  found, expected = map(keras_weights, (file, trained.run_dir / "model.keras"))
  assert list(found) == list(expected)
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array)

  done = export("--format=keras", "--best", f"--out={tmp_path}/b.keras", run_dir=old)
  assert_refused(done, "does not hold the model of its best round")


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
  trained, old, export, tmp_path
):
  shutil.rmtree(old / "checkpoints")
  (tmp_path / "there.keras").write_text("")
  (tmp_path / "broken").mkdir()
  shutil.copy(trained.run_dir / "config.json", tmp_path / "broken")
  (tmp_path / "broken/model.keras").write_bytes(b"PK")
  shutil.copytree(tmp_path / "broken", tmp_path / "damaged")
  with zipfile.ZipFile(tmp_path / "damaged/model.keras", "w") as file:
    file.writestr("metadata.json", "{}")
  before = tree(tmp_path)
  out = f"--out={tmp_path / 'm.keras'}"
  keras = "--format=keras"
  for done, words in (
    (export(keras, out, run_dir=old), ["neither model.keras nor a checkpoint"]),
    (export(keras, out, run_dir=tmp_path), ["is no folder of a run"]),
    (export(keras, out, run_dir=tmp_path / "broken"), ["model.keras cannot be opened"]),
    (export(keras, out, run_dir=tmp_path / "damaged"), ["model.keras cannot be opened"]),
    (export(keras, f"--out={tmp_path}/there.keras"), ["is there already"]),
    (export(keras, f"--out={tmp_path}/model"), ["must end in .keras"]),
    (export("--format=onnx", out), ["onnx", "saved_model"]),
  ):
    assert_refused(done, *words)
  assert tree(tmp_path) == before


def test_run_without_a_keras_model_says_so_and_ends_well(run_forked, export, tmp_path):
  run_dir, where = place(tmp_path)
  flags = [*where, "--task=own_tasks:own_preprocess", "--rounds=1"]
  done = run_forked(*flags, cwd=tmp_path)
  assert done.status == 0
  [line] = done.err.splitlines()
  assert f"{run_dir} gets no model.keras" in line
  assert "pass a layer, such as tf.keras.layers.Rescaling" in line
  assert not (run_dir / "model.keras").exists()
  done = export("--format=tflite", f"--out={tmp_path}/m.tflite", run_dir=run_dir)
  assert_refused(done, "pass a layer, such as tf.keras.layers.Rescaling")
