"""The bare loop of the benchmark."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from experiments.benchmarks import frameworks, workloads
from tff_algos.client_work import local_training
from tff_algos.simulation import seeds


def test_bare_loop_learns_what_fedavg_learns(tmp_path):
  row = workloads.get("smoke")
  bare = frameworks.Bare(row)
  ours = frameworks.Ours(row, "in_process", "fedavg", str(tmp_path))
  try:
    before = ours.weights()
    ours.run(0)
    found = ours.weights()
  finally:
    ours.runtime.close()
  bare.run_in_order(
    local_training.batch_order(tf.constant(seeds.client_seed(0, 0, k)), 12, 1)[0]
    for k in range(row.num_clients)
  )
  for start, a, b in zip(before, bare.weights(), found):
    assert np.max(np.abs(b - start)) > 1e-3
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
