"""The tasks of FedReg: Xu et al., ICLR 2022."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from tasks.rows.parts import cifar, local_sgd, network, tfds
from tasks.task import Task

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset
  from tff_algos.models.functional import ExampleSpec, Model


def _covid_ct(size: int) -> Callable[[Optional[str], str], Dataset]:
  def load(data_dir: Optional[str], cache_dir: str) -> Dataset:
    from tasks.datasets import covid_ct

    del cache_dir
    return covid_ct.load(data_dir, size=size)

  return load


def _as_read(colours: str) -> Callable[[Any, ExampleSpec], Model]:
  """As the authors' program reads a data set's pictures [code]."""

  def make_model(keras_model: Any, spec: ExampleSpec) -> Model:
    from tasks.models import augmentation

    return augmentation.standardized_and_shifted(
      keras_model, spec, getattr(augmentation, colours)
    )

  return make_model


def _landmarks(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import landmarks

  return landmarks.load(data_dir, cache_dir=os.path.join(cache_dir, "pictures"))


def _covid_ct_row(name: str, words: str, build: Callable[..., Any], size: int) -> Task:
  return Task(
    name,
    f"COVID-CT, {words}, a client for each source of COVID pictures.",
    _covid_ct(size),
    build,
    partition="natural",
    num_clients=None,
    clients_per_round=10,
    rounds=10,
    hparams=dict(
      local_sgd(epochs=20, batch_size=10, learning_rate=0.001), client_weighting="uniform"
    ),
  )


ROWS: tuple[Task, ...] = (
  Task(
    "mnist_one_class",
    "MNIST, CNN of FedReg (228,010 weights), 5,000 clients of one class.",
    tfds("mnist"),
    network("cnn", "fed_reg"),
    partition="power_law:classes_per_client=1",
    num_clients=5000,
    clients_per_round=10,
    rounds=500,
    hparams=dict(
      local_sgd(epochs=20, batch_size=10, learning_rate=0.1), client_weighting="uniform"
    ),
  ),
  Task(
    "mnist_two_class",
    "MNIST, CNN of FedReg (228,010 weights), 5,000 clients of two classes.",
    tfds("mnist"),
    network("cnn", "fed_reg"),
    partition="power_law:classes_per_client=2",
    num_clients=5000,
    clients_per_round=10,
    rounds=500,
    hparams=dict(
      local_sgd(epochs=40, batch_size=10, learning_rate=0.1), client_weighting="uniform"
    ),
  ),
  Task(
    "emnist_digits_one_class",
    "EMNIST digits, CNN of FedReg (228,010 weights), 10,000 clients of one class.",
    tfds("emnist/digits"),
    network("cnn", "fed_reg"),
    partition="shards:shards_per_client=1",
    num_clients=10_000,
    clients_per_round=20,
    rounds=500,
    hparams=dict(
      local_sgd(epochs=20, batch_size=24, learning_rate=0.2), client_weighting="uniform"
    ),
  ),
  Task(
    "cifar10_uniform_resnet9",
    "CIFAR-10, ResNet-9 with Fixup (6,568,673 weights), 10,000 clients of 5, IID.",
    cifar(10),
    network("resnet", "resnet9"),
    partition="iid",
    num_clients=10_000,
    clients_per_round=100,
    rounds=240,
    hparams=local_sgd(epochs=30, batch_size=5, learning_rate=0.05),
    make_model=_as_read("CIFAR10"),
  ),
  Task(
    "cifar10_one_class_resnet9",
    "CIFAR-10, ResNet-9 with Fixup (6,568,673 weights), 10,000 clients of one class.",
    cifar(10),
    network("resnet", "resnet9"),
    partition="shards:shards_per_client=1",
    num_clients=10_000,
    clients_per_round=100,
    rounds=240,
    hparams=local_sgd(epochs=20, batch_size=5, learning_rate=0.05),
    make_model=_as_read("CIFAR10"),
  ),
  Task(
    "cifar100_resnet9",
    "CIFAR-100, ResNet-9 with Fixup (6,614,843 weights), 50,000 clients of one picture.",
    cifar(100),
    network("resnet", "resnet9"),
    partition="iid",
    num_clients=50_000,
    clients_per_round=100,
    rounds=1200,
    hparams=local_sgd(epochs=10, batch_size=1, learning_rate=0.05),
    make_model=_as_read("CIFAR100"),
  ),
  Task(
    "cifar100_vit",
    "CIFAR-100, the pretrained ViT of $TFF_ALGOS_VIT_WEIGHTS, 50,000 clients of one "
    "picture.",
    cifar(100),
    network("vit", "pretrained"),
    partition="iid",
    num_clients=50_000,
    clients_per_round=500,
    rounds=100,
    hparams=local_sgd(epochs=5, batch_size=1, learning_rate=0.1),
  ),
  _covid_ct_row(
    "covid_ct_densenet121", "DenseNet-121", network("densenet", "densenet121"), 224
  ),
  # Of 128 by 128 [code].
  _covid_ct_row("covid_ct_cnn10", "nine convolutions", network("cnn", "cnn10"), 128),
  Task(
    "landmarks_densenet121",
    "Landmarks-User-160k, DenseNet-121, a client for each of 1,262 users.",
    _landmarks,
    network("densenet", "densenet121"),
    partition="natural",
    num_clients=None,
    clients_per_round=100,
    rounds=2000,
    # The batch size is the public program's; the paper prints none.
    hparams=dict(
      local_sgd(epochs=40, batch_size=30, learning_rate=0.1), client_weighting="uniform"
    ),
  ),
)
