"""The tasks of TWAFL: Chen, Sun, Jin, TNNLS 2020."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from tasks.rows.parts import local_sgd, network, tfds
from tasks.task import Task

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset


def _har(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import har

  del cache_dir
  return har.load(data_dir)


def _har_lstm(name: str, sizes: tuple[int, int], num_weights: str) -> Task:
  return Task(
    name,
    f"UCI HAR, LSTM {sizes[0]} and {sizes[1]} ({num_weights} weights), TWAFL's client "
    "data generator.",
    _har,
    network("lstm", "har_lstm", sizes=sizes),
    partition="twafl:min_size=250,max_size=500",
    num_clients=20,
    clients_per_round=2,
    rounds=1000,
    hparams=local_sgd(epochs=5, batch_size=10, learning_rate=0.01, momentum=0.5),
    target_accuracy=0.9,
  )


ROWS: tuple[Task, ...] = (
  Task(
    "mnist_cnn_twafl",
    "MNIST, CNN of TWAFL (582,026 weights), TWAFL's client data generator.",
    tfds("mnist"),
    network("cnn", "twafl"),
    partition="twafl:min_size=1000,max_size=1600",
    num_clients=20,
    clients_per_round=2,
    rounds=200,
    hparams=local_sgd(epochs=5, batch_size=10, learning_rate=0.01, momentum=0.5),
    target_accuracy=0.95,
  ),
  _har_lstm("har_lstm", (20, 10), "5,822"),
  _har_lstm("har_lstm_25_25", (25, 25), "12,702"),
  _har_lstm("har_lstm_100_100", (100, 100), "138,102"),
)
