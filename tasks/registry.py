"""The table of tasks: what is learned, from which data, split how, by which model.

A user's own task is a `Task` in a module of their own: `--task=my_module:my_task`. Rows
import TensorFlow and their data only when they are loaded.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pathlib
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from tasks import partitions
from tff_algos.errors import InputError

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset
  from tff_algos.client_data import ClientDirectory
  from tff_algos.models.functional import ExampleSpec, Model


def _classifier(keras_model: Any, spec: ExampleSpec) -> Model:
  from tff_algos.models import keras

  return keras.from_keras(keras_model, spec)


def _sequence_labeller(keras_model: Any, spec: ExampleSpec) -> Model:
  from tff_algos.models import functional, keras

  return keras.from_keras(
    keras_model,
    spec,
    loss=functional.sequence_cross_entropy,
    metrics=OrderedDict(accuracy=functional.sequence_accuracy),
  )


class Task(NamedTuple):
  """One row.

  Attributes:
    name: What `--task` takes.
    description: A few words for lists.
    load_data: `(data_dir, cache_dir) -> Dataset`; `data_dir` may be None.
    build_keras_model: `(example shape, num_classes) -> tf.keras.Model` giving logits.
    partition: The default split, as `partitions.parse` takes it.
    num_clients: N, the default number of clients; None: as many as the data have groups.
    clients_per_round: The default size of the cohort.
    rounds: The default number of rounds.
    hparams: Defaults for the hyper-parameters of local training.
    target_accuracy: The accuracy whose round is reported, 0..1; None for none.
    make_model: `(Keras model, example spec) -> Model`, what gives it its loss and
      metrics; default: cross-entropy and accuracy of one label for each example.
  """

  name: str
  description: str
  load_data: Callable[[Optional[str], str], Dataset]
  build_keras_model: Callable[[tuple[int, ...], int], Any]
  partition: str
  num_clients: Optional[int]
  clients_per_round: int
  rounds: int
  hparams: Mapping[str, Any]
  target_accuracy: Optional[float] = None
  make_model: Callable[[Any, ExampleSpec], Model] = _classifier


class LoadedTask(NamedTuple):
  """A task ready to run.

  Attributes:
    model: The model with its initial weights.
    clients: The clients' data on disk.
    test_x: Held-out inputs (n, ...).
    test_y: Their labels (n,), or (n, steps) for sequences.
    class_counts: int64 (clients, classes), the labels of each class.
    left_over: How many training examples no client got.
    note: What to say beside every number, such as "JPEG CIFAR-10"; "" for nothing.
    layers: The model's layers in words.
  """

  model: Model
  clients: ClientDirectory
  test_x: np.ndarray
  test_y: np.ndarray
  class_counts: np.ndarray
  left_over: int
  note: str
  layers: Sequence[str]


def _load_digits(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import digits

  del data_dir, cache_dir
  return digits.load()


def _tfds(name: str) -> Callable[[Optional[str], str], Dataset]:
  def load(data_dir: Optional[str], cache_dir: str) -> Dataset:
    from tasks.datasets import tfds_images

    del cache_dir
    return tfds_images.load(name, data_dir)

  return load


def _cifar10(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import picture_folder, tfds_images

  folder = None if data_dir is None else pathlib.Path(data_dir).expanduser()
  # A folder with the pictures' archive gets the loader's word on how to unpack it.
  if folder is None or not ((folder / "train").is_dir() or any(folder.glob("*.tar"))):
    return tfds_images.load("cifar10", data_dir)
  is_jpeg = any((folder / "train").glob("*/*.jp*g"))
  return picture_folder.load(
    folder,
    num_classes=10,
    note="JPEG CIFAR-10" if is_jpeg else "CIFAR-10 from a folder of pictures",
    cache_dir=os.path.join(cache_dir, "pictures"),
  )


def _har(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import har

  del cache_dir
  return har.load(data_dir)


def _shakespeare(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import shakespeare

  del cache_dir
  return shakespeare.load(data_dir)


def _covid_ct(size: int) -> Callable[[Optional[str], str], Dataset]:
  def load(data_dir: Optional[str], cache_dir: str) -> Dataset:
    from tasks.datasets import covid_ct

    del cache_dir
    return covid_ct.load(data_dir, size=size)

  return load


def _landmarks(data_dir: Optional[str], cache_dir: str) -> Dataset:
  from tasks.datasets import landmarks

  return landmarks.load(data_dir, cache_dir=os.path.join(cache_dir, "pictures"))


def _model(
  module: str, function: str, **options: Any
) -> Callable[[tuple[int, ...], int], Any]:
  def build(shape: tuple[int, ...], num_classes: int) -> Any:
    models = importlib.import_module(f"tasks.models.{module}")
    return getattr(models, function)(shape, num_classes, **options)

  return build


def _local(epochs: int, batch_size: int, learning_rate: float, momentum: float = 0.0):
  return dict(
    epochs=epochs,
    batch_size=batch_size,
    learning_rate=learning_rate,
    momentum=momentum,
  )


def _har_lstm(name: str, sizes: tuple[int, int], num_weights: str) -> Task:
  return Task(
    name,
    f"UCI HAR, LSTM {sizes[0]} and {sizes[1]} ({num_weights} weights), TWAFL's client "
    "data generator.",
    _har,
    _model("lstm", "har_lstm", sizes=sizes),
    partition="twafl:min_size=250,max_size=500",
    num_clients=20,
    clients_per_round=2,
    rounds=1000,
    hparams=_local(epochs=5, batch_size=10, learning_rate=0.01, momentum=0.5),
    target_accuracy=0.9,
  )


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
      _local(epochs=20, batch_size=10, learning_rate=0.001), client_weighting="uniform"
    ),
  )


def _fed_gg(name: str, description: str, load_data: Any, build: Any) -> Task:
  """The settings of FedGG, section 4.1 [paper]."""
  return Task(
    name,
    f"{description}, Dirichlet(0.1).",
    load_data,
    build,
    partition="dirichlet:beta=0.1,min_size=10",
    num_clients=10,
    clients_per_round=10,
    rounds=100,
    hparams=_local(epochs=5, batch_size=64, learning_rate=0.01, momentum=0.9),
  )


def _fed_agg(
  name: str,
  description: str,
  load_data: Any,
  build: Any,
  rounds: int = 100,
  batch_size: int = 32,
  learning_rate: float = 0.1,
) -> Task:
  """The settings of FedAgg, section VII-A [paper]; the defaults are CIFAR-10's."""
  return Task(
    name,
    f"{description}, IID.",
    load_data,
    build,
    partition="iid",
    num_clients=100,
    clients_per_round=20,
    rounds=rounds,
    hparams=_local(epochs=3, batch_size=batch_size, learning_rate=learning_rate),
  )


_ROWS = (
  Task(
    "digits_cnn",
    "scikit-learn's 8x8 digits, small CNN, Dirichlet(0.3); offline, the default.",
    _load_digits,
    _model("cnn", "digits"),
    partition="dirichlet:beta=0.3,min_size=10",
    num_clients=20,
    clients_per_round=10,
    rounds=30,
    hparams=_local(epochs=5, batch_size=10, learning_rate=0.05),
    target_accuracy=0.9,
  ),
  _fed_agg(
    "mnist_linear",
    "MNIST, softmax regression (7,850 weights)",
    _tfds("mnist"),
    _model("mlp", "softmax_regression"),
    rounds=30,
    learning_rate=0.01,
  ),
  Task(
    "mnist_2nn",
    "MNIST, two hidden layers of 200 (199,210 weights), IID.",
    _tfds("mnist"),
    _model("mlp", "two_hidden_layers"),
    partition="iid",
    num_clients=100,
    clients_per_round=10,
    rounds=100,
    hparams=_local(epochs=1, batch_size=10, learning_rate=0.1),
    target_accuracy=0.97,
  ),
  Task(
    "mnist_cnn",
    "MNIST, CNN of McMahan et al. (1,663,370 weights), IID.",
    _tfds("mnist"),
    _model("cnn", "mcmahan"),
    partition="iid",
    num_clients=100,
    clients_per_round=10,
    rounds=50,
    hparams=_local(epochs=5, batch_size=10, learning_rate=0.1),
    target_accuracy=0.99,
  ),
  Task(
    "mnist_cnn_twafl",
    "MNIST, CNN of TWAFL (582,026 weights), TWAFL's client data generator.",
    _tfds("mnist"),
    _model("cnn", "twafl"),
    partition="twafl:min_size=1000,max_size=1600",
    num_clients=20,
    clients_per_round=2,
    rounds=200,
    hparams=_local(epochs=5, batch_size=10, learning_rate=0.01, momentum=0.5),
    target_accuracy=0.95,
  ),
  _har_lstm("har_lstm", (20, 10), "5,822"),
  _har_lstm("har_lstm_25_25", (25, 25), "12,702"),
  _har_lstm("har_lstm_100_100", (100, 100), "138,102"),
  Task(
    "mnist_two_class",
    "MNIST, CNN of FedReg (228,010 weights), 5,000 clients of two classes.",
    _tfds("mnist"),
    _model("cnn", "fed_reg"),
    partition="power_law:classes_per_client=2",
    num_clients=5000,
    clients_per_round=10,
    rounds=500,
    hparams=dict(
      _local(epochs=40, batch_size=10, learning_rate=0.1), client_weighting="uniform"
    ),
  ),
  Task(
    "mnist_one_class",
    "MNIST, CNN of FedReg (228,010 weights), 5,000 clients of one class.",
    _tfds("mnist"),
    _model("cnn", "fed_reg"),
    partition="power_law:classes_per_client=1",
    num_clients=5000,
    clients_per_round=10,
    rounds=500,
    hparams=dict(
      _local(epochs=20, batch_size=10, learning_rate=0.1), client_weighting="uniform"
    ),
  ),
  Task(
    "emnist_digits_one_class",
    "EMNIST digits, CNN of FedReg (228,010 weights), 10,000 clients of one class.",
    _tfds("emnist/digits"),
    _model("cnn", "fed_reg"),
    partition="shards:shards_per_client=1",
    num_clients=10_000,
    clients_per_round=20,
    rounds=500,
    hparams=dict(
      _local(epochs=20, batch_size=24, learning_rate=0.2), client_weighting="uniform"
    ),
  ),
  _fed_gg(
    "svhn_mlp",
    "SVHN, a hidden layer of 512 (1,578,506 weights)",
    _tfds("svhn_cropped"),
    _model("mlp", "one_hidden_layer"),
  ),
  _fed_gg(
    "cifar10_lenet",
    "CIFAR-10 (TFDS or a folder of pictures), LeNet (62,006 weights)",
    _cifar10,
    _model("cnn", "lenet"),
  ),
  _fed_gg(
    "cifar10_lenet_augmented",
    "CIFAR-10 shifted and mirrored in training, LeNet (62,006 weights)",
    _cifar10,
    _model("cnn", "lenet_augmented"),
  ),
  _fed_gg(
    "cifar100_vgg16",
    "CIFAR-100, VGG-16 for small pictures (14,774,436 weights)",
    _tfds("cifar100"),
    _model("vgg", "vgg16"),
  ),
  _fed_agg(
    "emnist_letters_lenet5",
    "EMNIST letters, LeNet-5 (121,742 weights)",
    _tfds("emnist/letters"),
    _model("cnn", "lenet5"),
    rounds=50,
    batch_size=64,
  ),
  _fed_agg(
    "cifar100_vgg11",
    "CIFAR-100, VGG-11 for small pictures (9,277,284 weights)",
    _tfds("cifar100"),
    _model("vgg", "vgg11"),
    rounds=500,
    batch_size=64,
    learning_rate=0.01,
  ),
  _fed_agg(
    "cifar10_cnn3",
    "CIFAR-10, CNN of FedAgg (586,250 weights)",
    _cifar10,
    _model("cnn", "cnn3"),
  ),
  _fed_agg(
    "cifar10_lenet5",
    "CIFAR-10, LeNet-5 of FedAgg (121,182 weights)",
    _cifar10,
    _model("cnn", "lenet5"),
  ),
  _fed_agg(
    "cifar10_alexnet",
    "CIFAR-10, AlexNet for small pictures (2,472,266 weights)",
    _cifar10,
    _model("cnn", "alexnet"),
  ),
  _fed_agg(
    "cifar10_vgg11",
    "CIFAR-10, VGG-11 for small pictures (9,231,114 weights)",
    _cifar10,
    _model("vgg", "vgg11"),
  ),
  _fed_agg(
    "cifar10_resnet18",
    "CIFAR-10, ResNet-18 for small pictures (11,173,962 weights)",
    _cifar10,
    _model("resnet", "resnet18"),
  ),
  _fed_agg(
    "cifar10_googlenet",
    "CIFAR-10, GoogLeNet for small pictures (6,166,250 weights)",
    _cifar10,
    _model("googlenet", "googlenet"),
  ),
  _fed_agg(
    "cifar10_densenet",
    "CIFAR-10, DenseNet for small pictures (1,000,618 weights)",
    _cifar10,
    _model("densenet", "densenet"),
  ),
  Task(
    "cifar10_uniform_resnet9",
    "CIFAR-10, ResNet-9 with Fixup (6,568,673 weights), 10,000 clients of 5, IID.",
    _cifar10,
    _model("resnet", "resnet9"),
    partition="iid",
    num_clients=10_000,
    clients_per_round=100,
    rounds=240,
    hparams=_local(epochs=30, batch_size=5, learning_rate=0.05),
  ),
  Task(
    "cifar10_one_class_resnet9",
    "CIFAR-10, ResNet-9 with Fixup (6,568,673 weights), 10,000 clients of one class.",
    _cifar10,
    _model("resnet", "resnet9"),
    partition="shards:shards_per_client=1",
    num_clients=10_000,
    clients_per_round=100,
    rounds=240,
    hparams=_local(epochs=20, batch_size=5, learning_rate=0.05),
  ),
  Task(
    "cifar100_resnet9",
    "CIFAR-100, ResNet-9 with Fixup (6,614,843 weights), 50,000 clients of one picture.",
    _tfds("cifar100"),
    _model("resnet", "resnet9"),
    partition="iid",
    num_clients=50_000,
    clients_per_round=100,
    rounds=1200,
    hparams=_local(epochs=10, batch_size=1, learning_rate=0.05),
  ),
  Task(
    "cifar100_vit",
    "CIFAR-100, the pretrained ViT of $TFF_ALGOS_VIT_WEIGHTS, 50,000 clients of one "
    "picture.",
    _tfds("cifar100"),
    _model("vit", "pretrained"),
    partition="iid",
    num_clients=50_000,
    clients_per_round=500,
    rounds=100,
    hparams=_local(epochs=5, batch_size=1, learning_rate=0.1),
  ),
  Task(
    "shakespeare_lstm",
    "Shakespeare's plays, two LSTM 256 (820,522 weights), a client for each role.",
    _shakespeare,
    _model("lstm", "character_lstm"),
    partition="natural",
    num_clients=None,
    clients_per_round=124,
    rounds=100,
    # The rate is what the slides print for B = 10 and C = 0.1; the cohort is a tenth.
    hparams=_local(epochs=5, batch_size=10, learning_rate=1.47),
    target_accuracy=0.54,
    make_model=_sequence_labeller,
  ),
  _covid_ct_row(
    "covid_ct_densenet121", "DenseNet-121", _model("densenet", "densenet121"), 224
  ),
  # Of 128 by 128 [code].
  _covid_ct_row("covid_ct_cnn10", "nine convolutions", _model("cnn", "cnn10"), 128),
  Task(
    "landmarks_densenet121",
    "Landmarks-User-160k, DenseNet-121, a client for each of 1,262 users.",
    _landmarks,
    _model("densenet", "densenet121"),
    partition="natural",
    num_clients=None,
    clients_per_round=100,
    rounds=2000,
    # The batch size is the public program's; the paper prints none.
    hparams=dict(
      _local(epochs=40, batch_size=30, learning_rate=0.1), client_weighting="uniform"
    ),
  ),
)

TASKS: Mapping[str, Task] = {row.name: row for row in _ROWS}


def get(name: str) -> Task:
  """The row of a task, or the `Task` that `module:attribute` names.

  Raises:
    InputError: There is none of this name; the message gives the nearest.
  """
  if ":" in name:
    return _import_task(name)
  if name not in TASKS:
    nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0)[0]
    raise InputError(
      f"There is no task {name!r}: did you mean {nearest!r}? "
      f"The tasks are {', '.join(TASKS)}, or module:attribute for one of your own."
    )
  return TASKS[name]


def _import_task(name: str) -> Task:
  module, _, attribute = name.partition(":")
  try:
    task = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise InputError(f"The task {name!r} cannot be imported: {error}.") from error
  if not isinstance(task, Task):
    raise InputError(
      f"{name!r} is a {type(task).__name__}; a task of your own must be a "
      "tasks.registry.Task."
    )
  return task


def load(
  task: Task,
  *,
  data_dir: Optional[str],
  cache_dir: str,
  partition: str,
  num_clients: Optional[int],
  partition_seed: int,
  model_seed: int,
) -> LoadedTask:
  """Loads data and model and puts the clients' examples on disk, or finds them there.

  Args:
    task: The task.
    data_dir: Where the data set is; None: where the loader looks by itself.
    cache_dir: Where client data are kept; a name derived from all that they depend on
      lets later runs find them.
    partition: The split, as `partitions.parse` takes it.
    num_clients: N, the number of clients; None: as many as the data have groups.
    partition_seed: The split's seed.
    model_seed: The seed of the initial weights.

  Raises:
    DataMissingError: The data are not on this machine; the message says how to get them.
    InputError: The split, the data or the model cannot be used; the message says why.
  """
  import tensorflow as tf

  from tasks.datasets import dataset as dataset_lib
  from tasks.models import layers
  from tff_algos.models import functional, keras

  data = dataset_lib.check(task.load_data(data_dir, cache_dir))
  split = split_over_clients(data, partition, num_clients, partition_seed)
  spec = functional.ExampleSpec(
    x=tf.TensorSpec(data.train_x.shape[1:], data.train_x.dtype),
    y=tf.TensorSpec(data.train_y.shape[1:], tf.int32),
  )
  keras_model = task.build_keras_model(data.train_x.shape[1:], data.num_classes)
  keras.reinitialize(keras_model, model_seed)
  model = task.make_model(keras_model, spec)
  _check_outputs(model, data)
  return LoadedTask(
    model=model,
    clients=_put_on_disk(task, data, split, spec, cache_dir),
    test_x=data.test_x,
    test_y=data.test_y,
    class_counts=partitions.class_counts(split, data.train_y, data.num_classes),
    left_over=len(split.left_over),
    note=data.note,
    layers=layers.describe_layers(keras_model),
  )


def split_over_clients(
  data: Dataset, partition: str, num_clients: Optional[int], seed: int
) -> partitions.Partition:
  """Splits the training examples; arguments and errors as of `load`."""
  if num_clients is None:
    num_clients = _count_groups(data)
  return partitions.partition(
    partition, data.train_y, num_clients, seed, groups=data.train_groups
  )


def _count_groups(data: Dataset) -> int:
  if data.train_groups is None:
    raise InputError(
      "These data do not say from whom each example is, so give the number of clients, "
      "num_clients."
    )
  return int(data.train_groups.max()) + 1


def _check_outputs(model: Model, data: Dataset) -> None:
  one = model.preprocess(data.test_x[:1])
  shape = model.predict(model.initial_weights, one, False, np.zeros(2, np.int32)).shape
  steps = data.train_y.shape[1:]
  if shape.rank != len(steps) + 2 or tuple(shape[1:-1]) != steps:
    at_each = f", at each of {steps[0]} steps" if steps else ""
    raise InputError(
      f"The task's model gives predictions of shape {tuple(shape[1:])} for an example: "
      f"it must give one number for each class{at_each}."
    )
  if shape[-1] < data.num_classes:
    raise InputError(
      f"The data have {data.num_classes} classes, but the task's model gives {shape[-1]} "
      "numbers for an example: give its last layer one output for each class."
    )


def _put_on_disk(task, data, split, spec, cache_dir: str) -> ClientDirectory:
  from tff_algos import client_data

  parts = (client_data.FORMAT, data.train_x, data.train_y, *split.clients)
  name = client_data.fingerprint(*parts)
  folder = os.path.join(cache_dir, "clients", f"{task.name.replace(':', '_')}-{name}")
  if os.path.isdir(folder):
    return client_data.ClientDirectory(folder)
  clients = {
    f"client_{i}": (data.train_x[rows], data.train_y[rows])
    for i, rows in enumerate(split.clients)
  }
  os.makedirs(os.path.dirname(folder), exist_ok=True)
  # Under another name first: a start cut short, or two at once, must not be half found.
  unfinished = tempfile.mkdtemp(prefix="unfinished-", dir=os.path.dirname(folder))
  try:
    client_data.write_clients(unfinished, clients, spec)
    os.replace(unfinished, folder)
  except OSError:
    if not os.path.isdir(folder):
      raise
  finally:
    shutil.rmtree(unfinished, ignore_errors=True)
  return client_data.ClientDirectory(folder)
