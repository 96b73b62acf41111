"""A Keras model under "mixed_bfloat16" learns as under "float32", but for rounding."""

from __future__ import annotations

import driver
import numpy as np
import pytest
import tensorflow as tf
from replays import SEED

from tff_algos.algorithms import registry
from tff_algos.models import keras

# As a part of what was learned: bfloat16 has eight binary digits. Pseudo data go by the
# signs of gradients, and a Gaussian process by small differences of outputs.
_ROUNDING = 2**-6
_ROUNDINGS = {"fedreg": 2**-3, "fedreg_mg": 2**-3, "pfedgp": 2**-2}


def _learned(problem, name, policy):
  layers = tf.keras.layers
  keras_model = tf.keras.Sequential(
    [
      layers.Input((4,)),
      layers.Dense(5, "tanh", dtype=policy),
      layers.Dense(3, dtype=policy),
    ]
  )
  keras.reinitialize(keras_model, 3)
  model = keras.from_keras(keras_model, problem.model.example_spec)
  problem = problem._replace(model=model)
  hparams = driver.hparams_of(name)
  federation = driver.Federation(
    driver.build(name, problem, hparams), problem, hparams, SEED
  )
  for clients in ((0, 1), (1, 2, 3)):
    federation.round(clients)
  start = np.concatenate([w.ravel() for w in model.initial_weights])
  return np.concatenate([w.ravel() for w in federation.weights]) - start


@pytest.mark.parametrize(
  "name",
  [
    name
    if name in ("fedavg", "fedavg_dpsgd")
    else pytest.param(name, marks=pytest.mark.thorough)
    for name in registry.ALGORITHMS
  ],
)
def test_learns_as_in_float32(problem_of, name):
  problem = problem_of("mlp")
  whole = _learned(problem, name, "float32")
  half = _learned(problem, name, "mixed_bfloat16")
  assert half.dtype == np.float32
  apart = np.linalg.norm(half - whole) / np.linalg.norm(whole)
  assert 0 < apart < _ROUNDINGS.get(name, _ROUNDING)
