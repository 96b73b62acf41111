"""A run whose data say who the clients are, from its settings to its results."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from experiments import runner
from experiments.config import Config, make_config
from tasks import registry
from tasks.datasets import dataset
from tff_algos.errors import InputError


def _load(data_dir, cache_dir) -> dataset.Dataset:
  """Counting modulo 4, five sequences from each of six users; no last label."""
  del data_dir, cache_dir
  x = (np.arange(30, dtype=np.int32)[:, np.newaxis] + np.arange(6, dtype=np.int32)) % 4
  y = np.hstack([x[:, 1:], np.full((30, 1), -1, np.int32)])
  groups = np.arange(30, dtype=np.int32) % 6
  return dataset.Dataset(x, y, x, y, 4, train_groups=groups)


def _build(shape, num_classes) -> tf.keras.Model:
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [layers.Input(shape), layers.Embedding(4, 4), layers.Dense(num_classes)]
  )


_ROW = registry.get("shakespeare_lstm")._replace(
  name="counting",
  load_data=_load,
  build_keras_model=_build,
  clients_per_round=3,
  rounds=2,
  hparams=dict(epochs=20, batch_size=5, learning_rate=2.0, momentum=0.0),
)


@pytest.fixture(autouse=True)
def _task(monkeypatch):
  monkeypatch.setitem(registry.TASKS, "counting", _ROW)


def _config(tmp_path, **given) -> Config:
  folders = dict(run_dir=str(tmp_path / "run"), cache_dir=str(tmp_path / "cache"))
  return make_config("fedavg", "counting", **folders, **given)


def test_run_has_a_client_for_each_group_and_can_be_resumed(tmp_path):
  assert _config(tmp_path).num_clients is None
  runner.run(_config(tmp_path, rounds=1, checkpoint_every=1))
  summary = runner.run(_config(tmp_path), resume=True)
  assert summary["rounds"] == 2
  # The next number follows from the last: an accuracy over characters reaches 1, while
  # with the step without a label as a miss it would end at 5/6.
  assert summary["final_accuracy"] == 1
  written = json.loads((tmp_path / "run/config.json").read_text())
  assert written["flags"]["num_clients"] is None
  assert written["data"]["clients"] == 6
  with pytest.raises(InputError, match="num_clients=None, not 6"):
    runner.run(_config(tmp_path, num_clients=6), resume=True)


def test_cohort_larger_than_the_groups_is_refused(tmp_path):
  config = _config(tmp_path, clients_per_round=7)
  with pytest.raises(InputError, match="7, but there are only 6 clients"):
    runner.run(config)
  assert not (tmp_path / "run").exists()
