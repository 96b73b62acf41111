"""Rounds of a process on `in_process`, to compare two ways of doing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tff_algos
from tff_algos.simulation import seeds


def run(process, clients, *, rounds: int = 2, **runtime: Any) -> list[Any]:
  """The server's and all clients' states, and the metrics, after each round."""
  states = []
  with tff_algos.create_runtime(**runtime):
    server = process.initialize()
    own = [process.initialize_client()] * len(clients)
    for round_num in range(rounds):
      inputs = [
        tff_algos.ClientInput(clients.path(c), seeds.client_seed(3, round_num, i))
        for i, c in enumerate(clients.ids)
      ]
      output = process.next_of(round_num)(server, own, inputs)
      server, own = output.state, output.client_states
      states.append((server, own, output.metrics))
  return states


def assert_close(states: list[Any], expected: list[Any]) -> None:
  """Equal up to float rounding."""
  found, wanted = tf.nest.flatten(states), tf.nest.flatten(expected)
  assert len(found) == len(wanted)
  for value, other in zip(found, wanted):
    np.testing.assert_allclose(value, other, rtol=2e-5, atol=2e-6)
