"""The model of a run's folder, for those who evaluate it."""

from __future__ import annotations

import types

import numpy as np
import tensorflow as tf

from experiments.config import make_config
from experiments.export import keras_files, run_model
from experiments.run_folder.folder import RunFolder
from tff_algos.models import keras
from tff_algos.models.functional import ExampleSpec, FadingCrossEntropy


def test_model_file_alone_has_the_loss_of_its_run(tmp_path):
  """-log(p + loss_epsilon), p the label's probability."""
  network = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(3)])
  keras_files.save(network, str(tmp_path / keras_files.MODEL))
  spec = ExampleSpec(tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int32))
  model = keras.from_keras(network, spec, loss=FadingCrossEntropy(0.25))
  loaded = types.SimpleNamespace(model=model)
  config = make_config("fedavg", "digits_cnn", run_dir=str(tmp_path), loss_epsilon=0.25)
  found = run_model.read_functions(config, {}, loaded)
  p = np.float32([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
  losses = found.model.example_losses(tf.constant([0, 1]), tf.constant(np.log(p)))
  np.testing.assert_allclose(losses, -np.log([0.75, 0.375]), rtol=1e-5)


def test_model_file_alone_takes_inputs_apart_as_its_run_did(tmp_path):
  """The file's model has one input, of which the run's `preprocess` made two."""
  layers = tf.keras.layers
  stored = layers.Input([5])
  parts = tf.keras.Model(stored, [stored[:, :3], tf.cast(stored[:, 3:], tf.int32)])
  numbers, words = layers.Input([3]), layers.Input([2], dtype=tf.int32)
  embedded = layers.Flatten()(layers.Embedding(9, 2)(words))
  joined = layers.Concatenate()([numbers, embedded])
  network = tf.keras.Model([numbers, words], layers.Dense(3)(joined))
  spec = ExampleSpec(tf.TensorSpec([5], tf.float32), tf.TensorSpec([], tf.int32))
  model = keras.from_keras(network, spec, preprocess=parts)
  keras_files.keep(RunFolder(str(tmp_path)), model, model.initial_weights, None)
  config = make_config("fedavg", "digits_cnn", run_dir=str(tmp_path))
  found = run_model.read_functions(config, {}, types.SimpleNamespace(model=model))
  x, seed = tf.constant([[0.5, -1.0, 2.0, 8.0, 0.0]]), tf.zeros([2], tf.int32)
  expected = model.predict(model.initial_weights, model.preprocess(x), False, seed)
  logits = found.model.predict(found.weights, found.model.preprocess(x), False, seed)
  np.testing.assert_allclose(logits, expected, rtol=1e-6)
  assert found.model.metrics == model.metrics


def test_each_file_of_a_run_has_its_own_weights(tmp_path):
  network = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(3)])
  spec = ExampleSpec(tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int32))
  model, folder = keras.from_keras(network, spec), RunFolder(str(tmp_path))
  last, best = ([np.full_like(w, v) for w in model.initial_weights] for v in (1, 2))

  def held(name):
    return tf.keras.models.load_model(tmp_path / name).get_weights()

  keras_files.keep(folder, model, last, best)
  for name, weights in ((keras_files.MODEL, last), (keras_files.BEST_MODEL, best)):
    for found, expected in zip(held(name), weights):
      np.testing.assert_array_equal(found, expected)
  # Without the weights of a best round there is no file of them.
  keras_files.remove(folder)
  assert not [*tmp_path.iterdir()]
  keras_files.keep(folder, model, last, None)
  assert [path.name for path in tmp_path.iterdir()] == [keras_files.MODEL]


def test_data_are_read_where_they_are_said_to_be(write_run, tmp_path):
  flags = {"data_dir": "/where/they/were", "cache_dir": "/cache/then"}
  folder = write_run(tmp_path / "a", flags={"task": "har_lstm", **flags})
  config, _ = run_model.config_of(folder)
  assert (config.data_dir, config.cache_dir) == ("/where/they/were", "/cache/then")
  here = str(tmp_path)
  config, _ = run_model.config_of(folder, here, here)
  assert (config.data_dir, config.cache_dir) == (here, here)
