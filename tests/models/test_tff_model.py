"""A model of ours in the builders of `tff.learning`: what they train is what ours train.

Clients take steps over all of their examples, so that nothing depends on a shuffle.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tff_algos.errors import InputError

_SPEC = tff_algos.ExampleSpec(
  tf.TensorSpec([2, 2], tf.uint8), tf.TensorSpec([], tf.int32)
)
_SIZES, _EPOCHS, _ROUNDS = (4, 2, 7), 3, 2
_SGDM = tff.learning.optimizers.build_sgdm


def _keras_model(*before_the_last):
  layers = [tf.keras.layers.Input([2, 2]), tf.keras.layers.Flatten(), *before_the_last]
  keras_model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(3)])
  tff_algos.reinitialize(keras_model, seed=3)
  return keras_model


@pytest.fixture(scope="module")
def model():
  hidden = tf.keras.layers.Dense(4, activation="tanh")
  return tff_algos.from_keras(_keras_model(hidden), _SPEC)


@pytest.fixture(scope="module")
def data():
  """The examples of three clients."""
  draw = np.random.default_rng(0)
  return [
    (
      draw.integers(0, 256, (n, 2, 2)).astype(np.uint8),
      draw.integers(0, 3, n).astype(np.int32),
    )
    for n in _SIZES
  ]


@pytest.fixture(scope="module", autouse=True)
def runtime():
  with tff_algos.create_runtime() as runtime:
    yield runtime


def _trained_by_tff(process, data, epochs=_EPOCHS):
  state = process.initialize()
  for _ in range(_ROUNDS):
    batches = [tf.data.Dataset.from_tensors((x, y)).repeat(epochs) for x, y in data]
    output = process.next(state, batches)
    state = output.state
  return process.get_model_weights(state).trainable, output.metrics


def _trained_by_us(process, data):
  over, state = tff_algos.over_datasets(process), process.initialize()
  datasets = [tf.data.Dataset.from_tensor_slices(pair) for pair in data]
  for _ in range(_ROUNDS):
    state = over.next(state, [()] * len(data), datasets).state
  return state.variables.model


def _assert_close(found, expected):
  assert len(found) == len(expected)
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "weighting, server_momentum",
  [
    pytest.param("examples", 0.0, marks=pytest.mark.thorough),
    pytest.param("uniform", 0.0, marks=pytest.mark.thorough),
    ("examples", 0.4),
  ],
)
def test_tffs_fed_avg_is_ours(model, data, weighting, server_momentum):
  build = {
    "examples": tff.learning.algorithms.build_weighted_fed_avg,
    "uniform": tff.learning.algorithms.build_unweighted_fed_avg,
  }[weighting]
  theirs = build(
    tff_algos.as_functional_model(model),
    client_optimizer_fn=_SGDM(0.1, momentum=0.5),
    server_optimizer_fn=_SGDM(0.7, momentum=server_momentum),
  )
  hparams = dict(
    epochs=_EPOCHS,
    batch_size=float("inf"),
    learning_rate=0.1,
    momentum=0.5,
    server_learning_rate=0.7,
    client_weighting=weighting,
  )
  if server_momentum:
    with_momentum = tff_algos.FedAvgMHparams(**hparams, server_momentum=server_momentum)
    ours = tff_algos.build_fed_avg_m(model, with_momentum)
  else:
    ours = tff_algos.build_fed_avg(model, tff_algos.FedAvgHparams(**hparams))
  found, _ = _trained_by_tff(theirs, data)
  _assert_close(found, _trained_by_us(ours, data))
  assert max(np.abs(a - b).max() for a, b in zip(found, model.initial_weights)) > 0.01


@pytest.mark.thorough
def test_tffs_fed_sgd_is_ours(model, data):
  theirs = tff.learning.algorithms.build_fed_sgd(
    tff_algos.as_functional_model(model), server_optimizer_fn=_SGDM(0.3)
  )
  ours = tff_algos.build_fed_sgd(model, tff_algos.FedSgdHparams(learning_rate=0.3))
  found, _ = _trained_by_tff(theirs, data, epochs=1)
  _assert_close(found, _trained_by_us(ours, data))


def test_tffs_fed_prox_pulls_away_from_the_global_model(model, data):
  """Why ours is not TFF's: `g - mu (w - x)` in the place of `g + mu (w - x)`."""
  rate, mu = 0.1, 0.5
  theirs = tff.learning.algorithms.build_weighted_fed_prox(
    tff_algos.as_functional_model(model), mu, client_optimizer_fn=_SGDM(rate)
  )
  found, _ = _trained_by_tff(theirs, data)

  def rounds(sign):
    x = [tf.constant(w) for w in model.initial_weights]
    for _ in range(_ROUNDS):
      moves = [0.0] * len(x)
      for pictures, y in data:
        w = x
        for _ in range(_EPOCHS):
          with tf.GradientTape() as tape:
            tape.watch(w)
            inputs = tf.cast(pictures, tf.float32) / 255.0
            logits = model.predict(tuple(w), inputs, True, tf.constant([0, 0]))
            loss = tf.reduce_mean(
              tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            )
          gradients = tape.gradient(loss, w)
          w = [v - rate * (g + sign * mu * (v - at)) for v, g, at in zip(w, gradients, x)]
        share = len(y) / sum(_SIZES)
        moves = [m + share * (v - at) for m, v, at in zip(moves, w, x)]
      x = [at + m for at, m in zip(x, moves)]
    return [v.numpy() for v in x]

  ours = tff_algos.build_fed_prox(
    model,
    tff_algos.FedProxHparams(
      epochs=_EPOCHS, batch_size=float("inf"), learning_rate=rate, mu=mu
    ),
  )
  _assert_close(_trained_by_us(ours, data), rounds(+1))
  _assert_close(found, rounds(-1))
  assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(found, rounds(+1)))


def test_what_tff_measures_in_training_is_of_the_global_model_in_one_step(model, data):
  theirs = tff.learning.algorithms.build_weighted_fed_avg(
    tff_algos.as_functional_model(model), client_optimizer_fn=_SGDM(0.0)
  )
  _, metrics = _trained_by_tff(theirs, data, epochs=1)
  x, y = (np.concatenate(parts) for parts in zip(*data))
  expected = tff_algos.build_evaluation(model, x, y)(model.initial_weights)
  assert metrics["client_work"]["train"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_told_whether_it_trains(model, data, training):
  def twice_in_training(weights, x, training, seed):
    return model.predict(weights, x, training, seed) * (2.0 if training else 1.0)

  given = dataclasses.replace(model, predict=twice_in_training)
  functional_model = tff_algos.as_functional_model(given)
  weights = model.initial_weights, ()
  found = functional_model.predict_on_batch(weights, data[0][0], training)
  seed, x = tf.constant([0, 0]), model.preprocess(tf.constant(data[0][0]))
  expected = twice_in_training(model.initial_weights, x, training, seed)
  _assert_close([found], [expected])


def test_mime_lite_is_simulated_with_a_model_of_ours(model, data, tmp_path):
  """What TFF has and this library has not, over files and from our loop."""
  theirs = tff.learning.algorithms.build_weighted_mime_lite(
    tff_algos.as_functional_model(model), base_optimizer=_SGDM(0.1, momentum=0.5)
  )
  process = tff_algos.from_learning_process(
    theirs,
    _SPEC,
    lambda examples, seed: tf.data.Dataset.from_tensors(tuple(examples)).repeat(2),
  )
  named = {f"c{k}": pair for k, pair in enumerate(data)}
  clients = tff_algos.write_clients(str(tmp_path / "clients"), named, _SPEC)
  settings = tff_algos.Settings(rounds=_ROUNDS, clients_per_round=len(data))
  result = tff_algos.simulate(process, clients, settings)
  found = process.get_model_weights(result.state).trainable
  expected, _ = _trained_by_tff(theirs, data, epochs=2)
  _assert_close(found, expected)


@pytest.mark.parametrize("layer", ["Dropout", "GaussianNoise"])
def test_a_model_that_draws_in_training_is_refused(layer):
  layers = getattr(tf.keras.layers, layer)(0.5), tf.keras.layers.LayerNormalization()
  drawing = tff_algos.from_keras(_keras_model(*layers), _SPEC)
  with pytest.raises(InputError, match=r"^The model draws while it trains, as by a "):
    tff_algos.as_functional_model(drawing)


def test_metric_that_does_not_take_the_labels_is_one_sentence(model):
  wrong = dataclasses.replace(model, metrics={"off": lambda y, logits: y @ logits})
  with pytest.raises(InputError, match=r"^Metric 'off' does not take these labels"):
    tff_algos.as_functional_model(wrong)


def test_a_keras_model_in_its_place_is_refused():
  with pytest.raises(InputError, match=r"^The model is a Sequential: give a tff_algos"):
    tff_algos.as_functional_model(_keras_model())
