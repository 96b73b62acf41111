"""The model's dataclass, and the loss, metric and preprocessing that come with it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_algos.algorithms import fed_reg
from tff_algos.models import functional

_SPEC = functional.ExampleSpec(
  tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
)


def _model(weights, names, **options) -> functional.Model:
  return functional.Model(
    initial_weights=weights,
    weight_names=names,
    example_spec=_SPEC,
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
    **options,
  )


def test_num_weights_counts_the_numbers_of_all_arrays():
  arrays = np.zeros((2, 3), np.float32), np.zeros(3, np.float32), np.float32(0)
  assert _model(arrays, ("a", "b", "c")).num_weights == 2 * 3 + 3 + 1


def test_refuses_a_model_without_weights():
  with pytest.raises(ValueError, match="at least one trainable weight"):
    _model((), ())


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_refuses_another_number_of_names(names):
  arrays = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
  with pytest.raises(ValueError, match=f"2 weight arrays; found {len(names)} names"):
    _model(arrays, names)


def test_default_metric_is_the_accuracy():
  model = _model((np.zeros((2, 3), np.float32),), ("a",))
  assert list(model.metrics) == ["accuracy"]
  labels, logits = tf.constant([0, 1]), tf.constant([[1.0, 0], [1, 0]])
  found = model.metrics["accuracy"](labels, logits)
  np.testing.assert_array_equal(found, [1, 0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_accuracy_is_one_where_the_largest_logit_is_the_labels(dtype):
  logits = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
  labels = np.arange(50).astype(dtype) % 7
  found = functional.accuracy(tf.constant(labels), tf.constant(logits))
  assert found.dtype == tf.float32
  np.testing.assert_array_equal(found, logits.argmax(axis=1) == labels)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_cross_entropy_is_minus_the_logarithm_of_the_softmax(dtype, size):
  logits = size * np.random.default_rng(1).normal(size=(40, 5))
  logits = logits.astype(np.float32)
  labels = (np.arange(40) % 5).astype(dtype)
  exact = logits.astype(np.float64)
  exact -= exact.max(axis=1, keepdims=True)
  log_sum = np.log(np.exp(exact).sum(axis=1))
  expected = log_sum - exact[np.arange(40), labels]
  found = functional.sparse_cross_entropy(tf.constant(labels), tf.constant(logits))
  # A difference of two float32 numbers of the logits' size.
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=4e-7 * size)


# --- Soft targets -----------------------------------------------------------------------


def _log_softmax(logits) -> np.ndarray:
  exact = np.asarray(logits, np.float64)
  exact = exact - exact.max(axis=1, keepdims=True)
  return exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))


def _some_logits(size=1.0) -> np.ndarray:
  logits = size * np.random.default_rng(2).normal(size=(40, 5))
  return logits.astype(np.float32)


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_soft_cross_entropy_is_minus_the_mean_logarithm_under_the_targets(size):
  logits = _some_logits(size)
  targets = np.random.default_rng(3).dirichlet(np.ones(5), size=40).astype(np.float32)
  expected = -(targets.astype(np.float64) * _log_softmax(logits)).sum(axis=1)
  found = functional.soft_cross_entropy(tf.constant(targets), tf.constant(logits))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=4e-7 * size)


def test_gradient_of_soft_cross_entropy_has_a_derivative_by_the_targets():
  """The gradient by the logits is softmax(logits) - targets."""
  logits, targets = tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[0.2, 0.3, 0.5]])
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(targets)
    with tf.GradientTape() as inner:
      inner.watch(logits)
      loss = functional.soft_cross_entropy(targets, logits)
    gradient = inner.gradient(loss, logits)
  found = outer.jacobian(gradient, targets, experimental_use_pfor=False)
  # The targets add up to 1, so what is the same for all of them does not count.
  found = found[0, :, 0].numpy()
  centred = np.eye(3) - 1 / 3
  np.testing.assert_allclose(found @ centred, -centred, atol=1e-6)


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_soft_cross_entropy_of_a_certain_class_is_the_sparse_one(size):
  logits, labels = tf.constant(_some_logits(size)), np.arange(40, dtype=np.int32) % 5
  one_hot = np.eye(5, dtype=np.float32)[labels]
  found = functional.soft_cross_entropy(tf.constant(one_hot), logits)
  expected = functional.sparse_cross_entropy(tf.constant(labels), logits)
  assert found.shape == (40,)
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=4e-7 * size)


_WEIGHTS = (np.zeros((2, 3), np.float32),), ("a",)


def test_soft_targets_of_a_classifier_are_its_probabilities():
  soft_targets = _model(*_WEIGHTS).soft_targets
  logits = _some_logits()
  targets = soft_targets.of(tf.constant(logits))
  np.testing.assert_allclose(targets, np.exp(_log_softmax(logits)), rtol=1e-5)
  # Their loss at the predictions they come from is the entropy, and its gradient 0.
  with tf.GradientTape() as tape:
    predictions = tf.constant(logits)
    tape.watch(predictions)
    losses = soft_targets.losses(targets, predictions)
  p = _log_softmax(logits)
  np.testing.assert_allclose(losses, -(np.exp(p) * p).sum(axis=1), rtol=1e-5)
  np.testing.assert_allclose(tape.gradient(losses, predictions), 0, atol=1e-6)


def _other_loss(labels, logits):
  return functional.sparse_cross_entropy(labels, 2 * logits)


def test_models_with_another_loss_have_soft_targets_only_if_given():
  assert _model(*_WEIGHTS, example_losses=_other_loss).soft_targets is None
  given = functional.SoftTargets(tf.identity, lambda targets, predictions: targets[:, 0])
  for options in ({}, dict(example_losses=_other_loss)):
    assert _model(*_WEIGHTS, soft_targets=given, **options).soft_targets is given


@pytest.mark.parametrize("build", [fed_reg.build_fed_reg, fed_reg.build_fed_reg_mg])
def test_fedreg_refuses_a_model_without_soft_targets(build):
  model = _model(*_WEIGHTS, example_losses=_other_loss, metrics=OrderedDict())
  with pytest.raises(ValueError, match=r"^FedReg .* give the model soft_targets\.$"):
    build(model)


# --- Preprocessing ----------------------------------------------------------------------


def test_pictures_are_scaled_to_0_1():
  every = np.arange(256, dtype=np.uint8)
  found = functional.scale_pictures(tf.constant(every)).numpy()
  assert found.dtype == np.float32
  assert (found[0], found[255]) == (0, 1)
  np.testing.assert_allclose(found, every / 255, rtol=1.2e-7)  # One float32 step.


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False)))
def test_floats_are_left_as_they_are(values):
  x = np.array(values, np.float32)
  np.testing.assert_array_equal(functional.scale_pictures(tf.constant(x)), x)


def test_whole_numbers_are_cast_as_they_are():
  found = functional.scale_pictures(tf.constant([0, 7, 300]))
  assert found.dtype == tf.float32
  np.testing.assert_array_equal(found, [0, 7, 300])


def _sequences():
  """Logits (6, 5, 4) and labels (6, 5), some steps without one and a row without any."""
  draw = np.random.default_rng(3)
  labels = draw.integers(0, 4, (6, 5)).astype(np.int32)
  labels[:, 3:] = -1
  labels[1, 0] = -1
  labels[5] = -1
  return labels, draw.normal(size=(6, 5, 4)).astype(np.float32)


def test_sequence_loss_is_the_mean_over_labelled_steps():
  labels, logits = _sequences()
  found = functional.sequence_cross_entropy(tf.constant(labels), tf.constant(logits))
  log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
  for row, of_row in enumerate(labels[:5]):
    steps = np.flatnonzero(of_row >= 0)
    expected = -np.mean(log_p[row, steps, of_row[steps]])
    assert found[row].numpy() == pytest.approx(expected, rel=1e-5)
  assert found[5] == 0


def test_steps_without_a_label_have_no_gradient():
  labels, logits = _sequences()
  x = tf.constant(logits)
  with tf.GradientTape() as tape:
    tape.watch(x)
    loss = tf.reduce_sum(functional.sequence_cross_entropy(tf.constant(labels), x))
  gradient = tape.gradient(loss, x).numpy()
  np.testing.assert_array_equal(np.any(gradient != 0, axis=-1), labels >= 0)


def test_sequence_accuracy_counts_hits_and_labelled_steps():
  labels, logits = _sequences()
  hits, counts = functional.sequence_accuracy(tf.constant(labels), tf.constant(logits))
  np.testing.assert_array_equal(counts, [3, 2, 3, 3, 3, 0])
  is_hit = (logits.argmax(axis=-1) == labels) & (labels >= 0)
  np.testing.assert_array_equal(hits, is_hit.sum(axis=1))


def test_sequence_loss_has_no_soft_targets_by_itself():
  weights = (np.zeros((2, 3), np.float32),)
  model = _model(weights, ("a",), example_losses=functional.sequence_cross_entropy)
  assert model.soft_targets is None
