"""A small federation: six clients of unequal sizes, softmax regression with noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tff_algos import client_data
from tff_algos.algorithms import registry
from tff_algos.models import functional
from tff_algos.templates.stateful_process import StatefulProcess

_SIZES = (5, 9, 3, 7, 6, 8)
_FEATURES, _CLASSES = 4, 3


class Federation(NamedTuple):
  """A model, its clients, and test examples."""

  model: functional.Model
  clients: client_data.ClientDirectory
  test_x: np.ndarray
  test_y: np.ndarray


def _examples(rng, n: int):
  x = rng.normal(size=(n, _FEATURES)).astype(np.float32)
  return x, rng.integers(0, _CLASSES, n).astype(np.int32)


def _predict(weights, x, training, seed):
  # Noise, so that a client's draws show in its weights.
  if training:
    x = x + 0.3 * tf.random.stateless_normal(tf.shape(x), seed)
  return tf.matmul(x, weights[0]) + weights[1]


@pytest.fixture(scope="session")
def federation(in_process, tmp_path_factory) -> Federation:
  rng = np.random.default_rng(0)
  model = functional.Model(
    initial_weights=(
      rng.normal(size=(_FEATURES, _CLASSES)).astype(np.float32),
      np.zeros(_CLASSES, np.float32),
    ),
    weight_names=("kernel", "bias"),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([_FEATURES], tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=_predict,
  )
  clients = {f"client {i}": _examples(rng, n) for i, n in enumerate(_SIZES)}
  folder = str(tmp_path_factory.mktemp("clients"))
  directory = client_data.write_clients(folder, clients, model.example_spec)
  return Federation(model, directory, *_examples(rng, 40))


@pytest.fixture
def graphs_of() -> Callable[[Callable[[], Any]], str]:
  """`(call) -> text`: the graphs that TensorFlow runs in it, after its optimizer."""

  def run(call: Callable[[], Any]) -> str:
    here = context.context()
    here.enable_graph_collection()
    try:
      call()
      return str(here.export_run_metadata())
    finally:
      here.disable_graph_collection()

  return run


@pytest.fixture(scope="session")
def process_of(federation):
  """`(algorithm) -> StatefulProcess`; each is built once."""
  built: dict[str, StatefulProcess] = {}

  def get(name: str) -> StatefulProcess:
    if name not in built:
      row = registry.get(name)
      hparams = row.hparams_class()
      population = dict(num_clients=len(_SIZES), num_examples=sum(_SIZES))
      built[name] = row.build(federation.model, hparams, **population)
    return built[name]

  return get
