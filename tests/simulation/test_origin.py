"""What a run that goes on from its checkpoints must have in common with its beginning."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tff_algos.algorithms import fed_avg
from tff_algos.errors import InputError
from tff_algos.models import functional, keras
from tff_algos.simulation import loop, origin
from tff_algos.templates import identity

_SETTINGS = loop.Settings(rounds=1, clients_per_round=3)


def _absolute_error(labels, predictions):
  hot = tf.one_hot(labels, predictions.shape[-1])
  return tf.reduce_sum(tf.abs(hot - predictions), axis=-1)


def _of(process, federation):
  return origin.of(process, process.initialize(), federation.clients, _SETTINGS)


def _differing(one, other):
  return {n for n in {*one, *other} if one.get(n) != other.get(n)}


def test_algorithm_of_equal_states_is_not_gone_on_with(process_of, federation, tmp_path):
  settings = dataclasses.replace(_SETTINGS, checkpoint_folder=str(tmp_path))
  loop.simulate(process_of("fedadam"), federation.clients, settings)
  words = "began with hparams=FedAdamHparams, but this one has hparams=FedYogiHparams:"
  with pytest.raises(InputError, match=words):
    loop.simulate(process_of("fedyogi"), federation.clients, settings, resume=True)


def test_loss_and_aggregator_are_told_apart_by_name(process_of, federation):
  first = _of(process_of("fedavg"), federation)
  model = dataclasses.replace(federation.model, example_losses=_absolute_error)
  other = fed_avg.build_fed_avg(
    model, model_aggregator=tff.aggregators.UnweightedMeanFactory()
  )
  assert _differing(first, _of(other, federation)) == {"loss", "aggregator of model"}
  assert "sparse_cross_entropy" in first["loss"]


def test_functions_of_ones_own_are_told_apart_by_name(process_of, federation):
  process = process_of("fedavg")
  kind = process.composed_of["rounds"][""]

  def other_update(*arguments):
    return kind.client_update(*arguments)

  @functools.wraps(kind.client_update)  # Which gives it the names of ours.
  def wrapper(*arguments):
    return kind.client_update(*arguments)

  first, other, wrapped = (
    _of(process.recomposed(rounds={"": kind._replace(client_update=f)}), federation)
    for f in (kind.client_update, other_update, wrapper)
  )
  assert _differing(first, other) == _differing(first, wrapped) == {"client_update"}
  assert first["client_update"] == ""  # What we call them is no user's matter.
  assert other["client_update"].endswith("other_update")


def test_hyper_parameter_called_as_what_is_there_hides_nothing(federation):
  @dataclasses.dataclass(frozen=True)
  class Hparams(tff_algos.FedAvgHparams):
    seed: int = tff_algos.hparam(3, "One of my own.", source="mine")

  process = tff_algos.build_fed_avg(federation.model, Hparams())
  found = _of(process, federation)
  assert (found["seed"], found["hparams.seed"]) == ("0", "3")


def test_epsilon_of_a_loss_counts(federation):
  def of(epsilon):
    losses = functional.FadingCrossEntropy(epsilon)
    return identity.of_model(dataclasses.replace(federation.model, example_losses=losses))

  assert _differing(of(1e-12), of(1e-30)) == {"loss"}
  assert of(1e-12) == of(1e-12)


def test_numbers_of_a_loss_of_kerass_count(federation):
  def of(delta):
    losses = tf.keras.losses.Huber(delta, reduction="none")
    return identity.of_model(dataclasses.replace(federation.model, example_losses=losses))

  assert _differing(of(1.0), of(2.0)) == {"numbers of the loss"}
  assert not _differing(of(1.0), of(1.0))


def test_arguments_of_a_partial_count(federation):
  def of(function, *arguments, **more):
    losses = functools.partial(function, *arguments, **more)
    return identity.of_model(dataclasses.replace(federation.model, example_losses=losses))

  first = of(_absolute_error, power=2, names=object())  # Which has an address.
  assert not _differing(first, of(_absolute_error, power=2, names=object()))
  for other in (of(_absolute_error, power=3), of(max, power=2), of(max, 2)):
    assert _differing(first, other) == {"numbers of the loss"}
  assert _differing(of(max, 2), of(max, 3)) == {"numbers of the loss"}


def test_loss_of_ones_own_has_no_address_in_its_text(federation):
  @dataclasses.dataclass
  class Own:
    of: object

    def __call__(self, labels, predictions):
      return _absolute_error(labels, predictions)

  model = dataclasses.replace(federation.model, example_losses=Own(object()))
  assert identity.of_model(model)["loss"].endswith("Own")


def test_layers_of_a_keras_model_are_told_apart():
  spec = functional.ExampleSpec(
    tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int32)
  )

  def of(*layers):
    stack = [tf.keras.Input([4]), *layers, tf.keras.layers.Dense(2)]
    return identity.of_model(keras.from_keras(tf.keras.Sequential(stack), spec))

  first = of(tf.keras.layers.Dense(3, activation="relu"))
  again = of(tf.keras.layers.Dense(3, activation="relu"))
  assert first == again  # Though Keras has named the layers otherwise.
  changed = of(tf.keras.layers.Dense(3, activation="tanh"))
  (name,) = _differing(first, changed)
  assert (first[name], changed[name]) == ("Dense relu", "Dense tanh")
  dropout, more = (of(tf.keras.layers.Dropout(rate)) for rate in (0.1, 0.2))
  (name,) = _differing(dropout, more)
  assert "rate=0.1" in dropout[name] and "rate=0.2" in more[name]
  assert dropout == of(tf.keras.layers.Dropout(0.1, seed=3))  # Which draws nothing.
  longer = of(tf.keras.layers.Dense(3, activation="relu"), tf.keras.layers.Dropout(0.1))
  assert (first["layers"], longer["layers"]) == ("4", "5")  # With model and inputs.
  assert np.all([isinstance(text, str) for text in longer.values()])
