"""What the benchmark measures: the bare loop, and what is evaluated when."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from experiments.benchmarks import frameworks, workloads
from tff_algos.client_work import local_training
from tff_algos.simulation import seeds


@pytest.mark.parametrize(
  "clients_per_round", [pytest.param(None, marks=pytest.mark.thorough), 3]
)
@pytest.mark.parametrize("over_datasets", [False, True])
def test_bare_loop_learns_what_fedavg_learns(tmp_path, over_datasets, clients_per_round):
  row = workloads.get("smoke")
  if clients_per_round:
    row = row._replace(num_clients=12, clients_per_round=clients_per_round)
  cohort = row.cohort(1)
  assert len(cohort) == 3
  bare = frameworks.Bare(row)
  if over_datasets:
    ours = frameworks.OverDatasets(row, "fedavg", str(tmp_path))
    examples = [row.clients()[str(k)] for k in cohort]
    keys = [tff_algos.dataset_seed(each, 0) for each in examples]
  else:
    ours = frameworks.Ours(row, "in_process", "fedavg", str(tmp_path))
    keys = [seeds.client_seed(0, 1, k) for k in cohort]
  try:
    before = ours.weights()
    ours.run(1)
    found = ours.weights()
  finally:
    ours.runtime.close()
  orders = (local_training.batch_order(tf.constant(key), 12, 1)[0] for key in keys)
  bare.run_in_order(zip(cohort, orders))
  for start, a, b in zip(before, bare.weights(), found):
    assert np.max(np.abs(b - start)) > 1e-3
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_round_in_mixed_precision_is_that_of_float32_but_for_rounding(tmp_path):
  row = workloads.get("smoke")
  bare = frameworks.Bare(row)
  before = bare.weights()
  ours = frameworks.build(row.name, "mixed_precision", "fedavg", str(tmp_path))
  try:
    ours.run(1)
    found = ours.weights()
  finally:
    ours.runtime.close()
  keys = (seeds.client_seed(0, 1, k) for k in row.cohort(1))
  orders = (local_training.batch_order(tf.constant(key), 12, 1)[0] for key in keys)
  bare.run_in_order(zip(row.cohort(1), orders))
  for start, a, b in zip(before, bare.weights(), found):
    distance = np.linalg.norm(b - a) / np.linalg.norm(a - start)
    assert 1e-4 < distance < 2**-5


def test_every_tenth_round_is_evaluated(tmp_path, monkeypatch):
  row = workloads.get("smoke")._replace(run=workloads.Run(30, 10, num_test_examples=7))
  monkeypatch.setattr(workloads, "WORKLOADS", {row.name: row})
  build, seen = frameworks.build_evaluation, []

  def spied(workload):
    evaluate = build(workload)

    def spy(framework):
      seen.append((framework.weights(), evaluate(framework)))

    return spy

  monkeypatch.setattr(frameworks, "build_evaluation", spied)
  asking, answering = socket.socketpair()
  with asking, answering:
    asking.sendall(b"round\n" * 22)
    asking.shutdown(socket.SHUT_WR)
    frameworks.serve(answering, row.name, "bare", "fedavg", str(tmp_path))
    answering.shutdown(socket.SHUT_WR)
    ready, *rounds = map(json.loads, asking.makefile())
  assert ready == {}
  timed = ["evaluation_seconds" in answer for answer in rounds]
  assert timed == [number in (0, 10, 20) for number in range(22)]
  # Once more before the first round, when it compiles. Each is of the weights of then.
  assert len(seen) == 4
  x, y = row.test_examples()
  for (kernel, bias), found in seen:
    logits = (x / 255).reshape(7, -1) @ kernel + bias
    loss = np.log(np.exp(logits).sum(1)) - logits[range(7), y]
    assert found["loss"] == pytest.approx(loss.mean(), rel=1e-5)
  assert len({found["loss"] for _, found in seen}) == 4
