"""The workloads of the benchmark: a model, and clients with synthetic examples."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from tff_algos.errors import InputError

if TYPE_CHECKING:
  from tff_algos.client_data import ClientDirectory
  from tff_algos.models.functional import ExampleSpec, Model


class Data(NamedTuple):
  """What synthetic examples look like.

  Attributes:
    shape: The shape of an input.
    dtype: Its dtype: uint8 for pictures, or float32.
    num_classes: How many labels there are.
  """

  shape: tuple[int, ...]
  dtype: str
  num_classes: int

  def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of `n` examples."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(self.num_classes, size=n, dtype=np.int32)
    if self.dtype == "uint8":
      return draw.integers(256, size=(n, *self.shape), dtype=np.uint8), labels
    return draw.standard_normal((n, *self.shape), np.float32), labels


class Run(NamedTuple):
  """A whole run, of which a few rounds are measured.

  Attributes:
    rounds: How many it has.
    eval_every: Its first round is evaluated, and each that comes as many rounds later.
    num_test_examples: On how many.
  """

  rounds: int
  eval_every: int
  num_test_examples: int

  @property
  def num_evaluations(self) -> int:
    """How often it is evaluated."""
    return len(range(0, self.rounds, self.eval_every))


class Workload(NamedTuple):
  """One row.

  Attributes:
    name: What `--workload` takes.
    description: A few words for lists.
    network: Module of `tasks.models` and function in it, such as "cnn.mcmahan".
    data: The kind of examples.
    num_clients: How many clients there are.
    num_examples: How many examples each of them has.
    batch_size: Examples in a local step.
    learning_rate: Of a local step.
    clients_per_round: How many are drawn for each round; None: all take part.
    run: The run whose time is told from the rounds; None: nothing is evaluated.
    width: Of the network's hidden layer; None: as the network's function has it.
  """

  name: str
  description: str
  network: str
  data: Data
  num_clients: int
  num_examples: int
  batch_size: int
  learning_rate: float = 0.05
  clients_per_round: Optional[int] = None
  run: Optional[Run] = None
  width: Optional[int] = None

  def cohort(self, round_num: int) -> Sequence[int]:
    """Who takes part in a round, as places in `clients`; the same in every process."""
    if self.clients_per_round is None:
      return range(self.num_clients)
    from tff_algos.simulation import cohorts

    return cohorts.uniform_cohort(self.num_clients, self.clients_per_round, 0, round_num)

  def model(self, mixed_precision: bool = False) -> Model:
    """The model; its initial weights are the same in every process.

    Args:
      mixed_precision: Whether it computes in bfloat16.
    """
    import tensorflow as tf

    from tasks.models import precision
    from tff_algos.models import functional, keras

    module, function = self.network.split(".")
    build = getattr(importlib.import_module(f"tasks.models.{module}"), function)
    size = {} if self.width is None else {"width": self.width}
    with precision.policy(mixed_precision):
      keras_model = build(self.data.shape, self.data.num_classes, **size)
    keras.reinitialize(keras_model, 0)
    spec = functional.ExampleSpec(
      tf.TensorSpec(self.data.shape, self.data.dtype), tf.TensorSpec([], tf.int32)
    )
    return keras.from_keras(keras_model, spec)

  def clients(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Client to (inputs, labels), drawn anew whenever one is looked up."""
    return _Clients(self)

  def test_examples(self) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, labels) to evaluate on, which no client has; none without a run."""
    n = self.run.num_test_examples if self.run else 0
    return self.data.draw(n, seed=self.num_clients)

  def client_files(self, folder: str, spec: ExampleSpec) -> ClientDirectory:
    """The clients on disk; written if the folder does not hold them yet."""
    from tff_algos import client_data

    try:
      return client_data.ClientDirectory(folder)
    except FileNotFoundError:
      return client_data.write_clients(folder, self.clients(), spec)


class _Clients(Mapping):
  """Keeps no examples, so that memory is held only by who uses them."""

  def __init__(self, workload: Workload):
    self._workload = workload

  def __len__(self) -> int:
    return self._workload.num_clients

  def __iter__(self) -> Iterator[str]:
    return map(str, range(len(self)))

  def __getitem__(self, client: str) -> tuple[np.ndarray, np.ndarray]:
    return self._workload.data.draw(self._workload.num_examples, seed=int(client))


_MNIST = Data((28, 28, 1), "uint8", num_classes=10)
_CIFAR = Data((32, 32, 3), "uint8", num_classes=10)
_HAR = Data((128, 9), "float32", num_classes=6)

_ROWS = (
  Workload(
    "A",
    "MNIST CNN (1,663,370 weights), 10 clients x 600 examples, batch 10.",
    "cnn.mcmahan",
    _MNIST,
    num_clients=10,
    num_examples=600,
    batch_size=10,
  ),
  Workload(
    "B",
    "CIFAR-10 LeNet (62,006 weights), 10 clients x 5,000 examples, batch 64.",
    "cnn.lenet",
    _CIFAR,
    num_clients=10,
    num_examples=5000,
    batch_size=64,
  ),
  Workload(
    "C",
    "MNIST softmax regression (7,850 weights), 1,000 clients x 20 examples, batch 10.",
    "mlp.softmax_regression",
    _MNIST,
    num_clients=1000,
    num_examples=20,
    batch_size=10,
  ),
  Workload(
    "D",
    "MNIST CNN (1,663,370 weights), 100 clients x 5 examples, batch 10.",
    "cnn.mcmahan",
    _MNIST,
    num_clients=100,
    num_examples=5,
    batch_size=10,
  ),
  Workload(
    "E",
    "Two LSTMs on HAR windows (5,822 weights), 2 clients x 375 examples, batch 10.",
    "lstm.har_lstm",
    _HAR,
    num_clients=2,
    num_examples=375,
    batch_size=10,
  ),
  Workload(
    "F",
    "CIFAR-10 ResNet-9 (6,568,673 weights), 4 clients x 60 examples, batch 30.",
    "resnet.resnet9",
    _CIFAR,
    num_clients=4,
    num_examples=60,
    batch_size=30,
  ),
  Workload(
    # benchmarks/image_classification/configs/baseline.yaml of pfl-research [code].
    "pfl_cifar10",
    "CIFAR-10 CNN (1,626,442 weights), 50 of 1,000 clients x 50 examples, batch 10.",
    "cnn.pfl_research",
    _CIFAR,
    num_clients=1000,
    num_examples=50,
    batch_size=10,
    learning_rate=0.1,
    clients_per_round=50,
    run=Run(rounds=1500, eval_every=10, num_test_examples=10_000),
  ),
  Workload(
    "idle",
    "MNIST softmax regression, 10 clients x 1 example: what a round costs by itself.",
    "mlp.softmax_regression",
    _MNIST,
    num_clients=10,
    num_examples=1,
    batch_size=1,
  ),
  Workload(
    "smoke",
    "MNIST softmax regression, 3 clients x 12 examples, batch 5: for tests.",
    "mlp.softmax_regression",
    _MNIST,
    num_clients=3,
    num_examples=12,
    batch_size=5,
  ),
)

# Each multiplies one of these by ten, and leaves the others as they are.
_GROWING = Workload(
  "",
  "",
  "mlp.one_hidden_layer",
  _MNIST,
  num_clients=10,
  num_examples=20,
  batch_size=10,
  width=126,
)


def _growing(**grown: Any) -> Workload:
  row = _GROWING._replace(**grown)
  of_round = "" if row.clients_per_round is None else f"{row.clients_per_round} of "
  return row._replace(
    description=f"MNIST, one hidden layer of {row.width} units: {of_round}"
    f"{row.num_clients:,} clients x {row.num_examples} examples."
  )


# 795 weights for each unit of the hidden layer, and 10 more.
_GROWTH = (
  *(_growing(name=f"clients_{n}", num_clients=n) for n in (10, 100, 1000)),
  *(
    _growing(name=f"population_{n}", num_clients=n, num_examples=5, clients_per_round=100)
    for n in (1000, 10_000, 100_000, 1_000_000)
  ),
  *(
    _growing(name=f"weights_{n}", width=round(n / 795))
    for n in (10_000, 100_000, 1_000_000, 10_000_000)
  ),
)

WORKLOADS: Mapping[str, Workload] = {row.name: row for row in (*_ROWS, *_GROWTH)}


def get(name: str) -> Workload:
  """The row of a workload.

  Raises:
    InputError: There is none of this name.
  """
  if name not in WORKLOADS:
    raise InputError(
      f"There is no workload {name!r}: choose from {', '.join(WORKLOADS)}."
    )
  return WORKLOADS[name]
