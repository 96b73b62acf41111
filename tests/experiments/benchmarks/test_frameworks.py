"""The bare loop of the benchmark."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from experiments.benchmarks import frameworks, workloads
from tff_algos.client_work import local_training
from tff_algos.simulation import seeds


@pytest.mark.parametrize("over_datasets", [False, True])
def test_bare_loop_learns_what_fedavg_learns(tmp_path, over_datasets):
  row = workloads.get("smoke")
  bare = frameworks.Bare(row)
  if over_datasets:
    ours = frameworks.OverDatasets(row, "fedavg", str(tmp_path))
    keys = [tff_algos.dataset_seed(each, 0) for each in row.clients().values()]
  else:
    ours = frameworks.Ours(row, "in_process", "fedavg", str(tmp_path))
    keys = [seeds.client_seed(0, 0, k) for k in range(row.num_clients)]
  try:
    before = ours.weights()
    ours.run(0)
    found = ours.weights()
  finally:
    ours.runtime.close()
  bare.run_in_order(
    local_training.batch_order(tf.constant(key), 12, 1)[0] for key in keys
  )
  for start, a, b in zip(before, bare.weights(), found):
    assert np.max(np.abs(b - start)) > 1e-3
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
