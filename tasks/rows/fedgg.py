"""The tasks of FedGG: "Global-Update-Guided Federated Learning", section 4.1."""

from __future__ import annotations

from typing import Any

from tasks.rows.parts import cifar, local_sgd, network, tfds
from tasks.task import Task


def _row(name: str, description: str, load_data: Any, build: Any) -> Task:
  """Its settings are the same for all data sets [paper]."""
  return Task(
    name,
    f"{description}, Dirichlet(0.1).",
    load_data,
    build,
    partition="dirichlet:beta=0.1,min_size=10",
    num_clients=10,
    clients_per_round=10,
    rounds=100,
    hparams=local_sgd(epochs=5, batch_size=64, learning_rate=0.01, momentum=0.9),
  )


ROWS: tuple[Task, ...] = (
  _row(
    "svhn_mlp",
    "SVHN, a hidden layer of 512 (1,578,506 weights)",
    tfds("svhn_cropped"),
    network("mlp", "one_hidden_layer"),
  ),
  _row(
    "cifar10_lenet",
    "CIFAR-10 (TFDS or a folder of pictures), LeNet (62,006 weights)",
    cifar(10),
    network("cnn", "lenet"),
  ),
  _row(
    "cifar10_lenet_augmented",
    "CIFAR-10 shifted and mirrored in training, LeNet (62,006 weights)",
    cifar(10),
    network("cnn", "lenet_augmented"),
  ),
  _row(
    "cifar100_vgg16",
    "CIFAR-100, VGG-16 for small pictures (14,774,436 weights)",
    cifar(100),
    network("vgg", "vgg16"),
  ),
)
