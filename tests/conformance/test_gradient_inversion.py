"""What the attack sees of the algorithms: their uploads of one step, differentiated.

Softmax regression from weights (W, b) on one example: the gradient is x (p - e_y)^T and
p - e_y.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.algorithms import registry
from tff_algos.client_data import Examples
from tff_algos.models import functional
from tff_algos.privacy import gradient_inversion

_RATE, _CLASSES, _LABEL = 0.5, 3, 1
_RNG = np.random.default_rng(1)
_PICTURE = _RNG.uniform(0.1, 0.9, size=(4, 4, 1)).astype(np.float32)
_WEIGHTS = _RNG.normal(size=(16, _CLASSES)), _RNG.normal(size=_CLASSES)
_SEED = tf.constant([5, 6])


@pytest.fixture(scope="module")
def upload_of(in_process):
  """`(algorithm) -> upload`, compiled; the private ones without noise, but clipped."""
  model = functional.Model(
    initial_weights=tuple(w.astype(np.float32) for w in _WEIGHTS),
    weight_names=("w", "b"),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([4, 4, 1], tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=lambda w, x, training, seed: tf.matmul(tf.reshape(x, [-1, 16]), w[0]) + w[1],
  )
  made = {}

  def get(name):
    if name not in made:
      row = registry.get(name)
      cls = row.hparams_class
      given = dict(epochs=1, batch_size=1, learning_rate=_RATE, noise_multiplier=0.0)
      given.update(clip_norm=0.3, pseudo_step=0.01, pseudo_steps=2)
      hparams = cls(**{k: v for k, v in given.items() if hasattr(cls, k)})
      process = row.build(model, hparams, num_clients=4, num_examples=10)
      state, client_state = process.initialize(), process.initialize_client()
      made[name] = tf.function(
        gradient_inversion.upload_of(process, state.variables, client_state)
      )
    return made[name]

  return get


def _examples(picture=_PICTURE):
  return Examples(tf.constant(picture[None]), tf.constant([_LABEL]))


def _gradient():
  x, (w, b) = _PICTURE.ravel().astype(np.float64), _WEIGHTS
  p = np.exp(x @ w + b)
  error = p / p.sum() - np.eye(_CLASSES)[_LABEL]
  return [np.outer(x, error), error]


def _norm(arrays):
  return np.sqrt(sum(np.sum(np.square(a)) for a in arrays))


# The change of the model, or for SGD the gradient, of which the server takes the step.
_SCALES = {"fedavg": -_RATE, "fedprox": -_RATE, "fedcurv": -_RATE, "sgd": 1.0}


@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=pytest.mark.thorough) if n == "fedcurv" else n for n in _SCALES],
)
def test_baselines_upload_the_gradient_of_one_step(upload_of, name):
  found = upload_of(name)(_examples(), _SEED)
  for a, gradient in zip(found, _gradient()):
    np.testing.assert_allclose(a, _SCALES[name] * gradient, rtol=1e-4, atol=1e-6)


def test_private_upload_is_the_clipped_gradient_of_one_step(upload_of):
  found = upload_of("fedcurv_dpsgd")(_examples(), _SEED)
  gradient = _gradient()
  assert _norm(gradient) > 0.3
  for a, g in zip(found, gradient):
    np.testing.assert_allclose(
      a, -_RATE * 0.3 / _norm(gradient) * g, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name, reveals", [("fedavg", True), ("fedreg_mg", False)])
def test_modified_gradients_change_what_the_upload_gives_away(upload_of, name, reveals):
  weights, biases = (v.numpy() for v in upload_of(name)(_examples(), _SEED))
  picture = (weights[:, _LABEL] / biases[_LABEL]).reshape(_PICTURE.shape)
  assert (gradient_inversion.psnr(picture, _PICTURE) > 60) == reveals


@pytest.mark.parametrize(
  "name",
  [
    "fedprox",
    *(
      pytest.param(n, marks=pytest.mark.thorough) for n in ("fedcurv_dpsgd", "fedreg_mg")
    ),
  ],
)
def test_uploads_are_differentiated_through_the_local_step(upload_of, name):
  upload = upload_of(name)
  goal = tuple(tf.constant(_RNG.normal(size=w.shape), tf.float32) for w in _WEIGHTS)

  @tf.function
  def distance(x):
    examples = Examples(x, tf.constant([_LABEL]))
    return gradient_inversion.distance("l2", upload(examples, _SEED), goal)

  x = tf.constant(_PICTURE[None])
  with tf.GradientTape() as tape:
    tape.watch(x)
    value = distance(x)
  gradient = tape.gradient(value, x)
  way = _RNG.normal(size=x.shape).astype(np.float32)
  far = 1e-3 * way
  slope = (float(distance(x + far)) - float(distance(x - far))) / 2e-3
  assert abs(slope) > 1e-2
  assert float(tf.reduce_sum(gradient * way)) == pytest.approx(slope, rel=2e-2)


def test_algorithms_that_send_other_parts_in_other_rounds_are_refused(upload_of):
  with pytest.raises(ValueError, match="the same parts in every round"):
    upload_of("twafl")
