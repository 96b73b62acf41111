"""The private gradient: its mean, noise and sensitivity, from their definitions."""

from __future__ import annotations

import functools
import itertools
import math
from collections import OrderedDict

import numpy as np
import problems
import pytest
import replay
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy
from scipy import stats

from tff_algos.algorithms import dp_sgd, fed_curv
from tff_algos.client_data import Examples
from tff_algos.client_work import local_training
from tff_algos.models import functional, keras
from tff_algos.privacy import dp_sgd_step

_SEED = tf.constant([3, 4])


def _private(clip_norm=1.0, noise_multiplier=0.0, **options):
  return dp_sgd.FedAvgDpSgdHparams(
    clip_norm=clip_norm, noise_multiplier=noise_multiplier, **options
  )


# --- The gradient without noise ---------------------------------------------------------


@pytest.fixture(scope="module", params=["linear", "softmax", "mlp"])
def problem(request, tmp_path_factory) -> problems.Problem:
  return problems.make(request.param, str(tmp_path_factory.mktemp(request.param)))


def _private_gradient(model, hparams, x, y, seed=_SEED):
  weights = tuple(map(tf.constant, model.initial_weights))
  batch = local_training.Batch(tf.range(len(y)), tf.constant(x), tf.constant(y), seed)
  return dp_sgd_step.private_gradient(model, hparams, weights, batch)


def _assert_close(found, expected):
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_without_noise_and_clipping_it_is_the_batch_gradient(problem):
  x, y = problem.clients[1]
  found, loss = _private_gradient(problem.model, _private(clip_norm=1e6), x, y)
  mean_loss, expected = problem.numpy_model.loss_and_gradient(
    replay.as_weights(problem.model.initial_weights), *problem.numpy_examples(1)
  )
  _assert_close(found, expected)
  np.testing.assert_allclose(loss, len(y) * mean_loss, rtol=1e-5)


def test_without_noise_it_is_the_mean_of_the_clipped_gradients(problem):
  """The clip norm is the median of the lengths, so that some are clipped."""
  weights = replay.as_weights(problem.model.initial_weights)
  x, y = problem.numpy_examples(1)
  each = replay.example_gradients(problem.numpy_model, weights, x, y)
  clip_norm = float(np.median([replay.norm(g) for g in each]))
  clipped = [replay.clipped(g, clip_norm) for g in each]
  expected = [sum(arrays) / len(y) for arrays in zip(*clipped)]
  found, _ = _private_gradient(problem.model, _private(clip_norm), *problem.clients[1])
  _assert_close(found, expected)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, 3e38, 1e20])
def test_gradient_that_is_not_finite_counts_as_none(problem, spoilt):
  """And the loss is finite, so that nothing drops what the others' sum is in."""
  x, y = problem.clients[1]
  if x.dtype != np.float32:
    pytest.skip("its inputs are whole numbers of 8 bits")
  x = x.copy()
  x[-1] = spoilt
  weights = replay.as_weights(problem.model.initial_weights)
  others = problem.numpy_examples(1)[0][:-1], y[:-1]
  each = replay.example_gradients(problem.numpy_model, weights, *others)
  clipped = [replay.clipped(g, 1) for g in each]
  expected = [sum(arrays) / len(y) for arrays in zip(*clipped)]
  found, loss = _private_gradient(problem.model, _private(1.0), x, y)
  far = replay.norm([np.asarray(f) - e for f, e in zip(found, expected)])
  # What has a finite gradient, as by tanh, is clipped.
  assert far <= (1 / len(y) if np.isfinite(spoilt) else 0) + 1e-6
  assert np.isfinite(loss) and abs(loss) <= 1e9
  assert np.isfinite(tf.nn.l2_loss(loss))


# --- Random layers ----------------------------------------------------------------------

_UNITS, _EQUAL = 200, 6


@pytest.fixture(scope="module")
def dropping() -> functional.Model:
  """Half of its inputs dropped, the others doubled; a dense layer of zeros."""
  layers = tf.keras.layers
  dense = layers.Dense(2, kernel_initializer="zeros")
  keras_model = tf.keras.Sequential([layers.Input([_UNITS]), layers.Dropout(0.5), dense])
  spec = functional.ExampleSpec(
    tf.TensorSpec([_UNITS], tf.float32), tf.TensorSpec([], tf.int32)
  )
  return keras.from_keras(keras_model, spec)


def _equal_examples() -> tuple[np.ndarray, np.ndarray]:
  return np.ones((_EQUAL, _UNITS), np.float32), np.zeros(_EQUAL, np.int32)


def test_each_example_has_a_drop_out_of_its_own_from_the_steps_seed(dropping):
  """Of an example the gradient by label 0's row is -1 where its input is kept, else 0.

  So the sum of six equal ones counts by how many an input is kept, which of 200 inputs
  is binomial; if all had one mask, by none or by six.
  """

  def counts(seed):
    found, _ = _private_gradient(
      dropping, _private(clip_norm=1e6), *_equal_examples(), tf.constant(seed)
    )
    kept = -_EQUAL * found[0].numpy()[:, 0].astype(np.float64)
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-5)
    return np.round(kept)

  one, again, other = counts([3, 4]), counts([3, 4]), counts([3, 5])
  np.testing.assert_array_equal(one, again)
  assert not np.array_equal(one, other)
  # Mean n/2, variance n/4, fourth central moment n (3n - 2) / 16.
  n, variance = _EQUAL, _EQUAL / 4
  spread = math.sqrt((n * (3 * n - 2) / 16 - variance**2) / _UNITS)
  for kept in (one, other):
    assert abs(kept.mean() - n / 2) < 5 * math.sqrt(variance / _UNITS)
    assert abs(np.mean((kept - n / 2) ** 2) - variance) < 5 * spread


@pytest.mark.parametrize(
  "fisher_of",
  [fed_curv.fisher_information, dp_sgd_step.private_fisher_information],
  ids=["plain", "private"],
)
def test_fisher_information_is_without_drop_out(dropping, fisher_of):
  """Of each input 1 the gradient is 1/2 or -1/2, where none is dropped or doubled."""
  hparams = dp_sgd.FedCurvDpSgdHparams(clip_norm=1e6, noise_multiplier=0.0)
  weights = tuple(map(tf.constant, dropping.initial_weights))
  examples = Examples(*map(tf.constant, _equal_examples()))
  for seed in ([3, 4], [3, 5]):
    found = fisher_of(dropping, hparams, weights, examples, tf.constant(seed))
    for f in found:
      np.testing.assert_allclose(f, 0.25, rtol=1e-6)


# --- The noise --------------------------------------------------------------------------

_SHAPES = ((40, 50), (40, 50), (7,))


def _flat_model() -> functional.Model:
  """A model whose gradient is 0, so that all that is left is the noise."""
  return functional.Model(
    initial_weights=tuple(np.zeros(s, np.float32) for s in _SHAPES),
    weight_names=tuple("abc"),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.float32)
    ),
    predict=lambda weights, x, training, seed: x,
    example_losses=lambda y, predictions: predictions[:, 0],
    metrics=OrderedDict(),
  )


_FLAT = _flat_model()
_CLIP, _SIGMA, _BATCH = 0.5, 3.0, 6
_DEVIATION = _SIGMA * _CLIP / _BATCH
_EXAMPLES = np.ones((_BATCH, 2), np.float32), np.zeros(_BATCH, np.float32)


def _noise(seed, batch=_BATCH, **options) -> list[np.ndarray]:
  options = {**dict(clip_norm=_CLIP, noise_multiplier=_SIGMA), **options}
  x, y = (v[:batch] for v in _EXAMPLES)
  drawn, _ = _private_gradient(_FLAT, _private(**options), x, y, tf.constant(seed))
  return [g.numpy() for g in drawn]


def _joined(arrays) -> np.ndarray:
  return np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays])


def _assert_standard_normal(numbers):
  """Of N independent ones the mean is within 5 / sqrt(N), with 6 in 10 million misses.

  The same holds for the variance and 5 sqrt(2/N); and for the largest distance D of the
  distribution functions P(D > d) <= 2 e^(-2 N d^2).
  """
  n = len(numbers)
  assert abs(numbers.mean()) < 5 / math.sqrt(n)
  assert abs(numbers.var() - 1) < 5 * math.sqrt(2 / n)
  distance = stats.kstest(numbers, "norm").statistic
  assert distance < math.sqrt(math.log(2 / 6e-7) / (2 * n))


def _assert_uncorrelated(a, b):
  """The mean of N products of independent standard normal numbers: 5 / sqrt(N)."""
  assert abs(np.mean(a * b)) < 5 / math.sqrt(len(a))


def test_noise_is_normal_with_deviation_sigma_c_over_the_batch_size():
  draws = [_joined(_noise([k, 7])) / _DEVIATION for k in range(20)]
  assert len(draws[0]) == 4007
  _assert_standard_normal(np.concatenate(draws))


@pytest.mark.parametrize(
  "changed, factor",
  [
    (dict(clip_norm=4 * _CLIP), 4),
    (dict(noise_multiplier=0.5 * _SIGMA), 0.5),
    (dict(batch=2), _BATCH / 2),
    (dict(noise_multiplier=0.0), 0),
  ],
  ids=["clip_norm", "noise_multiplier", "batch", "none"],
)
def test_noise_is_in_proportion_to_sigma_c_over_b(changed, factor):
  """Not only its size: the draw does not depend on them."""
  for a, b in zip(_noise([1, 2], **changed), _noise([1, 2])):
    np.testing.assert_allclose(a, factor * b, rtol=1e-6)


def test_noise_is_of_the_seed_alone_and_another_for_each():
  seeds = ([1, 2], [2, 1], [1, 3], [0, 2])
  draws = [_joined(_noise(seed)) / _DEVIATION for seed in seeds]
  np.testing.assert_array_equal(draws[0], _joined(_noise([1, 2])) / _DEVIATION)
  for a, b in itertools.combinations(draws, 2):
    assert not np.any(a == b)
    _assert_uncorrelated(a, b)


def test_arrays_of_one_shape_get_noise_of_their_own():
  a, b, _ = (array.ravel() / _DEVIATION for array in _noise([1, 2]))
  assert not np.any(a == b)
  _assert_uncorrelated(a, b)


def test_every_local_step_draws_anew():
  """With a gradient of 0 all that a step takes is its noise."""
  hparams = _private(_CLIP, _SIGMA, epochs=3, batch_size=4, learning_rate=1.0)
  draws = []

  def record(gradient, weights, carry):
    draws.append(_joined(gradient))
    return gradient, carry

  def train(seed):
    draws.clear()
    weights = tuple(map(tf.constant, _FLAT.initial_weights))
    local_training.train_client(
      _FLAT,
      weights,
      Examples(*map(tf.constant, _EXAMPLES)),
      hparams,
      tf.constant(seed),
      gradient_of=functools.partial(dp_sgd_step.private_gradient, _FLAT, hparams),
      adjust_gradient=record,
    )
    return list(draws)

  drawn = train([1, 2])
  # Batches of 4 and 2 examples in each of three epochs.
  sizes = [4, 2] * 3
  assert len(drawn) == len(sizes)
  found = [size / (_SIGMA * _CLIP) * d for size, d in zip(sizes, drawn)]
  _assert_standard_normal(np.concatenate(found))
  for a, b in itertools.combinations(found, 2):
    assert not np.any(a == b)
    _assert_uncorrelated(a, b)
  again, other = train([1, 2]), train([1, 3])
  for k, a in enumerate(drawn):
    np.testing.assert_array_equal(a, again[k])
    assert not np.any(a == other[k])


# Of both TensorFlow's `stateless_fold_in` makes one seed, by 32 bits that are equal.
_OF_ONE_FOLD = [0, 8026], [0, 122985]


def test_noise_of_seeds_that_tensorflow_folds_into_one():
  """Of a step, of a client's steps and of a Fisher information."""
  fold_in = tf.random.experimental.stateless_fold_in
  folded = [fold_in(tf.constant(seed), 1).numpy().tolist() for seed in _OF_ONE_FOLD]
  assert folded[0] == folded[1]
  weights = tuple(map(tf.constant, _FLAT.initial_weights))
  examples = Examples(*map(tf.constant, _EXAMPLES))
  hparams = dp_sgd.FedCurvDpSgdHparams(
    clip_norm=_CLIP, noise_multiplier=_SIGMA, epochs=1, batch_size=None
  )

  def drawn(seed):
    trained = local_training.train_client(
      _FLAT,
      weights,
      examples,
      hparams,
      seed,
      gradient_of=functools.partial(dp_sgd_step.private_gradient, _FLAT, hparams),
    )
    fisher_of = dp_sgd_step.private_fisher_information
    fisher = fisher_of(_FLAT, hparams, weights, examples, seed)
    return _joined(_noise(seed)), _joined(trained.weights), _joined(fisher)

  for a, b in zip(*(drawn(tf.constant(seed)) for seed in _OF_ONE_FOLD)):
    assert np.any(a != 0) and not np.any((a == b) & (a != 0))


# --- Sensitivity ------------------------------------------------------------------------

_PLACES = st.floats(-20, 20, width=32)
_FEATURES = 4


@pytest.fixture(scope="module")
def linear(tmp_path_factory) -> functional.Model:
  return problems.make("linear", str(tmp_path_factory.mktemp("linear"))).model


@st.composite
def _data_sets(draw):
  """Examples (x, y), and one more."""
  size = draw(st.integers(2, 5))
  x = hypothesis_numpy.arrays(np.float32, (size + 1, _FEATURES), elements=_PLACES)
  y = hypothesis_numpy.arrays(np.float32, (size + 1,), elements=_PLACES)
  x, y = draw(x), draw(y)
  return (x[:-1], y[:-1]), (x[-1], y[-1])


def _replace_last(examples, other):
  return tuple(np.concatenate([v[:-1], o[None]]) for v, o in zip(examples, other))


def _without_last(examples):
  return tuple(v[:-1] for v in examples)


def _assert_sensitivity(sum_of, data, bound):
  """Replacing an example moves the sum by at most 2 bounds, removing it by one."""
  examples, other = data
  here = sum_of(*examples)
  # The sums of at most 5 numbers of at most `bound`, in float32.
  rounding = 1e-5 * bound
  replaced = replay.subtract(sum_of(*_replace_last(examples, other)), here)
  assert replay.norm(replaced) <= 2 * bound + rounding
  removed = replay.subtract(sum_of(*_without_last(examples)), here)
  assert replay.norm(removed) <= bound + rounding
  return replay.norm(removed)


@settings(max_examples=40, deadline=None)
@given(_data_sets(), st.floats(0.01, 10))
def test_one_example_moves_the_sum_of_gradients_by_at_most_c(linear, data, clip_norm):
  def sum_of(x, y):
    found, _ = _private_gradient(linear, _private(clip_norm), x, y)
    return [len(y) * g.numpy().astype(np.float64) for g in found]

  _assert_sensitivity(sum_of, data, clip_norm)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(_data_sets(), st.floats(0.01, 10))
def test_one_example_moves_the_sum_of_squared_gradients_by_at_most_c_squared(
  linear, data, clip_norm
):
  """FedCurv's Fisher information, whose noise is sigma C^2."""
  hparams = dp_sgd.FedCurvDpSgdHparams(clip_norm=clip_norm, noise_multiplier=0.0)
  weights = tuple(map(tf.constant, linear.initial_weights))

  def sum_of(x, y):
    examples = Examples(tf.constant(x), tf.constant(y))
    found = dp_sgd_step.private_fisher_information(
      linear, hparams, weights, examples, _SEED
    )
    return [len(y) * f.numpy().astype(np.float64) for f in found]

  _assert_sensitivity(sum_of, data, clip_norm**2)


def test_the_bound_is_reached(linear):
  """An example with a long gradient moves the sum by C itself."""
  x, y = np.full((3, _FEATURES), 9, np.float32), np.full(3, -90, np.float32)

  def sum_of(x, y):
    found, _ = _private_gradient(linear, _private(0.5), x, y)
    return [len(y) * g.numpy().astype(np.float64) for g in found]

  moved = _assert_sensitivity(sum_of, ((x, y), (-x[0], y[0])), 0.5)
  assert moved == pytest.approx(0.5, rel=1e-5)


def test_loss_of_a_batch_is_at_most_1e9():
  model = functional.Model(
    initial_weights=(np.zeros((2, 3), np.float32),),
    weight_names=("w",),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=lambda w, x, training, seed: tf.matmul(x, w[0]),
    example_losses=lambda y, p: 1e12 + tf.reduce_sum(p, axis=1),
  )
  batch = local_training.Batch(
    tf.range(2), tf.ones([2, 2]), tf.zeros([2], tf.int32), tf.constant([3, 4])
  )
  weights = tuple(map(tf.constant, model.initial_weights))
  hparams = dp_sgd.FedAvgDpSgdHparams()
  _, loss = dp_sgd_step.private_gradient(model, hparams, weights, batch)
  assert float(loss) == 1e9
