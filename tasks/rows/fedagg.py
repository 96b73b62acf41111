"""The tasks of FedAgg, section VII-A."""

from __future__ import annotations

from typing import Any

from tasks.rows.parts import cifar, local_sgd, network, tfds
from tasks.task import Task


def _row(
  name: str,
  description: str,
  load_data: Any,
  build: Any,
  rounds: int = 100,
  batch_size: int = 32,
  learning_rate: float = 0.1,
) -> Task:
  """Its settings [paper]; the defaults are CIFAR-10's."""
  return Task(
    name,
    f"{description}, IID.",
    load_data,
    build,
    partition="iid",
    num_clients=100,
    clients_per_round=20,
    rounds=rounds,
    hparams=local_sgd(epochs=3, batch_size=batch_size, learning_rate=learning_rate),
  )


ROWS: tuple[Task, ...] = (
  _row(
    "mnist_linear",
    "MNIST, softmax regression (7,850 weights)",
    tfds("mnist"),
    network("mlp", "softmax_regression"),
    rounds=30,
    learning_rate=0.01,
  ),
  _row(
    "emnist_letters_lenet5",
    "EMNIST letters, LeNet-5 (121,742 weights)",
    tfds("emnist/letters"),
    network("cnn", "lenet5"),
    rounds=50,
    batch_size=64,
  ),
  _row(
    "cifar10_cnn3",
    "CIFAR-10, CNN of FedAgg (586,250 weights)",
    cifar(10),
    network("cnn", "cnn3"),
  ),
  _row(
    "cifar10_lenet5",
    "CIFAR-10, LeNet-5 of FedAgg (121,182 weights)",
    cifar(10),
    network("cnn", "lenet5"),
  ),
  _row(
    "cifar10_alexnet",
    "CIFAR-10, AlexNet for small pictures (2,472,266 weights)",
    cifar(10),
    network("cnn", "alexnet"),
  ),
  _row(
    "cifar10_vgg11",
    "CIFAR-10, VGG-11 for small pictures (9,231,114 weights)",
    cifar(10),
    network("vgg", "vgg11"),
  ),
  _row(
    "cifar10_resnet18",
    "CIFAR-10, ResNet-18 for small pictures (11,173,962 weights)",
    cifar(10),
    network("resnet", "resnet18"),
  ),
  _row(
    "cifar10_googlenet",
    "CIFAR-10, GoogLeNet for small pictures (6,166,250 weights)",
    cifar(10),
    network("googlenet", "googlenet"),
  ),
  _row(
    "cifar10_densenet",
    "CIFAR-10, DenseNet for small pictures (1,000,618 weights)",
    cifar(10),
    network("densenet", "densenet"),
  ),
  _row(
    "cifar100_vgg11",
    "CIFAR-100, VGG-11 for small pictures (9,277,284 weights)",
    cifar(100),
    network("vgg", "vgg11"),
    rounds=500,
    batch_size=64,
    learning_rate=0.01,
  ),
)
