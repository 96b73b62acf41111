"""What is given to a builder in the place of a model, or of hyper-parameters."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tff_algos.algorithms import registry
from tff_algos.errors import InputError, InputWarning
from tff_algos.models import functional


def _model() -> functional.Model:
  return functional.Model(
    initial_weights=(np.zeros([2, 3], np.float32),),
    weight_names=("kernel",),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
  )


@pytest.mark.parametrize(
  "give",
  [
    tff_algos.build_fed_avg,
    tff_algos.build_fed_reg,
    tff_algos.build_pfedgp,
    tff_algos.build_client_evaluation,
    lambda model: tff_algos.build_evaluation(model, np.zeros([1, 2]), np.zeros(1)),
    lambda model: tff_algos.to_keras(model, model.get_weights()),
  ],
)
def test_keras_model_is_refused_and_from_keras_named(give):
  layers = [tf.keras.layers.Input([2]), tf.keras.layers.Dense(3)]
  with pytest.raises(
    InputError, match=r"model is a Sequential: .* tff_algos\.from_keras"
  ):
    give(tf.keras.Sequential(layers))


def test_what_is_no_keras_model_is_refused():
  with pytest.raises(InputError, match=r"^The Keras model is a int: give a tf\.keras"):
    tff_algos.from_keras(42, _model().example_spec)


@pytest.mark.parametrize("name, what", [("x", "inputs"), ("y", "labels")])
def test_examples_of_text_are_refused(name, what):
  """Of which a builder would have TensorFlow's words of a bitcast."""
  text = {name: tf.TensorSpec([], tf.string)}
  model = _model()
  model = dataclasses.replace(model, example_spec=model.example_spec._replace(**text))
  with pytest.raises(InputError, match=f"^By the ExampleSpec the {what} are text, "):
    tff_algos.build_fed_avg(model)


@pytest.mark.parametrize("seed", [-1, 1.5, None, 2**31, 2**63])
def test_seed_of_data_sets_is_a_whole_number(seed):
  with pytest.raises(InputError, match=r"^seed must be "):
    tff_algos.over_datasets(tff_algos.build_fed_avg(_model()), seed=seed)


@pytest.mark.parametrize("hparams", [tff_algos.FedAvgHparams, {"epochs": 2}, None])
@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_other_than_a_model_and_hyper_parameters_is_refused(name, hparams):
  builder = registry.ALGORITHMS[name].builder
  wanted = inspect.signature(builder).parameters
  counts = {k: 4 for k in ("num_clients", "num_examples") if k in wanted}
  with pytest.raises(InputError, match=r"^hparams must be .*; found "):
    builder(_model(), hparams, **counts)
  keras = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(3)])
  with pytest.raises(
    InputError, match=r"model is a Sequential: .* tff_algos\.from_keras"
  ):
    builder(keras, **counts)


def test_hyper_parameter_that_nothing_reads_is_warned_of():
  """As of another algorithm, whose class may extend that of this one."""
  words = r"^mu=100\.0 of FedProxHparams changes no round, "
  with pytest.warns(InputWarning, match=words):
    tff_algos.build_fed_avg(_model(), tff_algos.FedProxHparams(mu=100.0, epochs=2))


def test_tunable_one_that_only_the_builder_reads_is_warned_of():
  """A schedule would change nothing, without a word."""

  def build(hparams):
    rate = hparams.learning_rate

    def client_update(received, client_state, examples, seed, h):
      del examples, seed, h
      change = tuple(-rate * w for w in received["model"])
      return tff_algos.ClientResult({"model": change}, {"model": 1.0}, client_state, {})

    def server_update(variables, aggregate, num_clients, h):
      del num_clients
      step = h.server_learning_rate
      weights = tff_algos.tree_math.add_scaled(variables.model, step, aggregate["model"])
      return tff_algos.ServerVariables(weights, ())

    return tff_algos.compose_process(
      _model(),
      hparams,
      rounds=tff_algos.Round(client_update, server_update),
      aggregators={"model": None},
    )

  words = r"^learning_rate=0\.25 of FedAvgHparams is read by no function of the rounds"
  with pytest.warns(InputWarning, match=words):
    build(tff_algos.FedAvgHparams(learning_rate=0.25))


@pytest.mark.parametrize(
  "name, values",
  [
    ("fedprox", dict(mu=100.0, epochs=2, batch_size=3, client_weighting="uniform")),
    ("fedavg_dpsgd", dict(delta=1e-3, clip_norm=2.0)),
    ("pfedgp", dict(max_support=7, output_scale=2.0)),
    ("fedadam", dict(tau=0.1, beta2=0.5)),
  ],
)
def test_hyper_parameter_that_something_reads_is_not(name, values, recwarn):
  algorithm = registry.ALGORITHMS[name]
  hparams = algorithm.hparams_class(**values)
  algorithm.build(_model(), hparams, num_clients=4, num_examples=9)
  assert [w for w in recwarn if w.category is InputWarning] == []
