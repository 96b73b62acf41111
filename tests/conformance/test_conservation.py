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

# Sums of what clients send do not know of what model it is; the replays are on all.
everywhere = pytest.mark.parametrize("problem", ["mlp"])


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


MEANS = {
  "scaffold": {
    "option_I": dict(option="I"),
    "option_II": dict(option="II"),
    "momentum": dict(option="II", momentum=0.9, batch_size=None),
    "examples": dict(client_weighting="examples"),
    "server_rate": dict(server_learning_rate=0.6),
  },
  "feddyn": {
    "plain": dict(alpha=0.5),
    "momentum": dict(alpha=0.5, momentum=0.9, learning_rate=0.03),
    "weak": dict(alpha=0.0),
  },
}
MEAN_CASES = [(name, label) for name, row in MEANS.items() for label in row]


@everywhere
@pytest.mark.parametrize("name, label", MEAN_CASES, ids=map("-".join, MEAN_CASES))
def test_server_keeps_the_mean_over_all_clients(federate, problem, name, label):
  """SCAFFOLD's c is the mean of all c_i, FedDyn's h that of all l_i."""
  federation = federate(name, problem, **MEANS[name][label])
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


@everywhere
@pytest.mark.parametrize("name", ["fedcurv", "fedcurv_dpsgd"])
def test_fedcurv_keeps_the_sums_of_the_rounds_clients(federate, problem, name):
  """Of F_j and of F_j * w_j; a round without any accepted client leaves the last."""
  federation = federate(name, problem, curvature=0.2)
  before, done = federation.state.variables.extra, 0
  for t, accepted in rounds_of(federation):
    found = federation.state.variables.extra
    if not accepted:
      driver.assert_same(found, before, f"round {t}")
      continue
    done += 1
    states = [federation.client_states[c] for c in accepted]
    assert found.round_num == done
    assert all(state.round_num == done for state in states)
    for kept in ("fisher", "fisher_model"):
      arrays = zip(*(getattr(state, kept) for state in states))
      sums = [np.sum(np.float64(a), axis=0) for a in arrays]
      size = max(np.max(np.abs(a)) for s in states for a in getattr(s, kept))
      driver.assert_within_rounding(
        getattr(found, kept), sums, f"{kept}, round {t}", size=size
      )
    assert all(np.max(a) > 0 for a in found.fisher)
    before = found


LAYERWISE = dict(rounds_in_loop=3, freq=1)
TEMPORAL = {
  "twafl": {
    "plain": LAYERWISE,
    "old_count_less": dict(base=4.0, client_weighting="uniform", **LAYERWISE),
    "as_printed": dict(normalization="examples", **LAYERWISE),
    "server_rate": dict(server_learning_rate=0.6, **LAYERWISE),
  },
  "tefl": {"plain": dict(), "old_count_less": dict(base=4.0)},
  "afl": {"plain": LAYERWISE},
}
TEMPORAL_CASES = [(name, label) for name, row in TEMPORAL.items() for label in row]


@everywhere
@pytest.mark.parametrize("name, label", TEMPORAL_CASES, ids=map("-".join, TEMPORAL_CASES))
def test_sums_are_those_over_all_clients_last_uploads(federate, problem, name, label):
  """sum_k n_k a^(t_k - t) w_k and sum_k n_k a^(t_k - t), of each part by itself.

  The server moves to their quotient, but for the layers that do not travel in a round:
  these stay, and their uploads get older.
  """
  federation = federate(name, problem, **TEMPORAL[name][label])
  process, h = federation.process, federation.hparams
  base, rate = getattr(h, "base", 1.0), h.server_learning_rate
  is_uniform = h.client_weighting == "uniform"
  counts = np.ones(problems.NUM_CLIENTS) if is_uniform else np.float64(problems.SIZES)
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
        expected += [x + rate * (s / total - x) for x, s in zip(old, sums)]
      else:
        assert all(ages > 0)
        expected += old
    model = federation.weights
    driver.assert_within_rounding(model, expected, f"the model, round {t}", size=1.0)
