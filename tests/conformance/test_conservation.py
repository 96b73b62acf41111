"""Law: what the server keeps as a sum is the sum over the clients, seen or not.

It is kept up by what the clients send; here it is worked out from all clients' states.
"""

from __future__ import annotations

import driver
import numpy as np
import problems
import pytest

# At the end someone is dropped, a round has nobody, and client 4 comes at last.
ROUNDS = (*problems.ROUNDS, (1, 2), (), (4, 0), (2, 1))
DROPPED = {4: {1: "nan"}}


def rounds_of(federation):
  """Yields after each round: its number and its clients whose message was accepted."""
  for t, clients in enumerate(ROUNDS):
    dropped = DROPPED.get(t, {})
    federation.round(clients, dropped)
    assert federation.training["num_dropped"] == len(dropped)
    yield t, [c for c in clients if c not in dropped]


def states_of_all(federation) -> list:
  """The state of every client, also of those that never took part."""
  new = federation.process.initialize_client()
  return [federation.client_states.get(c, new) for c in range(problems.NUM_CLIENTS)]


# One setting of each, of those that are replayed.
MEANS = {"scaffold": dict(option="II"), "feddyn": dict(alpha=0.5)}


@pytest.mark.parametrize("name", MEANS)
def test_server_keeps_the_mean_over_all_clients(federate, name):
  """SCAFFOLD's c is the mean of all c_i, FedDyn's h that of all l_i."""
  federation = federate(name, **MEANS[name])
  for t, _ in rounds_of(federation):
    states = [driver.flat(state) for state in states_of_all(federation)]
    largest = max(np.max(np.abs(v)) for state in states for v in state)
    # Clients that never took part have 0 and count all the same.
    means = [np.mean(np.float64(arrays), axis=0) for arrays in zip(*states)]
    for found, mean in zip(driver.flat(federation.state.variables.extra), means):
      # Two roundings of 6e-8 for each client and round at most.
      np.testing.assert_allclose(
        found, mean, rtol=0, atol=5e-7 * largest, err_msg=f"round {t}"
      )
    assert largest > 1e-2


LAYERWISE = dict(rounds_in_loop=3, freq=1)
TEMPORAL = {
  "twafl": dict(normalization="examples", **LAYERWISE),
  "tefl": dict(base=4.0),
  "afl": LAYERWISE,
}


@pytest.mark.parametrize("name", TEMPORAL)
def test_sums_are_those_over_all_clients_last_uploads(federate, name):
  """sum_k n_k a^(t_k - t) w_k and sum_k n_k a^(t_k - t), of each part by itself.

  The server moves to their quotient, but for the layers that do not travel in a round:
  these stay, and their uploads get older.
  """
  federation = federate(name, **TEMPORAL[name])
  process, h = federation.process, federation.hparams
  base, counts = getattr(h, "base", 1.0), np.float64(problems.SIZES)
  divide_by_all = getattr(h, "normalization", "weights") == "examples"
  model = federation.weights
  for t, accepted in rounds_of(federation):
    expected, travelled = [], process.next_of(t) is not process.next_fns.get("shallow")
    for part, state in federation.state.aggregator.items():
      what = f"{part}, round {t}"
      memories = [s.memory[part] for s in states_of_all(federation)]
      ages = np.float64([t + 1 - m["round_num"] for m in memories])
      weights = counts * base**-ages
      uploads = [np.float64(a) for a in zip(*(m["value"] for m in memories))]
      sums = [np.tensordot(weights, a, axes=1) for a in uploads]
      # The rounding is that of the uploads, even where their sum is small.
      size = sum(weights) * max(np.max(np.abs(a)) for a in uploads)
      driver.assert_within_rounding(state["sums"].value, sums, what, size=size)
      driver.assert_within_rounding(state["sums"].weight, sum(weights), what)
      old = model[len(expected) : len(expected) + len(sums)]
      if accepted and (travelled or part != "deep"):
        assert not any(ages[accepted])
        total = sum(counts if divide_by_all else weights)
        expected += [s / total for s in sums]
      else:
        assert all(ages > 0)
        expected += old
    model = federation.weights
    driver.assert_within_rounding(model, expected, f"the model, round {t}", size=1.0)
