"""FedReg's pseudo data of a client with more examples than are made at once."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import pseudo_data


def _made(model, x, y):
  return pseudo_data.make_pseudo_data(
    model,
    tuple(map(tf.constant, model.initial_weights)),
    Examples(tf.constant(x), tf.constant(y)),
    tf.constant([1, 2]),
    pseudo_step=tf.constant(0.01),
    perturbed_step=tf.constant(0.001),
    num_steps=2,
    limits=None,
  )


def test_pseudo_data_of_many_examples_are_those_of_each(problem_of):
  problem, rng = problem_of("mlp"), np.random.default_rng(0)
  x, y = rng.normal(size=(600, 4)).astype(np.float32), rng.integers(0, 3, 600)
  whole = _made(problem.model, x, y)
  for rows in (slice(0, 200), slice(200, 400), slice(400, 600)):
    for ours, part in zip(whole, _made(problem.model, x[rows], y[rows])):
      np.testing.assert_allclose(ours[rows], part, rtol=1e-6, atol=1e-6)


def test_pseudo_data_are_made_in_inference_mode(problem_of):
  quiet, noisy = problem_of("mlp"), problem_of("noisy_mlp")
  ours = _made(quiet.model, *quiet.clients[1])
  theirs = _made(noisy.model, *noisy.clients[1])
  np.testing.assert_allclose(ours.targets, theirs.targets, atol=1e-4)
