"""Small learning problems: each as a model of the library and as a NumPy model.

Five clients of unequal sizes. `ROUNDS` are the cohorts of a run: clients go and come
back, their order changes, and client 4 never takes part.
"""

from __future__ import annotations

import pathlib
from collections import OrderedDict
from typing import Any, NamedTuple, Optional

import numpy as np
import replay
import tensorflow as tf

from tff_algos import client_data
from tff_algos.client_work import local_training
from tff_algos.models import functional

SIZES = (5, 9, 3, 7, 6)
NUM_CLIENTS = len(SIZES)
ROUNDS = ((0, 1), (1, 2, 3), (3, 0), (2, 0, 1, 3))

# The last batch of an epoch is short for 0, 1 and 3; client 2 has less than a batch.
LOCAL = dict(epochs=2, batch_size=4, learning_rate=0.1)

# Steps of FedReg's pseudo data, each of which is traced.
PSEUDO = dict(pseudo_steps=4)

# Kinds of rounds in turn, for algorithms that have several.
SCHEDULE = dict(rounds_in_loop=2, freq=1)

POISONS = ("nan", "inf")


class Problem(NamedTuple):
  """A model in two forms and its clients' data.

  Attributes:
    model: The library's model.
    numpy_model: The same model of `replay`; None where there is none.
    clients: Client to its stored examples (x, y).
    directory: The same on disk, and for float inputs also a client "nan" and a client
      "inf", each with one input that is not finite; for float labels a client "long",
      whose labels, a thousand times client 1's, make a long update.
  """

  model: functional.Model
  numpy_model: Any
  clients: dict
  directory: client_data.ClientDirectory

  def numpy_examples(self, client: int):
    """The client's examples as the model takes them, x in float64."""
    x, y = self.clients[client]
    scale = 255 if x.dtype == np.uint8 else 1
    return x.astype(np.float64).reshape(len(x), -1) / scale, y

  def cohort(self, clients, seed: int, round_num: int, hparams):
    """What `replay.Algorithm.round` takes; the batches are in the library's order."""
    return [
      (
        client,
        self.numpy_examples(client),
        batches(client_seed(seed, round_num, client), SIZES[client], hparams),
      )
      for client in clients
    ]


def client_seed(seed: int, round_num: int, client: int) -> np.ndarray:
  return np.array([1000 * seed + round_num, client], np.int32)


def batches(seed: np.ndarray, num_examples: int, hparams) -> list:
  """The rows of each local step; none for an algorithm without mini-batches."""
  if not hasattr(hparams, "batch_size"):
    return []
  order = local_training.batch_order(
    tf.constant(seed), tf.constant(num_examples), hparams.epochs
  )
  size = hparams.batch_size or num_examples
  return [
    epoch[k : k + size] for epoch in order.numpy() for k in range(0, num_examples, size)
  ]


def half_squared(targets, predictions):
  return 0.5 * tf.reduce_sum(tf.square(predictions - targets), axis=-1)


def half_squared_error(y, predictions):
  return 0.5 * tf.square(predictions[:, 0] - y)


def _model(weights, x_spec, y_dtype, predict, **options) -> functional.Model:
  return functional.Model(
    initial_weights=tuple(w.astype(np.float32) for w in weights),
    weight_names=tuple(f"w{k}" for k in range(len(weights))),
    example_spec=functional.ExampleSpec(x_spec, tf.TensorSpec([], y_dtype)),
    predict=predict,
    **options,
  )


def _random_weights(numpy_model) -> list:
  rng = np.random.default_rng(7)
  return [0.5 * rng.normal(size=w.shape) for w in numpy_model.initial()]


# Inputs that have this added are disturbed in training; all others are below its half.
_NOISY = 64.0


def _float_inputs(rng, num_examples: int, noisy: bool) -> np.ndarray:
  x = rng.normal(size=(num_examples, 4)) + 0.5 * rng.normal(size=4)
  # Without the digits that the sum has no place for.
  x = np.round(x * 2**16) / 2**16
  return (x + (_NOISY if noisy else 0)).astype(np.float32)


def _labels(rng, num_examples: int, dtype) -> np.ndarray:
  return rng.integers(0, 3, num_examples).astype(dtype)


def _disturbed(x, training, seed):
  """The inputs as they are, and with noise where they are noisy and it is training."""
  is_noisy = x > _NOISY / 2
  x = tf.where(is_noisy, x - _NOISY, x)
  if training:
    noise = 0.3 * tf.random.stateless_normal(tf.shape(x), seed)
    x = tf.where(is_noisy, x + noise, x)
  return x


def _linear(noisy: bool = False):
  """The quadratic: linear regression, float labels; noisy: the inputs are disturbed."""
  numpy_model = replay.LinearRegression(4)

  def predict(weights, x, training, seed):
    return tf.matmul(_disturbed(x, training, seed), weights[0]) + weights[1]

  model = _model(
    _random_weights(numpy_model),
    tf.TensorSpec([4], tf.float32),
    tf.float32,
    predict,
    example_losses=half_squared_error,
    soft_targets=functional.SoftTargets(lambda predictions: predictions, half_squared),
    metrics=OrderedDict(),
  )
  clients = {}
  for client, n in enumerate(SIZES):
    rng = np.random.default_rng(client)
    x = _float_inputs(rng, n, noisy)
    clients[client] = x, rng.normal(size=n).astype(np.float32)
  return model, None if noisy else numpy_model, clients


def _softmax():
  """Softmax regression on uint8 pictures of 2 x 3, scaled to 0..1 by the model."""
  numpy_model = replay.SoftmaxRegression(6, 3)

  def predict(weights, x, training, seed):
    del training, seed
    return tf.matmul(tf.reshape(x, [-1, 6]), weights[0]) + weights[1]

  spec = tf.TensorSpec([2, 3], tf.uint8)
  model = _model(_random_weights(numpy_model), spec, tf.int32, predict)
  clients = {}
  for client, n in enumerate(SIZES):
    rng = np.random.default_rng(10 + client)
    x = rng.integers(0, 256, (n, 2, 3)).astype(np.uint8)
    clients[client] = x, _labels(rng, n, np.int32)
  return model, numpy_model, clients


def _mlp(noisy: bool = False):
  """One hidden tanh layer; noisy: the inputs are disturbed."""
  numpy_model = replay.Mlp(4, 5, 3)

  def predict(weights, x, training, seed):
    w1, b1, w2, b2 = weights
    hidden = tf.tanh(tf.matmul(_disturbed(x, training, seed), w1) + b1)
    return tf.matmul(hidden, w2) + b2

  spec = tf.TensorSpec([4], tf.float32)
  model = _model(_random_weights(numpy_model), spec, tf.int64, predict)
  clients = {}
  for client, n in enumerate(SIZES):
    rng = np.random.default_rng(20 + client)
    clients[client] = _float_inputs(rng, n, noisy), _labels(rng, n, np.int64)
  return model, None if noisy else numpy_model, clients


_MAKERS = {
  "linear": _linear,
  "softmax": _softmax,
  "mlp": _mlp,
  "noisy": lambda: _linear(noisy=True),
  "noisy_mlp": lambda: _mlp(noisy=True),
}

REPLAYED = ("linear", "softmax", "mlp")

# Problems that have the model of another one: a process of it is a process of theirs.
MODEL_OF = {"noisy": "linear", "noisy_mlp": "mlp"}

# What takes the place of a quadratic for an algorithm whose labels must be classes.
OF_CLASSES = {"linear": "mlp", "noisy": "noisy_mlp"}


def make(name: str, folder: str) -> Problem:
  """Makes a problem and writes its clients into `folder`."""
  model, numpy_model, clients = _MAKERS[name]()
  on_disk = {str(client): examples for client, examples in clients.items()}
  x, y = clients[1]
  poisons = POISONS if x.dtype == np.float32 else ()
  on_disk.update((poison, (x, y)) for poison in poisons)
  if y.dtype == np.float32:
    on_disk["long"] = x, 1000 * y
  directory = client_data.write_clients(folder, on_disk, model.example_spec)
  for poison in poisons:  # Which is not written.
    spoilt = x.copy()
    spoilt[-1, 0] = float(poison)
    path = pathlib.Path(directory.path(poison))
    path.write_bytes(path.read_bytes().replace(x.tobytes(), spoilt.tobytes()))
  return Problem(model, numpy_model, clients, directory)


def pooled(problem: Problem, clients, weights: Optional[list] = None):
  """All examples of some clients together, in float64; with weights: loss, gradient."""
  examples = [problem.numpy_examples(client) for client in clients]
  x, y = (np.concatenate(arrays) for arrays in zip(*examples))
  return problem.numpy_model.loss_and_gradient(weights, x, y) if weights else (x, y)
