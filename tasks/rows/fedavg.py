"""The tasks of FedAvg: McMahan et al., AISTATS 2017."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Optional

from tasks.rows.parts import local_sgd, network, tfds
from tasks.task import Task

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset
  from tff_algos.models.functional import ExampleSpec, Model


def _sequence_labeller(keras_model: Any, spec: ExampleSpec) -> Model:
  from tff_algos.models import functional, keras

  return keras.from_keras(
    keras_model,
    spec,
    loss=functional.sequence_cross_entropy,
    metrics=OrderedDict(accuracy=functional.sequence_accuracy),
  )


def _shakespeare(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import shakespeare

  del cache_dir
  return shakespeare.load(data_dir)


ROWS: tuple[Task, ...] = (
  Task(
    "mnist_2nn",
    "MNIST, two hidden layers of 200 (199,210 weights), IID.",
    tfds("mnist"),
    network("mlp", "two_hidden_layers"),
    partition="iid",
    num_clients=100,
    clients_per_round=10,
    rounds=100,
    hparams=local_sgd(epochs=1, batch_size=10, learning_rate=0.1),
    target_accuracy=0.97,
  ),
  Task(
    "mnist_cnn",
    "MNIST, CNN of McMahan et al. (1,663,370 weights), IID.",
    tfds("mnist"),
    network("cnn", "mcmahan"),
    partition="iid",
    num_clients=100,
    clients_per_round=10,
    rounds=50,
    hparams=local_sgd(epochs=5, batch_size=10, learning_rate=0.1),
    target_accuracy=0.99,
  ),
  Task(
    "shakespeare_lstm",
    "Shakespeare's plays, two LSTM 256 (820,522 weights), a client for each role.",
    _shakespeare,
    network("lstm", "character_lstm"),
    partition="natural",
    num_clients=None,
    clients_per_round=124,
    rounds=100,
    # The rate is what the slides print for B = 10 and C = 0.1; the cohort is a tenth.
    hparams=local_sgd(epochs=5, batch_size=10, learning_rate=1.47),
    target_accuracy=0.54,
    make_model=_sequence_labeller,
  ),
)
