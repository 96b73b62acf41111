"""What a run is prepared with, and the model that is taken of its checkpoint."""

from __future__ import annotations

import os
import types

import numpy as np
import problems
import pytest

from experiments import preparation
from experiments.config import make_config
from experiments.run_folder.folder import CHECKPOINTS
from tasks import registry as tasks_registry
from tff_algos.algorithms import fed_avg
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputError, InputWarning
from tff_algos.hyper_parameters import HyperParameters
from tff_algos.simulation import loop
from tff_algos.simulation.client_evaluation import Personalization

# --- Steps that clients take for themselves -----------------------------------------

_DIGITS = tasks_registry.get("digits_cnn")


@pytest.fixture
def steps_of(monkeypatch):
  """`(algorithm, task's hparams, given hparams, steps) -> Personalization`."""
  model = types.SimpleNamespace(metrics=("accuracy",))
  loaded = types.SimpleNamespace(model=model, clients=range(_DIGITS.num_clients))
  monkeypatch.setattr(preparation, "load", lambda config: loaded)
  monkeypatch.setattr(preparation, "build", lambda *arguments: None)

  def get(algorithm, of_task, given, steps=7):
    row = _DIGITS._replace(name="stepping", hparams=of_task)
    monkeypatch.setitem(tasks_registry.TASKS, "stepping", row)
    options = dict(eval_clients_every=2, personalize_steps=steps, seed=3)
    config = make_config(algorithm, "stepping", hparams=given, **options)
    return preparation.prepare(config).personalization

  return get


@pytest.mark.parametrize(
  "metrics, given, expected",
  [
    (["accuracy"], dict(patience=3), ("accuracy", None, 3)),
    (["off"], dict(patience=3), ("loss", None, 3)),
    ([], dict(patience=3), ("loss", None, 3)),
    (["off"], dict(patience=3, stop_at="-off:0.5"), ("-off", 0.5, 3)),
    (["accuracy"], dict(stop_at="loss:0.5"), ("loss", 0.5, None)),
  ],
)
def test_patience_alone_is_by_accuracy_or_the_loss(monkeypatch, metrics, given, expected):
  model = types.SimpleNamespace(metrics=metrics)
  loaded = types.SimpleNamespace(model=model, clients=range(_DIGITS.num_clients))
  monkeypatch.setattr(preparation, "load", lambda config: loaded)
  monkeypatch.setattr(preparation, "build", lambda *arguments: None)
  row = _DIGITS._replace(name="measured", target_accuracy=None)
  monkeypatch.setitem(tasks_registry.TASKS, "measured", row)
  config = make_config("fedavg", "measured", **given)
  rule = preparation.prepare(config).settings.stop
  assert (rule.metric, rule.target, rule.patience) == expected


_OF_TASK = dict(epochs=5, batch_size=6, learning_rate=0.05, momentum=0.0)


@pytest.mark.parametrize(
  "algorithm, of_task, given, rate, size",
  [
    ("fedavg", _OF_TASK, {}, 0.05, 6),
    ("fedavg", _OF_TASK, dict(learning_rate=0.3), 0.3, 6),
    ("fedavg", _OF_TASK, dict(batch_size=4), 0.05, 4),
    ("fedavg", _OF_TASK, dict(batch_size=None), 0.05, None),  # All of the half.
    ("fedavg", {}, {}, 0.1, 10),  # Its own defaults.
    # It has no batches: those of the task.
    ("fedsgd", _OF_TASK, dict(learning_rate=0.3), 0.3, 6),
    ("fedsgd", {}, {}, 0.1, None),
  ],
)
def test_clients_step_by_what_is_given_then_the_tasks_then_the_algorithms(
  steps_of, algorithm, of_task, given, rate, size
):
  expected = Personalization(7, rate, batch_size=size, seed=3)
  assert steps_of(algorithm, of_task, given) == expected


def test_a_tasks_hyper_parameter_that_no_algorithm_has_is_warned_of(steps_of):
  said = "hyper-parameter 'lr' is left out, as neither fedavg nor any"
  with pytest.warns(InputWarning, match=said) as warned:
    steps_of("fedavg", dict(**_OF_TASK, lr=0.9, mu=1.0), {})
  [_] = [w for w in warned if w.category is InputWarning]  # mu is FedProx's.


def test_clients_take_no_steps_unless_asked_to(steps_of):
  assert steps_of("fedavg", _OF_TASK, {}, steps=0) is None


def test_steps_without_a_learning_rate_are_refused(steps_of, monkeypatch):
  """The task's will do for an algorithm without one."""
  row = algorithms_registry.get("fedavg")._replace(hparams_class=HyperParameters)
  monkeypatch.setitem(algorithms_registry.ALGORITHMS, "rateless", row)
  assert steps_of("rateless", _OF_TASK, {}).learning_rate == 0.05
  with pytest.raises(InputError, match="neither rateless nor stepping has one"):
    steps_of("rateless", {}, {})


# --- The task and the cohort --------------------------------------------------------


def test_task_is_loaded_by_the_runs_settings_each_in_its_place(monkeypatch):
  """The split's seed is one, the initial weights' another."""
  monkeypatch.setattr(tasks_registry, "load", lambda task, **options: (task, options))
  given = dict(partition="shards", num_clients=7, partition_seed=5, loss_epsilon=0.25)
  given["mixed_precision"] = True
  config = make_config("fedavg", "digits_cnn", seed=3, cache_dir="~/cache", **given)
  where = dict(data_dir=None, cache_dir=os.path.expanduser("~/cache"))
  expected = dict(**where, **given, model_seed=3)
  assert preparation.load(config) == (_DIGITS, expected)


def test_cohort_is_of_clients_that_are_not_held_out(monkeypatch):
  """Known before anything is loaded, if the number of clients is."""
  monkeypatch.setattr(preparation, "load", lambda config: pytest.fail("loaded"))
  given = dict(num_clients=10, held_out_clients=3)
  with pytest.raises(InputError, match="8, but there are only 10 clients, of which 3"):
    preparation.prepare(make_config("fedavg", "digits_cnn", clients_per_round=8, **given))
  none = make_config("fedavg", "digits_cnn", num_clients=10, held_out_clients=10)
  with pytest.raises(InputError, match=r"^held_out_clients is 10, but there are only 10"):
    preparation.prepare(none)
  with pytest.raises(pytest.fail.Exception, match="loaded"):
    preparation.prepare(make_config("fedavg", "digits_cnn", clients_per_round=7, **given))


# --- The model of a checkpoint ------------------------------------------------------


@pytest.fixture(scope="module")
def problem(in_process, tmp_path_factory) -> problems.Problem:
  return problems.make("softmax", str(tmp_path_factory.mktemp("softmax")))


@pytest.fixture(scope="module")
def process(problem):
  return fed_avg.build_fed_avg(problem.model)


@pytest.mark.parametrize("training", [{}, dict(num_clients=9, num_examples=70)])
def test_process_of_a_run_is_of_the_clients_that_trained(
  problem, process, monkeypatch, training
):
  """All, or those that were not held out."""
  built_of = []

  def build(model, hparams, *, num_clients, num_examples):
    built_of.append(dict(num_clients=num_clients, num_examples=num_examples))
    return process

  row = algorithms_registry.get("fedavg")._replace(name="counting", builder=build)
  monkeypatch.setitem(algorithms_registry.ALGORITHMS, "counting", row)
  data = {"clients": 12, "examples": 99, **({"training": training} if training else {})}
  manifest = {"flags": {"algorithm": "counting"}, "hparams": {}, "data": data}
  assert preparation.process_of("run", manifest, problem.model) is process
  assert built_of == [training or dict(num_clients=12, num_examples=99)]


@pytest.mark.parametrize("last, best", [(0.75, 3), (0.5, 2), (0.25, 2), (None, 2)])
def test_best_weights_are_the_last_ones_if_these_were_measured_to_be_better(
  problem, process, tmp_path, monkeypatch, last, best
):
  """Of round 3, not a multiple of `eval_every`; None: a stop left it unmeasured."""
  measured = []

  def evaluate(weights):
    measured.append(weights)
    return {"accuracy": (0.5, last)[len(measured) - 1]}

  def stop_unmeasured(start):
    if start.rounds_done == 3:
      raise KeyboardInterrupt

  settings = loop.Settings(
    rounds=3 if last else 5,
    clients_per_round=2,
    eval_every=2,
    checkpoint_folder=os.path.join(tmp_path, CHECKPOINTS),
  )
  try:
    loop.simulate(
      process,
      problem.directory,
      settings,
      evaluate=evaluate,
      keep_best="accuracy",
      before_round=stop_unmeasured,
    )
  except KeyboardInterrupt:
    assert last is None
  monkeypatch.setattr(preparation, "process_of", lambda *arguments: process)
  found = preparation.newest_weights(str(tmp_path), {}, problem.model, best=True)
  assert found.rounds == best
  for a, b in zip(found.weights, measured[best - 2]):
    np.testing.assert_array_equal(a, b)
  newest = preparation.newest_weights(str(tmp_path), {}, problem.model)
  assert newest.rounds == 3
  assert np.array_equal(newest.weights[0], found.weights[0]) == (best == 3)


def test_the_only_round_that_was_measured_is_the_best(
  problem, process, tmp_path, monkeypatch
):
  """Out of turn, for being the last."""
  folder = os.path.join(tmp_path, CHECKPOINTS)
  settings = loop.Settings(2, 2, eval_every=5, checkpoint_folder=folder)
  done = loop.simulate(
    process,
    problem.directory,
    settings,
    evaluate=lambda weights: {"accuracy": 0.5},
    keep_best="accuracy",
  )
  monkeypatch.setattr(preparation, "process_of", lambda *arguments: process)
  found = preparation.newest_weights(str(tmp_path), {}, problem.model, best=True)
  assert found.rounds == 2
  for a, b in zip(found.weights, process.get_model_weights(done.state).trainable):
    np.testing.assert_array_equal(a, b)
