"""Losses before and after local training, against softmax regression in NumPy."""

from __future__ import annotations

import threading
import types
from collections import OrderedDict

import numpy as np
import problems
import pytest
import replay
import tensorflow as tf

from tff_algos import client_data
from tff_algos.algorithms import (
  fed_agg,
  fed_avg,
  fed_avg_m,
  fed_curv,
  fed_reg,
  fed_sgd,
)
from tff_algos.client_data import ClientInput
from tff_algos.diagnostics import forgetting
from tff_algos.templates import composer
from tff_algos.templates.rounds import Round, ServerVariables

_STEP = 0.3


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
  return problems.make("softmax", str(tmp_path_factory.mktemp("softmax")))


@pytest.fixture(scope="module")
def start(problem):
  return tuple(map(tf.constant, problem.model.initial_weights))


def _inputs(problem, clients):
  directory = problem.directory
  return [
    ClientInput(directory.path(str(c)), problems.client_seed(0, 0, c)) for c in clients
  ]


def _one_step(problem, weights, client):
  """A local model after one step on all of a client's examples."""
  w = replay.as_weights(weights)
  gradient = problem.numpy_model.loss_and_gradient(w, *problem.numpy_examples(client))[1]
  return [a - _STEP * g for a, g in zip(w, gradient)]


def _loss(problem, weights, client):
  return problem.numpy_model.loss_and_gradient(weights, *problem.numpy_examples(client))[
    0
  ]


def test_is_the_difference_of_the_mean_losses(in_process, problem, start):
  hparams = fed_avg.FedAvgHparams(batch_size=None, learning_rate=_STEP)
  process = fed_avg.build_fed_avg(problem.model, hparams)
  train = forgetting.build_local_models(problem.model, process)
  local = train(ServerVariables(start, ()), [()] * 3, _inputs(problem, [1, 3, 4]))
  expected = [_one_step(problem, start, j) for j in (1, 3, 4)]
  for found, wanted in zip(local, expected):
    for a, b in zip(found, wanted):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

  examples = [problem.clients[i] for i in (0, 1)]
  found = forgetting.build_forgetting(problem.model)(start, local, examples)
  w = replay.as_weights(start)
  before = [_loss(problem, w, i) for i in (0, 1)]
  after = [np.mean([_loss(problem, v, i) for v in expected]) for i in (0, 1)]
  np.testing.assert_allclose(found.before, before, rtol=1e-5)
  np.testing.assert_allclose(found.after, after, rtol=1e-5)
  increase = np.subtract(after, before)
  assert np.abs(increase).min() > 1e-3
  np.testing.assert_allclose(found.increase, increase, rtol=1e-3)


def test_nothing_is_forgotten_where_nothing_is_learned(in_process, problem, start):
  # The smallest step size allowed: no weight changes.
  hparams = fed_avg.FedAvgHparams(learning_rate=1e-30)
  process = fed_avg.build_fed_avg(problem.model, hparams)
  train = forgetting.build_local_models(problem.model, process)
  local = train(ServerVariables(start, ()), [()] * 2, _inputs(problem, [0, 2]))
  examples = [problem.clients[i] for i in (1, 3)]
  found = forgetting.build_forgetting(problem.model)(start, local, examples)
  np.testing.assert_array_equal(found.increase, 0)
  assert (found.before > 0).all()


def test_local_models_are_those_of_the_clients_own_states(in_process, problem, start):
  """FedCurv at the next client's curvature F: a pull 2 lambda (F w - v) is added."""
  hparams = fed_curv.FedCurvHparams(batch_size=None, learning_rate=_STEP, curvature=0.5)
  process = fed_curv.build_fed_curv(problem.model, hparams)
  train = forgetting.build_local_models(problem.model, process)
  ones = tuple(np.ones(w.shape, np.float32) for w in start)
  extra = process.initialize().variables.extra
  extra = extra._replace(fisher=ones, round_num=np.int32(1))
  new = process.initialize_client()
  # Its own part of the sum is all of it, so that nobody else's is left.
  known = new._replace(fisher=ones, round_num=np.int32(1))
  local = train(ServerVariables(start, extra), [new, known], _inputs(problem, [3, 3]))
  plain = _one_step(problem, start, 3)
  pulled = [w - _STEP * 2 * 0.5 * np.asarray(x) for w, x in zip(plain, start)]
  for found, wanted in zip(local, (pulled, plain)):
    for a, b in zip(found, wanted):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_local_models_are_from_where_clients_start(in_process, problem, start):
  """Those of Nesterov's FedAvgM start ahead of the server's model, by its velocity."""
  hparams = fed_avg_m.FedAvgMHparams(
    batch_size=None, learning_rate=_STEP, server_momentum_form="nesterov"
  )
  process = fed_avg_m.build_fed_avg_m(problem.model, hparams)
  train = forgetting.build_local_models(problem.model, process)
  velocity = tuple(np.full(w.shape, 0.5, np.float32) for w in start)
  (found,) = train(ServerVariables(start, velocity), [()], _inputs(problem, [2]))
  ahead = [x + v for x, v in zip(start, velocity)]
  for a, b in zip(found, _one_step(problem, ahead, 2)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_local_models_are_what_was_trained_whatever_of_it_is_sent(
  in_process, problem, start
):
  hparams = fed_avg.FedAvgHparams(batch_size=None, learning_rate=_STEP)
  client_update = fed_avg.train_from_model(problem.model)

  def scaled(*given):
    result = client_update(*given)
    sent = OrderedDict(model=tuple(1e-3 * v for v in result.message["model"]))
    return result._replace(message=sent)

  process = composer.compose_process(
    problem.model,
    hparams,
    rounds=Round(scaled, fed_avg.move_by_mean),
    aggregators={"model": None},
  )
  train = forgetting.build_local_models(problem.model, process)
  (found,) = train(ServerVariables(start, ()), [()], _inputs(problem, [2]))
  for a, b in zip(found, _one_step(problem, start, 2)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", [fed_agg.build_fed_agg, fed_reg.build_fed_reg])
def test_local_models_are_those_after_all_epochs(in_process, problem, build):
  """FedAgg trains an epoch at a time; what both send is the model's change."""
  process = build(problem.model)
  train = forgetting.build_local_models(problem.model, process)
  state, [given] = process.initialize(), _inputs(problem, [2])
  (found,) = train(state.variables, [process.initialize_client()], [given])
  examples = client_data.read(tf.constant(given.path), problem.model.example_spec)
  sent = process.client_work(
    tf.nest.map_structure(tf.convert_to_tensor, state.variables),
    (),
    examples,
    tf.constant(given.seed),
  ).message["model"]
  assert max(float(tf.reduce_max(tf.abs(v))) for v in sent) > 1e-2
  for a, x, change in zip(found, state.variables.model, sent):
    np.testing.assert_allclose(a, x + change, rtol=1e-5, atol=1e-6)


def test_clients_that_send_a_gradient_have_no_local_models(in_process, problem):
  process = fed_sgd.build_fed_sgd(problem.model)
  with pytest.raises(ValueError, match="whose clients train by "):
    forgetting.build_local_models(problem.model, process)


def test_algorithms_whose_client_work_is_not_known_are_refused(problem):
  process = types.SimpleNamespace(client_work=None)
  with pytest.raises(ValueError, match="send their whole model"):
    forgetting.build_local_models(problem.model, process)


def test_threads_find_what_they_call_traced(in_process, problem, start):
  process = fed_curv.build_fed_curv(problem.model)
  work, callers = process.client_work, []

  def watch(*arguments):
    callers.append(threading.current_thread())
    return work(*arguments)

  watched = types.SimpleNamespace(
    client_work=watch,
    composed_of=process.composed_of,
    initialize=process.initialize,
    initialize_client=process.initialize_client,
  )
  train = forgetting.build_local_models(problem.model, watched)
  state = process.initialize()
  own = [process.initialize_client()] * 5
  assert len(train(state.variables, own, _inputs(problem, range(5)))) == 5
  train(state.variables, own, _inputs(problem, range(5)))
  assert set(callers) == {threading.current_thread()}
