"""Evaluation against NumPy."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import errors
from tff_algos.models import functional
from tff_algos.simulation import evaluation


def _softmax_regression(**options) -> functional.Model:
  """On pictures of 2 x 3 with four classes; noisy in training."""

  def predict(weights, x, training, seed):
    if training:
      x = x + tf.random.stateless_normal(tf.shape(x), seed)
    return tf.matmul(tf.reshape(x, [-1, 6]), weights[0]) + weights[1]

  return functional.Model(
    initial_weights=(np.zeros((6, 4), np.float32), np.zeros(4, np.float32)),
    weight_names=("kernel", "bias"),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([2, 3], tf.uint8), tf.TensorSpec([], tf.int32)
    ),
    predict=predict,
    **options,
  )


def _weights() -> tuple:
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=(6, 4)).astype(np.float32),
    rng.normal(size=4).astype(np.float32),
  )


def _pictures(n: int):
  rng = np.random.default_rng([n, 1])
  x = rng.integers(0, 256, (n, 2, 3)).astype(np.uint8)
  return x, rng.integers(0, 4, n).astype(np.int32)


def _losses_and_hits(x, y):
  """In float64, from the formulas alone."""
  kernel, bias = (w.astype(np.float64) for w in _weights())
  logits = x.reshape(len(x), 6) / 255 @ kernel + bias
  log_sum = np.log(np.exp(logits).sum(axis=1))
  top_two = np.sort(logits, axis=1)[:, -2:]
  assert np.all(top_two[:, 1] - top_two[:, 0] > 1e-5)  # No label hangs on rounding.
  return log_sum - logits[np.arange(len(y)), y], logits.argmax(axis=1) == y


@pytest.mark.parametrize("n", [1, 7, 999, 1000, 1001, 2345])
def test_means_are_numpys_for_any_number_of_examples(n):
  x, y = _pictures(n)
  evaluate = evaluation.build_evaluation(_softmax_regression(), x, y)
  found = evaluate(_weights())
  losses, hits = _losses_and_hits(x, y)
  assert list(found) == ["loss", "accuracy"]
  assert all(type(value) is float for value in found.values())
  assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
  assert found["accuracy"] == hits.sum() / n


@pytest.mark.parametrize(
  "change, words",
  [
    (lambda x, y: (x, y.astype(np.int64) + 2**32), "hold 4294967.*, which is no int32"),
    (lambda x, y: (x, y + 0.5), r"hold .\.5, which is no int32"),
    (lambda x, y: (x.astype(np.int32) - 256, y), "inputs of .* which is no uint8"),
    (lambda x, y: (x[:, 0], y), r"are uint8 \(3,\) each"),
    (lambda x, y: (x[:0], y[:0]), "^The evaluation is empty"),
    (lambda x, y: (x, y[:-1]), "^The evaluation has 7 inputs but 6 labels"),
    (lambda x, y: (x, y + 4), r"^The evaluation has the label \d, .* takes 0\.\.3: "),
    (lambda x, y: (x, y - 1), "^The evaluation has the label -1, "),
  ],
)
def test_examples_that_do_not_fit_the_model_are_refused(change, words):
  with pytest.raises(errors.InputError, match=words):
    evaluation.build_evaluation(_softmax_regression(), *change(*_pictures(7)))


def test_inputs_that_are_not_finite_are_refused():
  """The largest of predictions that are NaN would be of class 0."""
  model = _softmax_regression()
  spec = model.example_spec._replace(x=tf.TensorSpec([2, 3], tf.float32))
  x, y = _pictures(7)
  x = np.where(np.arange(7)[:, np.newaxis, np.newaxis] == 4, np.nan, x)
  with pytest.raises(errors.InputError, match=r"of the evaluation hold NaN .* number 4"):
    evaluation.build_evaluation(dataclasses.replace(model, example_spec=spec), x, y)


def test_labels_that_are_not_finite_are_warned_of():
  spec = functional.ExampleSpec(
    tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([4], tf.float32)
  )
  model = dataclasses.replace(
    _softmax_regression(),
    example_spec=spec,
    example_losses=lambda y, p: tf.reduce_sum(tf.where(tf.equal(y, y), p, 0.0), -1),
    metrics={},
  )
  x, y = _pictures(7)[0].astype(np.float32), np.ones([7, 4], np.float32)
  y[4, 2] = np.nan
  with pytest.warns(errors.InputWarning, match="of the evaluation hold NaN .* number 4"):
    evaluate = evaluation.build_evaluation(model, x, y)
  assert np.isfinite(evaluate(_weights())["loss"])


def test_evaluation_is_of_the_weights_it_is_given():
  x, y = _pictures(50)
  evaluate = evaluation.build_evaluation(_softmax_regression(), x, y)
  zeros = evaluate(_softmax_regression().initial_weights)
  assert zeros["loss"] == pytest.approx(np.log(4), rel=1e-6)
  assert evaluate(_weights()) == evaluate(tuple(map(tf.constant, _weights())))
  assert evaluate(_weights()) != zeros


def test_own_metrics_are_means_beside_the_loss():
  def error(labels, logits):
    return tf.abs(tf.reduce_sum(logits, axis=1) - tf.cast(labels, tf.float32))

  def is_third(labels, logits):
    del logits
    return tf.equal(labels, 3)

  metrics = OrderedDict(error=error, is_third=is_third)
  x, y = _pictures(1234)
  evaluate = evaluation.build_evaluation(_softmax_regression(metrics=metrics), x, y)
  found = evaluate(_weights())
  kernel, bias = (w.astype(np.float64) for w in _weights())
  sums = (x.reshape(-1, 6) / 255 @ kernel + bias).sum(axis=1)
  assert list(found) == ["loss", "error", "is_third"]
  assert found["error"] == pytest.approx(np.abs(sums - y).mean(), rel=1e-6)
  assert found["is_third"] == np.sum(y == 3) / 1234


def test_metric_of_totals_and_counts_is_sum_over_sum():
  """Not the mean of quotients: label 3 counts three times, label 0 not at all."""

  def weighted_error(labels, logits):
    counts = tf.cast(labels, tf.float32)
    return counts * tf.reduce_sum(logits, axis=1), counts

  x, y = _pictures(1234)
  model = _softmax_regression(metrics=OrderedDict(error=weighted_error))
  found = evaluation.build_evaluation(model, x, y)(_weights())
  kernel, bias = (w.astype(np.float64) for w in _weights())
  sums = (x.reshape(-1, 6) / 255 @ kernel + bias).sum(axis=1)
  assert list(found) == ["loss", "error"]
  assert found["error"] == pytest.approx((y * sums).sum() / y.sum(), rel=1e-6)
  assert found["error"] != pytest.approx(sums.mean(), rel=1e-4)
  assert type(found["error"]) is float


def test_sums_lose_nothing_over_many_examples():
  """Of 40,000 equal losses the mean is the loss; a float32 sum would be off by 1e-4."""
  y = np.zeros(40_000, np.int32)
  x = np.zeros((len(y), 2, 3), np.uint8)
  bias = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
  evaluate = evaluation.build_evaluation(_softmax_regression(), x, y)
  found = evaluate((np.zeros((6, 4), np.float32), bias))
  exact = bias.astype(np.float64)
  expected = np.log(np.exp(exact).sum()) - exact[0]
  assert found["loss"] == pytest.approx(expected, rel=1e-7)


def test_threads_find_what_they_call_traced():
  model = _softmax_regression()
  callers = []

  def predict(*arguments):
    callers.append(threading.current_thread())
    return model.predict(*arguments)

  watched = dataclasses.replace(model, predict=predict)
  x, y = _pictures(2345)
  means = evaluation.build_means(watched)
  with futures.ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: means(_weights(), x, y), range(4)))
  assert found == [means(_weights(), x, y)] * 4
  assert callers == [threading.current_thread()]


def test_large_sums_of_several_batches_at_once(graphs_of):
  """TensorFlow's memory optimizer would name one temporary variable for all threads.

  From 80 % of 256 MiB on, by its estimate, which counts each of these views of 17 MB.
  """
  model = _softmax_regression()

  def predict(weights, x, training, seed):
    rows = tf.fill([60, 70_000], weights[1][0])
    total = tf.reduce_mean(tf.add_n([rows[k : k + 30] for k in range(30)]))
    return model.predict(weights, x, training, seed) + total

  x, y = _pictures(2345)
  means = evaluation.build_means(dataclasses.replace(model, predict=predict))
  expected = evaluation.build_means(model)(_weights(), x, y)
  # The same is added to all logits.
  found = []
  graphs = graphs_of(lambda: found.append(means(_weights(), x, y)))
  assert found == [pytest.approx(expected, rel=1e-4)]
  assert "AddN" in graphs and "TemporaryVariable" not in graphs


def test_other_than_the_models_weights_is_refused():
  """A server's state, or both kinds of weights, as get_model_weights gives them."""
  model = _softmax_regression()
  both = tff.learning.models.ModelWeights(_weights(), ())
  x, y = np.zeros([2, 2, 3], np.uint8), np.zeros(2, np.int32)
  evaluate = evaluation.build_evaluation(model, x, y)
  evaluate(both.trainable)
  assert evaluate(w for w in _weights()) == evaluate(_weights())
  for other in (both, _weights()[:1], 3):
    with pytest.raises(errors.InputError, match=r"give .*\(state\)\.trainable"):
      evaluate(other)
