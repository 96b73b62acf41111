"""Evaluation on each client's own examples against NumPy, and after steps of its own."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import client_data
from tff_algos.algorithms import pfedgp
from tff_algos.client_work import local_training
from tff_algos.errors import InputError
from tff_algos.models import functional, keras
from tff_algos.simulation import client_evaluation, evaluation, seeds

_SIZES = (1, 2, 7, 40, 1201)  # The last are three batches.
_NAMES = [f"client {n}" for n in _SIZES]


def _predict(weights, x, training, seed):
  del training, seed
  return tf.matmul(x, weights[0]) + weights[1]


_MODEL = functional.Model(
  initial_weights=(np.zeros((4, 3), np.float32), np.zeros(3, np.float32)),
  weight_names=("kernel", "bias"),
  example_spec=functional.ExampleSpec(
    tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int32)
  ),
  predict=_predict,
)


def _weights() -> tuple:
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=(4, 3)).astype(np.float32),
    rng.normal(size=3).astype(np.float32),
  )


@pytest.fixture(scope="module")
def data():
  rng = np.random.default_rng(1)
  return {
    name: (
      rng.normal(size=(n, 4)).astype(np.float32),
      rng.integers(0, 3, n).astype(np.int32),
    )
    for name, n in zip(_NAMES, _SIZES)
  }


@pytest.fixture(scope="module")
def clients(data, tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("clients"))
  return client_data.write_clients(folder, data, _MODEL.example_spec)


def _probabilities(weights, x):
  logits = x @ weights[0] + weights[1]
  powers = np.exp(logits - logits.max(axis=1, keepdims=True))
  return powers / powers.sum(axis=1, keepdims=True)


def _means(weights, x, y) -> tuple[float, float]:
  """Loss and accuracy in float64, from the formulas alone."""
  weights = [w.astype(np.float64) for w in weights]
  found = _probabilities(weights, x.astype(np.float64))
  return -np.log(found[range(len(y)), y]).mean(), np.mean(found.argmax(axis=1) == y)


def test_values_are_numpys_of_each_clients_examples(data, clients):
  ids = [_NAMES[k] for k in (4, 0, 3, 1)]  # Some, in an order of their own.
  evaluate = client_evaluation.build_client_evaluation(_MODEL)
  found = evaluate(_weights(), clients, ids)
  assert list(found) == ["loss", "accuracy", "num_examples"]
  assert found["num_examples"].tolist() == [1201, 1, 40, 2]
  assert found["num_examples"].dtype == np.int64
  for k, name in enumerate(ids):
    loss, accuracy = _means(_weights(), *data[name])
    assert found["loss"][k] == pytest.approx(loss, rel=1e-5)
    assert found["accuracy"][k] == accuracy


def test_unknown_client_is_refused(clients):
  evaluate = client_evaluation.build_client_evaluation(_MODEL)
  with pytest.raises(InputError, match=r"^There is no client 'client 3' in "):
    evaluate(_weights(), clients, [_NAMES[0], "client 3"])


def test_weighted_by_examples_the_values_are_those_of_all_examples(data, clients):
  x, y = (np.concatenate(parts) for parts in zip(*data.values()))
  whole = evaluation.build_evaluation(_MODEL, x, y)(_weights())
  found = client_evaluation.build_client_evaluation(_MODEL)(_weights(), clients, _NAMES)
  for name in ("loss", "accuracy"):
    mean = np.average(found[name], weights=found["num_examples"])
    assert mean == pytest.approx(whole[name], rel=1e-6)


def test_metric_of_totals_and_counts_is_nan_where_it_counts_nothing(data, clients):
  def error(labels, logits):
    counts = tf.cast(labels, tf.float32)
    return counts * tf.reduce_sum(logits, axis=1), counts

  model = dataclasses.replace(_MODEL, metrics=OrderedDict(error=error))
  found = client_evaluation.build_client_evaluation(model)(_weights(), clients, _NAMES)
  kernel, bias = (w.astype(np.float64) for w in _weights())
  for k, (x, y) in enumerate(data.values()):
    sums = (x.astype(np.float64) @ kernel + bias).sum(axis=1)
    if y.sum():
      assert found["error"][k] == pytest.approx((y * sums).sum() / y.sum(), rel=1e-4)
    else:
      assert np.isnan(found["error"][k])
  nothing = [k for k, (_, y) in enumerate(data.values()) if not y.sum()]
  assert len(nothing) in range(3)


def test_all_clients_and_weights_share_one_trace(clients):
  calls = []

  def predict(*arguments):
    calls.append(None)
    return _predict(*arguments)

  model = dataclasses.replace(_MODEL, predict=predict)
  evaluate = client_evaluation.build_client_evaluation(model)
  assert calls
  calls.clear()
  first = evaluate(_weights(), clients, _NAMES)
  second = evaluate(_MODEL.initial_weights, clients, _NAMES)
  assert not calls
  np.testing.assert_allclose(second["loss"], np.log(3), rtol=1e-6)
  assert not np.array_equal(first["loss"], second["loss"])
  assert evaluate(_weights(), clients, [])["loss"].shape == (0,)


# --- After steps of one's own ---------------------------------------------------------


def _personalized(clients, ids=_NAMES, **options):
  personalization = client_evaluation.Personalization(**options)
  evaluate = client_evaluation.build_client_evaluation(_MODEL, personalization)
  return evaluate(_weights(), clients, ids)


def test_the_other_half_is_evaluated_before_and_after(clients):
  found = _personalized(clients, steps=3, learning_rate=0.1)
  assert list(found) == [
    *("loss", "accuracy", "personalized_loss", "personalized_accuracy"),
    "num_examples",
  ]
  assert found["num_examples"].tolist() == [n - n // 2 for n in _SIZES]
  # Nothing to step on.
  assert found["personalized_loss"][0] == found["loss"][0]
  assert np.all(found["personalized_loss"][1:] != found["loss"][1:])


def test_one_step_on_one_of_two_examples_is_numpys(data, clients):
  """Which of them is evaluated, its loss before tells."""
  found = _personalized(clients, ["client 2"], steps=1, learning_rate=0.5)
  x, y = data["client 2"]
  losses = [_means(_weights(), x[k : k + 1], y[k : k + 1])[0] for k in range(2)]
  assert abs(losses[0] - losses[1]) > 1e-3
  kept = int(np.argmin(np.abs(losses - found["loss"][0])))
  other = 1 - kept
  kernel, bias = (w.astype(np.float64) for w in _weights())
  slope = _probabilities((kernel, bias), x[[other]])[0] - np.eye(3)[y[other]]
  own = kernel - 0.5 * np.outer(x[other], slope), bias - 0.5 * slope
  loss, accuracy = _means(own, x[[kept]], y[[kept]])
  assert found["loss"][0] == pytest.approx(losses[kept], rel=1e-5)
  assert found["personalized_loss"][0] == pytest.approx(loss, rel=1e-5)
  assert found["personalized_accuracy"][0] == accuracy


@pytest.mark.parametrize(
  "batch_size, size",
  [
    *((8, 8), (1001, 20)),
    *(pytest.param(n, 20, marks=pytest.mark.thorough) for n in (20, None)),
  ],
)
def test_steps_are_numpys_round_and_round_the_half(data, clients, batch_size, size):
  """Of 40 examples in a known order 20 are for the steps: 7 steps of 8 go 2.8 rounds."""
  found = _personalized(
    clients, ["client 40"], steps=7, learning_rate=0.3, batch_size=batch_size, seed=5
  )
  x, y = data["client 40"]
  words = seeds.sequence(5, "personalization", clients.place("client 40"))
  key = words.generate_state(2, np.uint32).view(np.int32)
  order = local_training.batch_order(tf.constant(key), 40, 1)[0].numpy()
  half, others = order[:20], order[20:]
  kernel, bias = (w.astype(np.float64) for w in _weights())
  for step in range(7):
    rows = half[np.arange(step * size, (step + 1) * size) % 20]
    slopes = (_probabilities((kernel, bias), x[rows]) - np.eye(3)[y[rows]]) / size
    kernel = kernel - 0.3 * x[rows].T @ slopes
    bias = bias - 0.3 * slopes.sum(axis=0)
  for prefix, weights in (("", _weights()), ("personalized_", (kernel, bias))):
    loss, accuracy = _means(weights, x[others], y[others])
    assert found[f"{prefix}loss"][0] == pytest.approx(loss, rel=1e-5)
    assert found[f"{prefix}accuracy"][0] == accuracy


@pytest.mark.thorough
def test_numpys_numbers_are_pythons(clients):
  given = dict(steps=2, learning_rate=0.25, batch_size=8, seed=5)
  types = dict(steps=np.int32, learning_rate=np.float32, batch_size=np.int64)
  same = {name: types.get(name, np.int64)(value) for name, value in given.items()}
  expected, found = _personalized(clients, **given), _personalized(clients, **same)
  for name, values in expected.items():
    np.testing.assert_array_equal(found[name], values)


def test_halves_are_the_seeds_and_each_clients_own(clients):
  def losses(seed):
    return _personalized(clients, steps=1, learning_rate=0.1, seed=seed)["loss"]

  np.testing.assert_array_equal(losses(3), losses(3))
  assert losses(3)[4] != losses(4)[4]


def test_random_layers_draw_from_the_seed_for_each_client_otherwise(tmp_path):
  """Where all examples are one, a seed chooses no half, and only the steps draw."""
  layers = tf.keras.layers
  spec = functional.ExampleSpec(
    tf.TensorSpec([20], tf.float32), tf.TensorSpec([], tf.int32)
  )
  model = keras.from_keras(
    tf.keras.Sequential([layers.Input([20]), layers.Dropout(0.5), layers.Dense(3)]), spec
  )
  examples = np.ones((6, 20), np.float32), np.zeros(6, np.int32)
  same = client_data.write_clients(str(tmp_path), dict.fromkeys("ab", examples), spec)

  def losses(seed):
    steps = client_evaluation.Personalization(1, 0.01, seed=seed)
    evaluate = client_evaluation.build_client_evaluation(model, steps)
    found = evaluate(model.initial_weights, same, ["a", "b"])
    assert found["loss"][0] == found["loss"][1]
    return found["personalized_loss"].tolist()

  one, again, other = losses(3), losses(3), losses(4)
  assert one == again
  assert len({*one, *other}) == 4


def test_a_clients_values_do_not_depend_on_who_else_is_asked(clients):
  options = dict(steps=2, learning_rate=0.1, batch_size=3)
  everyone = _personalized(clients, **options)
  alone = _personalized(clients, [_NAMES[3]], **options)
  for name, values in alone.items():
    assert values.tolist() == [everyone[name][3]]


@pytest.mark.parametrize(
  "options, said",
  [
    (dict(steps=0), "steps must be at least 1; found 0"),
    (dict(learning_rate=0.0), "learning_rate must be > 0"),
    (dict(learning_rate=float("nan")), "learning_rate must be > 0"),
    (dict(learning_rate="0.1"), "learning_rate must be a number; found '0.1'"),
    (dict(learning_rate=True), "learning_rate must be a number; found True"),
    (dict(learning_rate=1e-46), "learning_rate must be a number that float32 holds"),
    (dict(batch_size=0), "batch_size must be at least 1"),
    (dict(seed=-1), "seed must be at least 0"),
    (dict(steps=1.5), r"steps must be a whole number; found 1\.5"),
    (dict(steps=None), "steps must be a whole number"),
    (dict(batch_size="4"), "batch_size must be a whole number; found '4'"),
  ],
)
def test_impossible_steps_are_refused(options, said):
  with pytest.raises(ValueError, match=said):
    client_evaluation.Personalization(**{**dict(steps=1, learning_rate=0.1), **options})


# --- Over clients ---------------------------------------------------------------------


def test_spread_is_the_percentiles_and_the_worst():
  """Of 0, 0.1, ..., 1 the percentiles are themselves; NaN does not count."""
  values = np.array([*np.arange(11) / 10, np.nan])
  values = np.random.default_rng(0).permutation(values)
  counts = np.where(np.isnan(values), 0, 5)
  percentiles = dict(p10=0.1, p50=0.5, p90=0.9)
  worst = dict(accuracy=0.0, loss=1.0, personalized_accuracy=0.0, personalized_loss=1.0)
  for name, value in worst.items():
    found = client_evaluation.spread(name, values, counts)
    assert found == pytest.approx(dict(percentiles, worst=value))
    assert all(type(value) is float for value in found.values())
  # Which is worse of a user's metric is not known.
  assert client_evaluation.spread("off", values, counts) == pytest.approx(percentiles)


@pytest.mark.parametrize(
  "losses, p10, p50, p90",
  [
    ([0.25], 0.25, 0.25, 0.25),
    # As where a model gives what a client has not seen no chance.
    ([0.5, 1.0, 1.0, np.inf, np.inf], 0.7, 1.0, np.inf),
    ([1.0, np.inf], np.inf, np.inf, np.inf),
    ([*np.arange(10.0), np.inf], 1.0, 5.0, 9.0),
    ([0.5, 1.5, np.nan], 0.7, 1.5, np.inf),  # One has diverged.
  ],
)
def test_spread_of_losses_that_are_not_finite(losses, p10, p50, p90):
  found = client_evaluation.spread("loss", np.array(losses), np.ones(len(losses)))
  worst = np.inf if len(losses) > 1 else 0.25
  assert found == pytest.approx(dict(p10=p10, p50=p50, p90=p90, worst=worst))


def test_spread_of_nobody_is_nan():
  found = client_evaluation.spread("loss", np.array([np.nan]), np.array([0]))
  assert len(found) == 4 and all(np.isnan(v) for v in found.values())


# --- Models of the clients' own -----------------------------------------------------


def _nearest(weights, examples):
  """A personal model: the label of the nearest example that the client knows."""
  del weights

  def predict(weights, x, training, seed):
    del weights, training, seed
    squares = tf.reduce_sum(tf.square(x[:, tf.newaxis] - examples.x), axis=-1)
    labels = tf.gather(examples.y, tf.argmin(squares, axis=1))
    return 50.0 * tf.one_hot(labels, 3)

  return dataclasses.replace(_MODEL, predict=predict)


def test_personal_model_is_of_one_half_and_measured_on_the_other(data, clients):
  """The halves are those of `Personalization`."""
  evaluate = client_evaluation.build_client_evaluation(
    _MODEL, personal_model=_nearest, seed=5
  )
  found = evaluate(_weights(), clients, _NAMES)
  assert list(found) == ["loss", "accuracy", "num_examples"]
  steps = _personalized(clients, steps=1, learning_rate=0.1, seed=5)
  assert found["num_examples"].tolist() == [0, *steps["num_examples"][1:]]
  for k, name in enumerate(_NAMES[1:], 1):
    x, y = data[name]
    words = seeds.sequence(5, "personalization", clients.place(name))
    key = tf.constant(words.generate_state(2, np.uint32).view(np.int32))
    order = local_training.batch_order(key, tf.constant(len(y)), 1)[0].numpy()
    known, others = order[: len(y) // 2], order[len(y) // 2 :]
    squares = np.sum((x[others][:, None] - x[known]) ** 2, axis=-1)
    hits = y[known][squares.argmin(axis=1)] == y[others]
    assert found["accuracy"][k] == np.mean(hits)


def test_client_with_one_example_has_no_values_of_a_personal_model(clients):
  """And the model is made of an example all the same, as it is promised."""

  def nearest(weights, examples):
    some = tf.debugging.Assert(tf.shape(examples.y)[0] > 0, ["no example"])
    with tf.control_dependencies([some]):
      return _nearest(weights, client_data.Examples(*map(tf.identity, examples)))

  evaluate = client_evaluation.build_client_evaluation(_MODEL, personal_model=nearest)
  found = evaluate(_weights(), clients, ["client 1"])
  assert np.isnan(found["loss"][0]) and np.isnan(found["accuracy"][0])


def test_personal_model_and_steps_exclude_each_other():
  with pytest.raises(ValueError, match="models of their own already"):
    client_evaluation.build_client_evaluation(
      _MODEL, client_evaluation.Personalization(1, 0.1), personal_model=_nearest
    )


def test_gaussian_process_of_two_far_clusters_is_certain(tmp_path):
  """Of 12 examples, six in each of two directions, with linear features."""
  x = np.zeros((12, 4), np.float32)
  x[::2, 0], x[1::2, 1] = 1 + np.arange(6), 2
  y = np.array([2, 0] * 6, np.int32)
  model = dataclasses.replace(
    _MODEL, initial_weights=(np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32))
  )
  clients = client_data.write_clients(
    str(tmp_path), {"two": (x, y), "one": (x[::2], y[::2])}, model.example_spec
  )
  process = pfedgp.build_pfedgp(model)
  evaluate = client_evaluation.build_client_evaluation(
    model, personal_model=process.personal_model
  )
  found = evaluate(model.initial_weights, clients, ["two", "one"])
  assert found["accuracy"].tolist() == [1, 1]
  assert found["num_examples"].tolist() == [6, 3]
  # Of the one class that a client knows there is no doubt.
  assert found["loss"][0] < 0.2 and found["loss"][1] == 0


def test_no_step_draws_what_the_shuffle_drew():
  """Whose order would say something of what a model draws from its seed."""
  seen = []

  def predict(weights, x, training, seed):
    del training
    seen.append(seed.numpy().tolist())
    return tf.matmul(x, weights[0]) + weights[1]

  model = dataclasses.replace(_MODEL, predict=predict)
  shuffles = []
  original = tf.random.stateless_uniform

  def draw(shape, seed, **options):
    shuffles.append(seed.numpy().tolist())
    return original(shape, seed, **options)

  seed = tf.constant([3, 4])
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tf.random, "stateless_uniform", draw)
    local_training.batch_order(seed, tf.constant(3), 1)
  examples = client_data.Examples(
    tf.ones([3, *_MODEL.example_spec.x.shape]), tf.zeros([3], tf.int32)
  )
  personalization = client_evaluation.Personalization(3, 0.1)
  weights = tuple(map(tf.constant, _weights()))
  client_evaluation._personalize(model, weights, examples, personalization, seed)
  assert len(seen) == 3 and len(shuffles) == 1
  assert len({tuple(key) for key in seen + shuffles}) == 4


def test_large_sums_of_several_clients_at_once(clients, graphs_of):
  """As in test_evaluation.py."""

  def predict(weights, x, training, seed):
    rows = tf.fill([60, 70_000], weights[1][0])
    total = tf.reduce_mean(tf.add_n([rows[k : k + 30] for k in range(30)]))
    return _predict(weights, x, training, seed) + total

  evaluate = client_evaluation.build_client_evaluation
  large, names = evaluate(dataclasses.replace(_MODEL, predict=predict)), _NAMES[:4]
  found = []
  graphs = graphs_of(lambda: found.append(large(_weights(), clients, names)))
  assert "AddN" in graphs and "TemporaryVariable" not in graphs
  expected = evaluate(_MODEL)(_weights(), clients, names)
  np.testing.assert_allclose(found[0]["loss"], expected["loss"], rtol=1e-4)
