"""Fisher information against NumPy's gradient of each example by itself."""

from __future__ import annotations

import dataclasses
import threading
from concurrent import futures

import numpy as np
import problems
import pytest
import replay
import tensorflow as tf

from tff_algos import client_data
from tff_algos.algorithms import fed_reg
from tff_algos.client_data import ClientInput
from tff_algos.diagnostics import fisher


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
  return problems.make("softmax", str(tmp_path_factory.mktemp("softmax")))


def _mean_of_squares(gradients):
  vectors = [np.concatenate([part.ravel() for part in g]) for g in gradients]
  return np.mean(np.square(vectors), axis=0)


def test_of_clients_is_the_mean_over_all_their_examples(problem):
  weights = replay.as_weights(problem.model.initial_weights)
  clients = (1, 2)  # Of 9 and of 3 examples.
  expected = _mean_of_squares(
    gradient
    for client in clients
    for gradient in replay.example_gradients(
      problem.numpy_model, weights, *problem.numpy_examples(client)
    )
  )
  paths = [problem.directory.path(str(client)) for client in clients]
  start = tuple(map(tf.constant, problem.model.initial_weights))
  found = fisher.build_fisher(problem.model)(start, paths)
  assert found.dtype == np.float64 and found.shape == (problem.model.num_weights,)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


def test_of_pseudo_data_is_taken_after_one_step_with_soft_labels(in_process, problem):
  """One local step starts at the received model, whatever gamma is."""
  step, length, client = 0.2, 0.01, 1
  # Perturbed data are the examples themselves, and pseudo data lie 2 steps away.
  hparams = fed_reg.FedRegHparams(
    learning_rate=step,
    pseudo_step=length,
    perturbation_ratio=0.0,
    pseudo_steps=2,
    clip_range="none",
    epochs=7,
    batch_size=2,
  )
  seed = problems.client_seed(0, 0, client)
  client_input = ClientInput(problem.directory.path(str(client)), seed)
  compute = fisher.build_pseudo_fisher(problem.model, hparams)
  found = compute(problem.model.initial_weights, client_input)

  model, (x, y) = problem.numpy_model, problem.numpy_examples(client)
  w = replay.as_weights(problem.model.initial_weights)
  moved = x
  for _ in range(2):
    moved = moved + length * np.sign(model.input_gradient(w, moved, y))
  targets = model.targets(w, moved)
  # At the local model that the program found: that it is one step away comes below.
  local = replay.as_weights(found.weights)
  expected = _mean_of_squares(
    model.soft_loss_and_gradient(local, moved[e : e + 1], targets[e : e + 1])[1]
    for e in range(len(y))
  )
  np.testing.assert_allclose(found.fisher, expected, rtol=1e-3, atol=1e-8)

  gradient = model.loss_and_gradient(w, x, y)[1]
  after = [a - step * g for a, g in zip(w, gradient)]
  middle = [(a + b) / 2 for a, b in zip(w, after)]
  g_s = model.soft_loss_and_gradient(middle, moved, targets)[1]
  g_p = model.loss_and_gradient(middle, x, y)[1]
  flat = [np.concatenate([v.ravel() for v in g]) for g in (after, w, g_s, g_p)]
  drift = flat[0] - flat[1]
  w_s = max(drift @ flat[2] / (flat[2] @ flat[2]), 0)
  w_p = max((drift - w_s * flat[2]) @ flat[3] / (flat[3] @ flat[3]), 0)
  wanted = flat[0] - w_s * flat[2] - w_p * flat[3]
  found_flat = np.concatenate([v.ravel() for v in local])
  np.testing.assert_allclose(found_flat, wanted, rtol=1e-4, atol=1e-6)


def test_pseudo_data_are_as_the_network_takes_them(in_process, problem, tmp_path):
  """They are made behind the preprocessing, which is not done to them once more."""
  plain = problem.model
  x, y = problem.directory.examples("1", plain.example_spec)
  clients = {"half": (x // 2, y), "whole": (x // 2 * 2, y)}
  folder = client_data.write_clients(tmp_path, clients, plain.example_spec)
  halving = dataclasses.replace(plain, preprocess=lambda x: plain.preprocess(x) / 2)
  hparams = fed_reg.FedRegHparams(clip_range="none")
  found = [
    fisher.build_pseudo_fisher(model, hparams)(
      model.initial_weights,
      ClientInput(folder.path(client), problems.client_seed(0, 0, 1)),
    ).fisher
    for model, client in ((halving, "whole"), (plain, "half"))
  ]
  np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-10)


def test_pseudo_data_must_be_made(problem):
  with pytest.raises(ValueError, match="pseudo_steps=0"):
    fisher.build_pseudo_fisher(problem.model, fed_reg.FedRegHparams(pseudo_steps=0))


def test_correlation_by_hand():
  a = np.array([1.0, 2.0, 4.0, 5.0])
  assert fisher.correlation(a, a) == pytest.approx(1)
  assert fisher.correlation(a, 3 - 2 * a) == pytest.approx(-1)
  # Deviations (-2, -1, 1, 2) and (-1, 1, 1, -1): their product is 0.
  assert fisher.correlation(a, np.array([0.0, 2.0, 2.0, 0.0])) == pytest.approx(0)
  # (-2, -1, 1, 2) and (-1, 1, -1, 1): 2 - 1 - 1 + 2 = 2, over sqrt(10 * 4).
  assert fisher.correlation(a, np.array([0.0, 2, 0, 2])) == pytest.approx(2 / 40**0.5)
  assert np.isnan(fisher.correlation(a, np.ones(4)))
  # The mean of three tenths in float64 is not a tenth.
  assert np.isnan(fisher.correlation(np.full(3, 0.1), a[:3]))


@pytest.mark.thorough
def test_threads_find_what_they_call_traced(in_process, problem):
  callers = []

  def predict(*arguments):
    callers.append(threading.current_thread())
    return problem.model.predict(*arguments)

  model = dataclasses.replace(problem.model, predict=predict)
  of_clients = fisher.build_fisher(model)
  of_pseudo_data = fisher.build_pseudo_fisher(model, fed_reg.FedRegHparams())
  path = problem.directory.path("1")
  client_input = ClientInput(path, problems.client_seed(0, 0, 1))
  start = model.initial_weights

  def call(_):
    of_clients(start, [path])
    of_pseudo_data(start, client_input)

  with futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(call, range(4)))
  assert set(callers) == {threading.current_thread()}
