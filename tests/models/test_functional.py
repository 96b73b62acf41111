"""The model's dataclass, and the loss, metric and preprocessing that come with it."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_algos.algorithms import fed_reg
from tff_algos.errors import InputError
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


@pytest.mark.parametrize(
  "augment, found",
  [(0.5, "found 0.5"), (lambda: 0, r"one of \(\)"), (lambda x: x, "")],
)
def test_augment_must_take_pictures_and_a_seed(augment, found):
  weights = (np.zeros((2, 3), np.float32),)
  with pytest.raises(InputError, match=rf"^augment must be .* of \(x, seed\); .*{found}"):
    _model(weights, ("a",), augment=augment)


def test_refuses_a_model_without_weights():
  with pytest.raises(ValueError, match="at least one trainable weight"):
    _model((), ())


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_refuses_another_number_of_names(names):
  arrays = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
  with pytest.raises(ValueError, match=f"2 weight arrays; found {len(names)} names"):
    _model(arrays, names)


@pytest.mark.parametrize("weight", [np.zeros((2, 3)), np.zeros((2, 3), int), 0.0])
def test_refuses_weights_that_are_no_float32_arrays(weight):
  with pytest.raises(ValueError, match=r"must be float32 arrays; b is of \w+: give"):
    _model((np.zeros((2, 3), np.float32), weight), ("a", "b"))


@pytest.mark.parametrize(
  "spec, match",
  [
    (tuple(_SPEC), r"^In the place of an ExampleSpec there is a tuple: give "),
    (None, r"^In the place of an ExampleSpec there is a NoneType: give "),
    (_SPEC._replace(x=[2]), r"^The x of the ExampleSpec is a list: give "),
    (_SPEC._replace(y=tf.int32), r"^The y of the ExampleSpec is a DType: give "),
    (_SPEC._replace(x=tf.TensorSpec([None, 2])), r"shape \(None, 2\), .*the batch dim"),
    (_SPEC._replace(y=tf.TensorSpec([None])), r"^The y .* \(None,\), but it is of one "),
    (_SPEC._replace(x=tf.TensorSpec(None)), r"has the shape <unknown>, but it is of one"),
  ],
)
def test_other_than_the_spec_of_an_example_is_refused(spec, match):
  model = _model((np.zeros((2, 3), np.float32),), ("a",))
  with pytest.raises(InputError, match=match):
    dataclasses.replace(model, example_spec=spec)


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


def test_logits_that_are_no_numbers_are_no_hit():
  """NumPy's argmax, and TensorFlow's, take the first of them for the largest."""
  logits = np.float32([[1, 0], [np.nan, np.nan], [np.nan, 0], [2, np.nan], [np.inf, 0]])
  labels = tf.zeros(5, tf.int32)
  found = functional.accuracy(labels, tf.constant(logits))
  np.testing.assert_array_equal(found, [1, 0, 0, 0, 1])
  whole = functional.accuracy(labels, tf.constant([[1, 0]] * 5))
  np.testing.assert_array_equal(whole, np.ones(5))
  hits, _ = functional.sequence_accuracy(labels[tf.newaxis], tf.constant(logits[None]))
  np.testing.assert_array_equal(hits, [2])


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


def test_soft_targets_by_default_go_where_the_loss_goes():
  model = _model(*_WEIGHTS)
  faded = functional.FadingCrossEntropy(0.25)
  found = dataclasses.replace(model, example_losses=faded)
  assert found.soft_targets.losses == faded.of_soft_targets
  again = dataclasses.replace(found, example_losses=model.example_losses)
  assert again.soft_targets == model.soft_targets
  assert dataclasses.replace(model, example_losses=_other_loss).soft_targets is None
  given = functional.SoftTargets(tf.nn.softmax, functional.soft_cross_entropy)
  own = _model(*_WEIGHTS, soft_targets=given)
  assert dataclasses.replace(own, example_losses=_other_loss).soft_targets is given


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


@pytest.mark.parametrize("build", [fed_reg.build_fed_reg, fed_reg.build_fed_reg_mg])
def test_fedreg_refuses_a_model_without_a_gradient_at_its_examples(build):
  def predict(weights, x, training, seed):
    return tf.gather(weights[0], tf.cast(x, tf.int32))

  spec = functional.ExampleSpec(tf.TensorSpec([], tf.int32), _SPEC.y)
  model = _model(*_WEIGHTS)
  model = dataclasses.replace(model, example_spec=spec, predict=predict)
  with pytest.raises(InputError, match=r"^FedReg moves examples along the loss's grad"):
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


# --- Cross-entropy that fades -----------------------------------------------------------

_EPSILONS = pytest.mark.parametrize("epsilon", [1e-30, 1e-12, 1e-3, 0.5])
# Of the label before that of three other classes, so that p is from 1 to e^-1e6.
_AHEAD = np.array([30.0, 5, 0.3, -1, -6, -20, -27.6, -28, -40, -69, -80, -1e3, -1e6])


def _far_apart() -> tuple[np.ndarray, np.ndarray]:
  """Labels (13,) and logits (13, 4)."""
  logits = np.tile([0.0, 0.2, -0.5, -0.1], (len(_AHEAD), 1))
  labels = np.arange(len(_AHEAD), dtype=np.int32) % 4
  logits[np.arange(len(_AHEAD)), labels] += _AHEAD
  return labels, logits.astype(np.float32)


def _loss_and_gradient(losses_of, of, logits):
  x = tf.constant(logits)
  with tf.GradientTape() as tape:
    tape.watch(x)
    losses = losses_of(tf.constant(of), x)
  return losses.numpy(), tape.gradient(losses, x).numpy()


def _faded(log_p, epsilon):
  """-log(p + epsilon), for p below what a float64 holds as well."""
  return -np.logaddexp(log_p, np.log(epsilon))


@_EPSILONS
def test_fading_loss_is_minus_the_logarithm_of_p_and_epsilon(epsilon):
  labels, logits = _far_apart()
  log_p = _log_softmax(logits)[np.arange(len(labels)), labels]
  losses, gradient = _loss_and_gradient(
    functional.FadingCrossEntropy(epsilon), labels, logits
  )
  np.testing.assert_allclose(losses, _faded(log_p, epsilon), rtol=1e-5, atol=1e-12)
  # By the formula, p / (p + epsilon) (softmax - one hot).
  share = 1 / (1 + np.exp(np.minimum(np.log(epsilon) - log_p, 700)))
  slope = np.exp(_log_softmax(logits)) - np.eye(4)[labels]
  expected = share[:, np.newaxis] * slope
  np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-7)
  assert np.abs(gradient[-2:]).max() == 0 < np.abs(gradient[0]).max()


@_EPSILONS
def test_gradient_of_the_fading_loss_is_that_of_central_differences(epsilon):
  labels, logits = _far_apart()
  _, gradient = _loss_and_gradient(functional.FadingCrossEntropy(epsilon), labels, logits)
  for k in range(4):
    there, back = logits.astype(np.float64), logits.astype(np.float64)
    there[:, k] += 1e-5
    back[:, k] -= 1e-5
    rows = np.arange(len(labels))
    losses = [_faded(_log_softmax(z)[rows, labels], epsilon) for z in (there, back)]
    expected = (losses[0] - losses[1]) / 2e-5
    # Losses of the logits' own size cancel; where they do not fade, none is larger.
    np.testing.assert_allclose(gradient[:, k], expected, atol=2e-5)


def test_fading_gradient_far_below_epsilon_is_p_over_epsilon():
  """Where p is 1e-6 of epsilon, what is left of the gradient is right to 5 digits."""
  logits = np.array([[np.log(1e-18), 0.0]], np.float32)
  _, gradient = _loss_and_gradient(
    functional.FadingCrossEntropy(1e-12), np.zeros(1, np.int32), logits
  )
  np.testing.assert_allclose(gradient, [[-1e-6, 1e-6]], rtol=2e-5)


@pytest.mark.parametrize("size", [1e3, 1e15, 1e37])
def test_fading_loss_of_huge_logits_is_minus_the_logarithm_of_epsilon(size):
  logits = np.array([[-size, 0.0, size], [size, 0.0, -size]], np.float32)
  labels = np.zeros(2, np.int32)
  one_hot = np.eye(3, dtype=np.float32)[labels]
  losses = functional.FadingCrossEntropy(1e-12)
  for losses_of, of in ((losses, labels), (losses.of_soft_targets, one_hot)):
    values, gradient = _loss_and_gradient(losses_of, of, logits)
    np.testing.assert_allclose(values, [12 * np.log(10), 0], rtol=1e-6, atol=1e-11)
    np.testing.assert_array_equal(gradient, 0)


@_EPSILONS
def test_fading_loss_of_soft_targets(epsilon):
  _, logits = _far_apart()
  targets = np.random.default_rng(3).dirichlet(np.ones(4), size=len(logits))
  log_p = _log_softmax(logits)
  expected = (targets * _faded(log_p, epsilon)).sum(axis=1)
  losses_of = functional.FadingCrossEntropy(epsilon).of_soft_targets
  losses, gradient = _loss_and_gradient(losses_of, targets.astype(np.float32), logits)
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  weight = targets / (1 + np.exp(np.minimum(np.log(epsilon) - log_p, 700)))
  by_logits = np.exp(log_p) * weight.sum(axis=1, keepdims=True) - weight
  np.testing.assert_allclose(gradient, by_logits, rtol=2e-5, atol=1e-6)


def test_fading_loss_has_a_second_derivative():
  """s = p / (p + epsilon) has slope s (1 - s) d log p: with two classes, of one logit."""
  epsilon, z = 0.05, tf.constant([[-2.0, 0.0], [-4.0, 0.0]])
  with tf.GradientTape() as outer:
    outer.watch(z)
    with tf.GradientTape() as inner:
      inner.watch(z)
      losses = functional.FadingCrossEntropy(epsilon)(tf.constant([0, 0]), z)
    gradient = inner.gradient(losses, z)[:, 0]
  found = outer.gradient(gradient, z)[:, 0]
  p = 1 / (1 + np.exp(-z[:, 0].numpy()))
  s = p / (p + epsilon)
  expected = -s * (1 - s) * (1 - p) ** 2 + s * p * (1 - p)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, 1.5, float("nan"), "x", None, True])
def test_epsilons_that_give_no_loss_are_refused(epsilon):
  with pytest.raises(InputError, match=r"^epsilon must be "):
    functional.FadingCrossEntropy(epsilon)


def test_model_with_a_fading_loss_has_its_soft_targets_and_labels():
  losses = functional.FadingCrossEntropy(1e-3)
  model = _model(*_WEIGHTS, example_losses=losses)
  assert model.soft_targets.of is tf.nn.softmax
  assert model.soft_targets.losses == losses.of_soft_targets
  assert model.labels() == range(3)
