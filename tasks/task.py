"""What a task is: data, a model, a split and defaults; and the same, loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset
  from tff_algos.client_data import ClientDirectory
  from tff_algos.models.functional import ExampleSpec, Model


def _classifier(keras_model: Any, spec: ExampleSpec) -> Model:
  from tff_algos.models import keras

  return keras.from_keras(keras_model, spec)


class Task(NamedTuple):
  """One row.

  Attributes:
    name: What `--task` takes.
    description: A few words for lists.
    load_data: `(data_dir, cache_dir) -> Dataset`; `data_dir` may be None.
    build_keras_model: `(example shape, num_classes) -> tf.keras.Model` giving logits, one
      for each class; of two classes it may be one, and without classes, for which
      num_classes is None, whatever a loss of `make_model` takes.
    partition: The default split, as `partitions.parse` takes it.
    num_clients: N, the default number of clients; None: as many as the data have groups.
    clients_per_round: The default size of the cohort.
    rounds: The default number of rounds.
    hparams: Defaults for the hyper-parameters of local training.
    target_accuracy: The accuracy whose round is reported, 0..1; None for none.
    make_model: `(Keras model, example spec) -> Model`, what gives it its loss and
      metrics; default: cross-entropy and accuracy of one label for each example.
    is_pretrained: Whether training begins with the weights that `build_keras_model`
      gives; False: with ones drawn from the run's seed. Frozen ones are never drawn.
    reads_data_dir: Whether `load_data` has a use for it; False: giving one is refused.
  """

  name: str
  description: str
  load_data: Callable[[Optional[str], str], Dataset]
  build_keras_model: Callable[[tuple[int, ...], Any], Any]
  partition: str
  num_clients: Optional[int]
  clients_per_round: int
  rounds: int
  hparams: Mapping[str, Any]
  target_accuracy: Optional[float] = None
  make_model: Callable[[Any, ExampleSpec], Model] = _classifier
  is_pretrained: bool = False
  reads_data_dir: bool = True


class LoadedTask(NamedTuple):
  """A task ready to run.

  Attributes:
    model: The model with its initial weights.
    clients: The clients' data on disk.
    test_x: Held-out inputs (n, ...).
    test_y: Their labels (n, ...).
    class_counts: int64 (clients, classes), the labels of each class; None where labels
      are no classes.
    left_over: How many training examples no client got.
    note: What to say beside every number, such as "JPEG CIFAR-10"; "" for nothing.
    layers: The model's layers in words.
  """

  model: Model
  clients: ClientDirectory
  test_x: np.ndarray
  test_y: np.ndarray
  class_counts: Optional[np.ndarray]
  left_over: int
  note: str
  layers: Sequence[str]
