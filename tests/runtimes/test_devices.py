"""Clients on several devices: logical devices of TensorFlow on one CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

# Logical devices must be set before TensorFlow does anything, so in a process of its own.
_PROGRAM = """
  import collections, json, sys
  import numpy as np
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  four = [tf.config.LogicalDeviceConfiguration()] * 4
  tf.config.set_logical_device_configuration(cpu, four)

  import tff_algos
  from tff_algos.runtimes import accumulation, planning
  from tff_algos.simulation import seeds

  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int32)
  )
  layers = [tf.keras.layers.Input([6]), tf.keras.layers.Dense(3)]
  model = tff_algos.from_keras(tf.keras.Sequential(layers), spec)
  draw = np.random.default_rng(0)
  data = {
    str(i): (
      draw.normal(size=(5 + i, 6)).astype(np.float32),
      draw.integers(0, 3, 5 + i).astype(np.int32),
    )
    for i in range(int(sys.argv[2]))
  }
  clients = tff_algos.write_clients(sys.argv[1], data, spec)
  process = tff_algos.build_scaffold(
    model, tff_algos.ScaffoldHparams(batch_size=4), num_clients=len(clients)
  )

  used = collections.Counter()
  at_server = set()
  run_step, add = planning.Step.run, accumulation.Accumulation.add

  def short(tensor):
    return tensor.device.rpartition("/device:")[2]

  def watched_run(step, given):
    results = run_step(step, given)
    if any(node.kind == "map" and not node.at_server for node in results):
      made = {short(leaf) for node in results for leaf in results[node]}
      used["+".join(sorted(made))] += 1
    return results

  def watched_add(accumulation, totals, results):
    added = [v for r in results for n in accumulation.aggregates for v in r[n.inputs[0]]]
    totals = add(accumulation, totals, results)
    at_server.update(map(short, (*totals, *added)))
    return totals

  planning.Step.run, accumulation.Accumulation.add = watched_run, watched_add

  def weights(devices):
    used.clear()
    at_server.clear()
    with tff_algos.create_runtime(devices=devices):
      state = process.initialize()
      own = [process.initialize_client()] * len(clients)
      for round_num in range(2):
        inputs = [
          tff_algos.ClientInput(clients.path(c), seeds.client_seed(0, round_num, i))
          for i, c in enumerate(clients.ids)
        ]
        output = process.next(state, own, inputs)
        state, own = output.state, output.client_states
      found = process.get_model_weights(state).trainable
    own = [leaf.tolist() for leaves in own for leaf in leaves]
    return dict(
      weights=[w.tolist() for w in found], own=own, used=dict(used), at=sorted(at_server)
    )

  print(json.dumps({
    str(n): weights([f"CPU:{i}" for i in range(n)]) for n in (1, 2, 4)
  }))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Two rounds of SCAFFOLD with 8 clients on 1, 2 and 4 devices."""
  folder = str(tmp_path_factory.mktemp("clients"))
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(_PROGRAM), folder, "8"],
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_clients_take_the_devices_in_turn(runs, num_devices):
  # All that a client makes is on its device.
  assert runs[str(num_devices)]["used"] == {
    f"CPU:{i}": 2 * 8 // num_devices for i in range(num_devices)
  }


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_sums_and_what_is_added_are_on_the_first_device(runs, num_devices):
  assert runs[str(num_devices)]["at"] == ["CPU:0"]


@pytest.mark.parametrize("num_devices", [2, 4])
@pytest.mark.parametrize("what", ["weights", "own"])
def test_results_do_not_depend_on_the_devices(runs, num_devices, what):
  assert runs[str(num_devices)][what] == runs["1"][what]
