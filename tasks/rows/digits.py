"""The default task: scikit-learn's digits, which need no download."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from tasks.rows.parts import local_sgd, network
from tasks.task import Task

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset


def _load(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import digits

  del data_dir, cache_dir
  return digits.load()


ROWS: tuple[Task, ...] = (
  Task(
    "digits_cnn",
    "scikit-learn's 8x8 digits, small CNN, Dirichlet(0.3); offline, the default.",
    _load,
    network("cnn", "digits"),
    partition="dirichlet:beta=0.3,min_size=10",
    num_clients=20,
    clients_per_round=10,
    rounds=30,
    hparams=local_sgd(epochs=5, batch_size=10, learning_rate=0.05),
    target_accuracy=0.9,
    reads_data_dir=False,
  ),
)
