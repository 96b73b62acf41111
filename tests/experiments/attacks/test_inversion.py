"""Attacks on pictures: their files, going on with them, and bad input."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from experiments import runner
from experiments.attacks import inversion, inversion_report
from experiments.config import make_config
from experiments.preparation import newest_weights
from experiments.run_folder.folder import read_manifest
from tasks import registry as tasks_registry
from tff_algos import client_arrays
from tff_algos.client_data import Examples
from tff_algos.errors import InputError
from tff_algos.models import keras
from tff_algos.privacy import gradient_inversion

_DIGITS = tasks_registry.get("digits_cnn")


def _request(tmp_path, **changes):
  request = inversion.Request(
    task="digits_cnn",
    algorithms=["fedavg", "fedavg_dpsgd"],
    num_examples=1,
    seed=0,
    run=None,
    data_dir=None,
    cache_dir=str(tmp_path / "cache"),
    out=str(tmp_path / "out"),
    hparams={"fedavg_dpsgd": {"noise_multiplier": 0.01}},
    search=gradient_inversion.InversionHparams(iterations=2),
  )
  return request._replace(**changes)


def _rows(folder):
  with open(folder / "inversion.csv", newline="") as f:
    return list(csv.DictReader(f))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run, then more of it: (folder, rows of the first, rows of both)."""
  folder = tmp_path_factory.mktemp("inversion")
  inversion.run(_request(folder, algorithms=["fedavg"], hparams={}))
  first = _rows(folder / "out")
  inversion.run(_request(folder, num_examples=2))
  return folder, first, _rows(folder / "out")


def test_run_leaves_its_files_and_goes_on_with_them(finished):
  folder, first, rows = finished
  # What was there is not made again: the seconds are the same.
  assert rows[: len(first)] == first and len(first) == 1
  examples = list(dict.fromkeys(int(row["example"]) for row in rows))
  assert {(r["algorithm"], int(r["example"])) for r in rows} == {
    (name, example) for name in ("fedavg", "fedavg_dpsgd") for example in examples
  }
  assert len(rows) == 4
  pictures = {
    f"{what}_{example:06d}.npy"
    for what in ("original", "fedavg", "fedavg_dpsgd")
    for example in examples
  }
  assert {path.name for path in (folder / "out").iterdir()} == {
    *("config.json", "grid.png", "inversion.csv", "inversion.md"),
    *pictures,
  }
  config = json.loads((folder / "out/config.json").read_text())
  assert config["settings"]["iterations"] == 2
  assert config["hparams"]["fedavg"]["batch_size"] == 1
  assert config["hparams"]["fedavg_dpsgd"]["noise_multiplier"] == 0.01


@pytest.mark.thorough
def test_picture_that_was_cut_short_is_made_again(finished, tmp_path):
  folder, _, rows = finished
  out = tmp_path / "out"
  shutil.copytree(folder / "out", out)
  of = {(r["algorithm"], r["example"]): r for r in rows}
  cut = out / f"fedavg_{int(rows[0]['example']):06d}.npy"
  whole = cut.read_bytes()
  cut.write_bytes(whole[:50])
  inversion.run(_request(folder, num_examples=2, out=str(out)))
  assert cut.read_bytes() == whole
  for row in _rows(out):
    before = of.pop((row["algorithm"], row["example"]))
    assert (row == before) == (before is not rows[0])  # Its seconds are others.
  assert not of


@pytest.mark.thorough
def test_what_is_shown_is_of_the_pictures_that_are_asked_for(
  finished, read_table, tmp_path
):
  folder, first, rows = finished
  out = tmp_path / "out"
  shutil.copytree(folder / "out", out)
  inversion.run(_request(folder, algorithms=["fedavg"], hparams={}, out=str(out)))
  [shown] = read_table((out / "inversion.md").read_text())
  assert shown[:3] == ["fedavg", "1", f"{float(first[0]['psnr']):.2f}"]
  assert _rows(out) == rows  # The others stay.


def test_attacker_knows_all_draws_but_the_noise(in_process, monkeypatch, tmp_path):
  simulated = []
  monkeypatch.setattr(
    gradient_inversion, "build_inversion", lambda simulate, *_: simulated.append(simulate)
  )
  prepared = inversion.prepare(_request(tmp_path, algorithms=["fedavg_dpsgd"]))
  [simulate] = simulated
  examples = Examples(tf.constant(prepared.x), tf.constant(prepared.y))
  send = prepared.victims["fedavg_dpsgd"].send
  for upload, is_noisy in ((send, True), (simulate, False)):
    one, other = (upload(examples, tf.constant([0, k])) for k in (1, 2))
    assert any(np.any(a != b) for a, b in zip(one, other)) == is_noisy


def test_numbers_are_those_of_the_pictures(finished, read_table):
  folder, _, rows = finished
  out = str(folder / "out")
  for row in rows:
    original, found = (
      np.load(inversion_report.picture_path(out, what, int(row["example"])))
      for what in ("original", row["algorithm"])
    )
    assert original.shape == (8, 8, 1) and original.max() == 1
    assert float(row["psnr"]) == gradient_inversion.psnr(found, original)
    assert float(row["ssim"]) == gradient_inversion.ssim(found, original)
  means = [
    np.mean([float(r["psnr"]) for r in rows if r["algorithm"] == name])
    for name in ("fedavg", "fedavg_dpsgd")
  ]
  text = (folder / "out/inversion.md").read_text()
  assert [row[:3] for row in read_table(text)] == [
    [name, "2", f"{mean:.2f}"] for name, mean in zip(("fedavg", "fedavg_dpsgd"), means)
  ]


def test_of_a_run_its_newest_weights_are_attacked(in_process, tmp_path):
  run_dir, cache_dir = str(tmp_path / "run"), str(tmp_path / "cache")
  runner.run(
    make_config(
      algorithm="fedavg",
      task="digits_cnn",
      clients_per_round=2,
      rounds=2,
      run_dir=run_dir,
      cache_dir=cache_dir,
      loss_epsilon=0.5,  # It is on the run's loss that its clients train.
    )
  )
  request = _request(tmp_path, algorithms=["fedavg"], hparams={}, run=run_dir)
  prepared = inversion.prepare(request)
  task = tasks_registry.get("digits_cnn")
  loaded = tasks_registry.load(
    task,
    data_dir=None,
    cache_dir=cache_dir,
    partition=task.partition,
    num_clients=task.num_clients,
    partition_seed=0,
    model_seed=1,  # The run's weights are to come from its checkpoint.
    loss_epsilon=0.5,
  )
  model, seed = loaded.model, tf.constant([0, 0])
  weights, rounds = newest_weights(run_dir, read_manifest(run_dir, ""), model)
  assert rounds == prepared.rounds == 2
  # Another model under the same name, of as many rounds, is another attack.
  attacked = inversion.describe(request, prepared)["attacked"]
  assert attacked == {"weights": client_arrays.fingerprint(*map(np.asarray, weights))}

  def loss(weights, x, y):
    return tf.reduce_mean(model.example_losses(y, model.predict(weights, x, False, seed)))

  # The run's weights are of the model that config.json says.
  config = os.path.join(run_dir, "config.json")
  held = read_manifest(run_dir, "")
  with open(config, "w") as f:
    json.dump({**held, "model": {**held["model"], "num_weights": 1}}, f)
  with pytest.raises(InputError, match="run of a model with num_weights=1, not"):
    inversion.prepare(request)

  # They are those whose loss the run's last line gives ...
  with open(os.path.join(run_dir, "metrics.csv"), newline="") as f:
    said = float(list(csv.DictReader(f))[-1]["test_loss"])
  found = loss(weights, model.preprocess(loaded.test_x), loaded.test_y)
  np.testing.assert_allclose(found, said, rtol=1e-5)
  # ... and a client's one step starts from them.
  x, y = tf.constant(prepared.x), tf.constant(prepared.y, tf.int32)
  with tf.GradientTape() as tape:
    start = [tf.constant(w) for w in weights]
    tape.watch(start)
    value = loss(start, x, y)
  rate = prepared.victims["fedavg"].hparams.learning_rate
  sent = prepared.victims["fedavg"].send(Examples(x, y), seed)
  for part, gradient in zip(sent, tape.gradient(value, start)):
    np.testing.assert_allclose(part, -rate * gradient, rtol=1e-4, atol=1e-7)

  # In the run's precision.
  with open(config, "w") as f:
    json.dump({**held, "flags": {**held["flags"], "mixed_precision": True}}, f)
  half = inversion.prepare(request).victims["fedavg"].send(Examples(x, y), seed)
  assert any(np.any(a != b) for a, b in zip(sent, half))


def _task_with(preprocess, **options):
  def make_model(net, spec):
    model = keras.from_keras(net, spec, preprocess=preprocess)
    return dataclasses.replace(model, **options)

  return _DIGITS._replace(make_model=make_model)


def test_pictures_are_those_before_what_the_task_does_to_them(
  in_process, monkeypatch, tmp_path
):
  rescale = tf.keras.layers.Rescaling(1 / 127.5, -1.0)
  own = _task_with(rescale, augment=lambda x, seed: tf.zeros_like(x))
  monkeypatch.setattr(inversion.tasks_registry, "get", lambda name: own)
  load, loaded = tasks_registry.load, []

  def keep(*args, **options):
    loaded.append(load(*args, **options))
    return loaded[-1]

  monkeypatch.setattr(inversion.tasks_registry, "load", keep)
  prepared = inversion.prepare(_request(tmp_path, algorithms=["fedavg"], hparams={}))
  [task] = loaded
  stored = task.test_x[prepared.examples]
  np.testing.assert_allclose(prepared.x, stored / 255, rtol=1e-6)
  x, y, seed = stored / np.float32(127.5) - 1, prepared.y, tf.constant([0, 0])
  with tf.GradientTape() as tape:
    start = [tf.constant(w) for w in task.model.initial_weights]
    tape.watch(start)
    logits = task.model.predict(start, tf.constant(x), False, seed)
    value = tf.reduce_mean(task.model.example_losses(y, logits))
  victim = prepared.victims["fedavg"]
  examples = Examples(tf.constant(prepared.x), tf.constant(y, tf.int32))
  for part, gradient in zip(victim.send(examples, seed), tape.gradient(value, start)):
    expected = -victim.hparams.learning_rate * gradient
    np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
  "preprocess",
  [
    lambda x: tf.cast(tf.cast(x, tf.int32), tf.float32) / 255,  # No derivative.
    lambda x: (
      tf.cast(x, tf.float32) / tf.as_dtype(x.dtype).size
    ),  # Of floats something else.
  ],
)
def test_preprocess_that_nothing_goes_back_through_is_refused(
  monkeypatch, tmp_path, preprocess
):
  task = _task_with(preprocess)
  monkeypatch.setattr(inversion.tasks_registry, "get", lambda name: task)
  with pytest.raises(InputError, match="must be a differentiable function of the pixels"):
    inversion.prepare(_request(tmp_path))


def test_other_settings_are_refused_in_the_folder_of_results(finished):
  folder, _, rows = finished
  search = gradient_inversion.InversionHparams(iterations=3)
  with pytest.raises(InputError, match="iterations=2, not 3"):
    inversion.run(_request(folder, search=search))
  assert _rows(folder / "out") == rows


@pytest.mark.thorough  # test_lying.py always shows it, by the same manifest.
@pytest.mark.parametrize("heading, name", [("data", "clients"), ("model", "num_weights")])
def test_other_data_or_model_are_refused_in_the_folder_of_results(
  finished, tmp_path, heading, name
):
  folder, _, rows = finished
  out = tmp_path / "out"
  shutil.copytree(folder / "out", out)
  path = out / "config.json"
  config = json.loads(path.read_text())
  path.write_text(json.dumps({**config, heading: {**config[heading], name: 1}}))
  with pytest.raises(InputError, match=f"{name}=1, not "):
    inversion.run(_request(folder, num_examples=2, out=str(out)))
  # An older folder does not say what it was made of.
  path.write_text(json.dumps({k: v for k, v in config.items() if k != heading}))
  inversion.run(_request(folder, num_examples=2, out=str(out)))
  assert _rows(out) == rows


def test_own_code_that_changed_is_refused_in_the_folder_of_results(check_own_code):
  check_own_code(inversion, _request)


def test_folder_is_looked_at_before_anything_is_loaded(write_run, monkeypatch, tmp_path):
  """A run's, whose settings are under other headings, would be mixed with ours."""
  write_run(tmp_path / "out")
  monkeypatch.setattr(inversion, "prepare", lambda request: pytest.fail("too late"))
  with pytest.raises(InputError, match="holds results of another program: choose"):
    inversion.run(_request(tmp_path))


@pytest.mark.parametrize(
  "wrong, said",
  [
    (dict(algorithms=["fedag"]), "did you mean 'fedavg'"),
    (dict(algorithms=["twafl"], hparams={}), "the same parts in every round"),
    (dict(hparams={"fedavg": {"noise_multiplier": 0.01}}), "noise_multiplier"),
    (dict(hparams={"fedavg": {"epochs": 2}}), "epochs is 1 here"),
    (dict(num_examples=1000), r"num_examples must be in 1\.\.360"),
    (dict(run="no/run"), "no/run is no folder of a run: No such file"),
    (dict(run=""), "The empty name is no folder of a run"),
  ],
)
def test_what_cannot_be_attacked_is_refused_and_nothing_is_written(tmp_path, wrong, said):
  with pytest.raises(InputError, match=said):
    inversion.run(_request(tmp_path, **wrong))
  assert not (tmp_path / "out").exists()
