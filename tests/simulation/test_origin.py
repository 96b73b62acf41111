"""What a run that goes on from its checkpoints must have in common with its beginning."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tff_algos.algorithms import fed_avg, fed_curv, fed_prox, fed_sgd, registry
from tff_algos.client_work import gradients
from tff_algos.errors import InputError
from tff_algos.models import functional, keras
from tff_algos.simulation import loop, origin
from tff_algos.templates import identity

_THOROUGH = pytest.mark.thorough

_SPEC = functional.ExampleSpec(
  tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int32)
)
_SETTINGS = loop.Settings(rounds=1, clients_per_round=3)


def _absolute_error(labels, predictions):
  hot = tf.one_hot(labels, predictions.shape[-1])
  return tf.reduce_sum(tf.abs(hot - predictions), axis=-1)


def _of(process, federation):
  states = process.initialize(), process.initialize_client()
  return origin.of(process, *states, federation.clients, _SETTINGS)


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
  for found in (_differing(first, other), _differing(first, wrapped)):
    # And what ours was given, of which theirs is not asked.
    assert found - {f"{n} of client_update" for n in ("local_gradient", "pull_of")} == {
      "client_update"
    }
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


def test_augmentation_counts(federation):
  def of(augment):
    return identity.of_model(dataclasses.replace(federation.model, augment=augment))

  def shift(x, seed, by=0):
    return x + by

  kinds = (None, shift, functools.partial(shift, by=1), functools.partial(shift, by=2))
  for one, other in itertools.combinations(kinds, 2):
    assert _differing(of(one), of(other)) == {"augment"}
  assert not _differing(of(kinds[2]), of(functools.partial(shift, by=1)))


def test_loss_of_ones_own_has_no_address_in_its_text(federation):
  @dataclasses.dataclass
  class Own:
    of: object

    def __call__(self, labels, predictions):
      return _absolute_error(labels, predictions)

  model = dataclasses.replace(federation.model, example_losses=Own(object()))
  assert identity.of_model(model)["loss"].endswith("Own")


class _Called:
  def __init__(self, function):
    self._function = function

  def __call__(self, *arguments):
    return self._function(*arguments)


def test_functions_that_builders_are_given_are_told_apart_by_name(federation):
  def opposite(model, h, weights, batch):
    found, loss = gradients.batch_gradient(
      model, weights, batch.x, batch.y, batch.seed, scale=-1.0
    )
    return found, loss

  def none_of_it(model, h, weights, examples, seed):
    del model, h, examples, seed
    return tuple(map(tf.zeros_like, weights))

  name = opposite.__qualname__
  for build, given in (
    (
      fed_avg.build_fed_avg,
      {opposite: name, functools.partial(opposite): name, _Called(opposite): "_Called"},
    ),
    (fed_prox.build_fed_prox, {opposite: name}),
    (fed_sgd.build_fed_sgd, {opposite: name}),
    (fed_curv.build_fed_curv, {opposite: name, none_of_it: none_of_it.__qualname__}),
  ):
    first = _of(build(federation.model), federation)
    for function, shown in given.items():
      argument = "fisher_of" if function is none_of_it else "local_gradient"
      other = _of(build(federation.model, **{argument: function}), federation)
      name_of_it = f"{argument} of client_update"
      assert _differing(first, other) == {name_of_it}
      assert other[name_of_it] == shown
      for begun, resumed in ((first, other), (other, first)):
        with pytest.raises(InputError, match=name_of_it):
          origin.check(resumed, begun, "The run")


def test_norm_limits_are_told_apart(process_of, federation):
  process = process_of("fedavg")
  found = [
    _of(p, federation)
    for p in (process, *(process.recomposed(norm_limit=n) for n in (10.0, 1.5)))
  ]
  assert [each.get("norm_limit") for each in found] == [None, "10.0", "1.5"]
  assert _differing(*found[1:]) == {"norm_limit"}


def test_median_and_trimmed_mean_are_told_apart(federation):
  factories = [
    tff_algos.median_factory(),
    *map(tff_algos.trimmed_mean_factory, (0.1, 0.4)),
  ]
  found = [
    _of(fed_avg.build_fed_avg(federation.model, model_aggregator=f), federation)
    for f in factories
  ]
  for pair in itertools.combinations(found, 2):
    assert _differing(*pair) == {"statistic of model"}


def _drawn_anew(trainable=True):
  layers = tf.keras.layers
  inner = layers.Dense(4, "tanh", trainable=trainable)
  network = tf.keras.Sequential([layers.Input([4]), inner, layers.Dense(3)])
  return keras.from_keras(network, _SPEC)


def _clients(folder):
  draw = np.random.default_rng(0)
  data = {
    str(k): (draw.normal(size=(6, 4)), draw.integers(0, 3, 6).astype(np.int32))
    for k in range(5)
  }
  return tff_algos.write_clients(str(folder), data, _SPEC)


def _built(row, model, clients):
  total = int(clients.num_examples.sum())
  return row.build(
    model, row.hparams_class(), num_clients=len(clients), num_examples=total
  )


@pytest.mark.parametrize(
  "name", ["tefl", *(pytest.param(n, marks=_THOROUGH) for n in ("twafl", "afl"))]
)
def test_clients_that_begin_with_other_uploads_are_refused(name, tmp_path):
  """Of which the server's sums hold none, so that taking them back would go wrong."""
  clients = _clients(tmp_path / "clients")
  settings = loop.Settings(
    rounds=1, clients_per_round=2, checkpoint_folder=str(tmp_path / "run")
  )
  row = registry.get(name)

  def begin(**options):
    process = _built(row, _drawn_anew(), clients)
    with tff_algos.create_runtime():
      return loop.simulate(process, clients, settings, **options)

  begin()
  with pytest.raises(InputError, match=r"what clients begin with=[0-9a-f]+, but"):
    begin(resume=True)


@pytest.mark.parametrize(
  "name", [*(pytest.param(n, marks=_THOROUGH) for n in ("fedavg", "fedgg")), "scaffold"]
)
def test_other_initial_weights_change_nothing_of_a_run_that_goes_on(name, tmp_path):
  """Where clients keep none: the server's are in the checkpoint."""
  clients = _clients(tmp_path / "clients")
  row = registry.get(name)

  def run(rounds, folder, model, **options):
    process = _built(row, model, clients)
    settings = loop.Settings(
      rounds=rounds, clients_per_round=2, checkpoint_folder=str(tmp_path / folder)
    )
    with tff_algos.create_runtime():
      result = loop.simulate(process, clients, settings, **options)
    return process.get_model_weights(result.state).trainable

  model = _drawn_anew()
  expected = run(4, "whole", model)
  run(2, "parted", model)
  found = run(4, "parted", _drawn_anew(), resume=True)
  for a, b in zip(found, expected):
    np.testing.assert_array_equal(a, b)


def test_frozen_layers_of_other_values_are_told_apart(federation):
  one, other = (fed_avg.build_fed_avg(_drawn_anew(trainable=False)) for _ in "ab")
  assert _differing(_of(one, federation), _of(other, federation)) == {"what is frozen"}


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
  half = of(tf.keras.layers.Dense(3, activation="relu", dtype="mixed_bfloat16"))
  assert _differing(first, half) == {"precision of layer 2"}
  dropout, more = (of(tf.keras.layers.Dropout(rate)) for rate in (0.1, 0.2))
  (name,) = _differing(dropout, more)
  assert "rate=0.1" in dropout[name] and "rate=0.2" in more[name]
  assert dropout == of(tf.keras.layers.Dropout(0.1, seed=3))  # Which draws nothing.
  longer = of(tf.keras.layers.Dense(3, activation="relu"), tf.keras.layers.Dropout(0.1))
  assert (first["layers"], longer["layers"]) == ("4", "5")  # With model and inputs.
  assert np.all([isinstance(text, str) for text in longer.values()])
