"""TFF's private sums by a tree of noise, whose state has nodes as a round needs them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import ClientInput
from tff_algos.simulation import loop, seeds
from tff_algos.templates import saving

_CLIENTS, _ROUNDS, _NOISE = 3, 7, 0.5


def _aggregator(model) -> tff.aggregators.UnweightedAggregationFactory:
  return tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    noise_multiplier=_NOISE,
    clients_per_round=float(_CLIENTS),
    l2_norm_clip=1.0,
    record_specs=tuple(tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights),
    noise_seed=7,
    use_efficient=False,
  )


@pytest.fixture(scope="module")
def process(federation):
  """FedAvg whose clients hardly move."""
  hparams = fed_avg.FedAvgHparams(learning_rate=1e-20, client_weighting="uniform")
  aggregator = _aggregator(federation.model)
  return fed_avg.build_fed_avg(federation.model, hparams, model_aggregator=aggregator)


@pytest.mark.thorough
def test_the_model_moves_by_the_aggregators_noise(federation, process):
  """And before round t the tree has the nodes that t has as ones in binary."""
  alone = _aggregator(federation.model).create(
    tff.to_type(tuple((w.dtype.type, w.shape) for w in federation.model.initial_weights))
  )
  zeros = tuple(np.zeros_like(w) for w in federation.model.initial_weights)
  ids = federation.clients.ids[:_CLIENTS]
  state, other = process.initialize(), alone.initialize()
  for done in range(_ROUNDS):
    inputs = [
      ClientInput(federation.clients.path(name), seeds.client_seed(0, done, i))
      for i, name in enumerate(ids)
    ]
    before = process.get_model_weights(state).trainable
    state = process.next(state, [()] * _CLIENTS, inputs).state
    output = alone.next(other, [zeros] * _CLIENTS)
    other = output.state
    after = process.get_model_weights(state).trainable
    for new, old, noise in zip(after, before, output.result):
      np.testing.assert_allclose(new - old, noise, atol=1e-6)
    assert np.abs(output.result[0]).max() > 1e-3
    own = state.aggregator["model"].query_state.numerator_state.tree_state
    ones = [place for place in range(4) if (done + 2) >> place & 1]
    np.testing.assert_array_equal(own.level_buffer_idx, ones)


@pytest.fixture(scope="module")
def run(federation, process):
  """`(rounds, **settings) -> Result`, which goes on where there is a checkpoint."""

  def simulate(rounds: int, **options) -> loop.Result:
    settings = loop.Settings(rounds=rounds, clients_per_round=_CLIENTS, **options)
    return loop.simulate(process, federation.clients, settings, resume=bool(options))

  return simulate


@pytest.fixture(scope="module")
def whole(run):
  return run(5)


@pytest.mark.parametrize("stop", range(1, 5))
def test_a_run_goes_on_after_any_round(run, whole, stop, tmp_path):
  folder = str(tmp_path / "checkpoints")
  run(stop, checkpoint_folder=folder)
  resumed = run(5, checkpoint_folder=folder)
  for value, other in zip(tree.flatten(resumed.state), tree.flatten(whole.state)):
    np.testing.assert_array_equal(value, other)


def test_a_loaded_process_goes_on_alike(federation, process, whole, tmp_path):
  """Its state is of named tuples that no module has a name for."""
  saving.save_process(process, tmp_path / "process")
  loaded = saving.load_process(tmp_path / "process")
  settings = loop.Settings(rounds=5, clients_per_round=_CLIENTS)
  result = loop.simulate(loaded, federation.clients, settings)
  assert isinstance(result.state, type(whole.state))
  for value, other in zip(tree.flatten(result.state), tree.flatten(whole.state)):
    np.testing.assert_array_equal(value, other)
