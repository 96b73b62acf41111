"""Loading a task: its data, split over clients and put on disk, and its model."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tasks.task import LoadedTask, Task
from tff_algos import durable_files, partitions
from tff_algos.errors import DamagedError, InputError, InputWarning

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset
  from tff_algos.client_data import ClientDirectory
  from tff_algos.models.functional import ExampleSpec, Model


def load(
  task: Task,
  *,
  data_dir: Optional[str],
  cache_dir: str,
  partition: str,
  num_clients: Optional[int],
  partition_seed: int,
  model_seed: int,
  loss_epsilon: float = 0.0,
  mixed_precision: bool = False,
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
    model_seed: The seed of the initial weights, where the task has none of its own.
    loss_epsilon: As of `make_model`.
    mixed_precision: Whether the network is built under Keras's policy "mixed_bfloat16".

  Warns:
    InputWarning: No client has an example of a class that is tested.

  Raises:
    DataMissingError: The data are not on this machine; the message says how to get them.
    InputError: The split, the data, the model or the task's name cannot be used; the
      message says why.
  """
  import tensorflow as tf

  from tasks.datasets import dataset as dataset_lib
  from tasks.models import layers
  from tff_algos.models import functional, keras

  _check_name(task.name)
  with reading(task):
    data = dataset_lib.check(task.load_data(data_dir, cache_dir))
    split = split_over_clients(data, partition, num_clients, partition_seed)
    spec = functional.ExampleSpec(
      x=tf.TensorSpec(data.train_x.shape[1:], data.train_x.dtype),
      y=tf.TensorSpec(data.train_y.shape[1:], data.train_y.dtype),
    )
    keras_model = _build(task, data, mixed_precision)
    if not task.is_pretrained:
      keras.reinitialize(keras_model, model_seed)
    model = _make_model(task, keras_model, spec, loss_epsilon)
    _check_outputs(model, data)
    counts = None
    if data.num_classes is not None:
      counts = partitions.class_counts(split, data.train_y, data.num_classes)
      _warn_of_absent(counts, data)
    return LoadedTask(
      model=model,
      clients=_put_on_disk(task, data, split, spec, cache_dir),
      test_x=data.test_x,
      test_y=data.test_y,
      class_counts=counts,
      left_over=len(split.left_over),
      note=data.note,
      layers=layers.describe_layers(keras_model),
    )


@contextlib.contextmanager
def reading(task: Task) -> Iterator[None]:
  """Has what is wrong with the user's files be one sentence, an `InputError`."""
  try:
    yield
  except OSError as error:
    # A file in the place of a folder is in a path that the user has given.
    if error.errno in durable_files.DISK_ERRORS and error.errno != errno.ENOTDIR:
      raise
    # What a loader or a library raises may be no error of the system.
    said = " ".join(str(error.strerror or error).split()) or type(error).__name__
    place = error.filename or f"the task {task.name}"
    raise InputError(f"{place}: {said.rstrip('.')}.") from error


def _build(task: Task, data: Dataset, mixed_precision: bool) -> Any:
  """The task's network, or what is none, which `from_keras` says."""
  import tensorflow as tf

  from tasks.models import precision
  from tff_algos.models import keras_exchange

  if task.build_keras_model is None:
    raise InputError(f"The task {task.name} has no build_keras_model: give it one.")
  with precision.policy(mixed_precision):
    keras_model = task.build_keras_model(data.train_x.shape[1:], data.num_classes)
  if not mixed_precision or not isinstance(keras_model, tf.keras.Model):
    return keras_model
  slots = keras_exchange.find_slots(keras_exchange.layers_of(keras_model))
  if not any(slot.cast_to for places in slots.values() for slot in places):
    raise InputError(
      f"mixed_precision changes nothing of {task.name}, whose layers have a precision of "
      "their own: leave it out."
    )
  return keras_model


def _make_model(
  task: Task, keras_model: Any, spec: ExampleSpec, loss_epsilon: float
) -> Model:
  """A Keras model with the task's loss and metrics.

  Args:
    task: The task.
    keras_model: The model.
    spec: Of its examples.
    loss_epsilon: Of `functional.FadingCrossEntropy`, which replaces cross-entropy; 0:
      the loss is the task's.

  Raises:
    InputError: It is more than 0, and the task's loss is no cross-entropy of a label for
      each example.
  """
  from tff_algos.models import functional

  model = task.make_model(keras_model, spec)
  if not isinstance(model, functional.Model):
    raise InputError(
      f"make_model of the task {task.name} must return a tff_algos.Model; it returns a "
      f"{type(model).__name__}."
    )
  if not loss_epsilon:
    return model
  losses, targets = model.example_losses, model.soft_targets
  plain = functional.sparse_cross_entropy, functional.soft_cross_entropy
  if targets is None or (losses, targets.losses) != plain:
    raise InputError(
      "loss_epsilon changes the cross-entropy of one label for each example, and the "
      f"loss of {task.name} is another: leave it out."
    )
  return dataclasses.replace(
    model,
    example_losses=functional.FadingCrossEntropy(loss_epsilon),
    soft_targets=None,
  )


def _check_name(name: str) -> None:
  """Raises `InputError` for what is no part of a file's name: it may lead elsewhere."""
  if not name or os.path.basename(name) != name or not name.isprintable():
    raise InputError(
      f"The task's name is {name!r}, which no folder's name can begin with: give it one "
      "without separators."
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
  import tensorflow as tf

  from tff_algos.models import functional

  seed = np.zeros(2, np.int32)
  try:
    with tf.device("CPU"):  # A GPU gives zeros for what an embedding lacks, and no error.
      examples = model.preprocess(_telling_examples(data))
      found = model.predict(model.initial_weights, examples, False, seed)
  except tf.errors.InvalidArgumentError as error:
    beyond = re.search(r"= (-?\d+) is not in \[0, (\d+)\)", str(error))
    if beyond is None:
      raise
    raise InputError(
      f"The task's model embeds numbers of 0 to below {beyond[2]}, but its data have "
      f"{beyond[1]}: give the Embedding a larger input_dim, or number the inputs from 0."
    ) from error
  if data.num_classes is None or tf.nest.is_nested(found):
    return  # Of which a loss of the task's own knows the meaning.
  shape = found.shape
  steps = data.train_y.shape[1:]
  is_one = tuple(shape[1:]) in (steps, (*steps, 1))
  if is_one and data.num_classes == 2 and model.labels() is None:
    # One logit for both, by a loss of the task's own.
    if functional.accuracy in model.metrics.values():
      raise InputError(
        "The task's model gives one number for an example, of which the default metric "
        "would take class 0 always: give make_model metrics= of your own, or {} for none."
      )
    return
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


def _warn_of_absent(class_counts: np.ndarray, data: Dataset) -> None:
  """Warns of classes that are tested and that no client has, as few clients may not."""
  if data.test_y.ndim > 1:
    return
  absent = np.flatnonzero(class_counts.sum(axis=0) == 0)
  share = np.isin(data.test_y, absent).mean()
  if share > 0:
    warnings.warn(
      f"No client has examples of class {', '.join(map(str, absent))}, so that at "
      f"most {100 * (1 - share):.2f} % of the test examples can be classified rightly.",
      InputWarning,
      stacklevel=2,
    )


def _telling_examples(data: Dataset) -> np.ndarray:
  """One example; of whole numbers also those with the smallest and the largest one.

  An embedding that has these has all.
  """
  examples = [data.test_x[:1]]
  if np.issubdtype(data.train_x.dtype, np.integer):
    for x in (data.train_x, data.test_x):
      rows = x.reshape(len(x), -1)
      examples += [x[[rows.min(axis=1).argmin(), rows.max(axis=1).argmax()]]]
  return np.concatenate(examples)


def _put_on_disk(
  task: Task,
  data: Dataset,
  split: partitions.Partition,
  spec: ExampleSpec,
  cache_dir: str,
) -> ClientDirectory:
  from tff_algos import client_arrays, client_data

  parts = (client_data.FORMAT, data.train_x, data.train_y, *split.clients)
  name = client_arrays.fingerprint(*parts)
  folder = os.path.join(cache_dir, "clients", f"{task.name.replace(':', '_')}-{name}")
  if os.path.isdir(folder):
    try:
      found = client_data.ClientDirectory(folder)
      found.check_files(found.ids)
      return found
    except (DamagedError, FileNotFoundError) as error:
      print(f"{error} The clients are written anew.", file=sys.stderr)
      shutil.rmtree(folder)
  clients = partitions.client_examples(split, data.train_x, data.train_y)
  os.makedirs(os.path.dirname(folder), exist_ok=True)
  # Under another name first: a start cut short, or two at once, must not be half found.
  with durable_files.unfinished_folder(os.path.dirname(folder)) as unfinished:
    try:
      client_data.write_clients(unfinished, clients, spec)
      durable_files.replace(unfinished, folder)
    except OSError:
      if not os.path.isdir(folder):
        raise
  return client_data.ClientDirectory(folder)
