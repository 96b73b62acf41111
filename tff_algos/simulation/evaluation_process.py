"""Federated evaluation of a global model, as TFF's programs take it."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_data
from tff_algos.models import tff_model
from tff_algos.models.functional import Model, check_model
from tff_algos.simulation import evaluation
from tff_algos.templates import client_readings


def build_evaluation_process(
  model: Model, element_spec: Optional[Any] = None
) -> tff.learning.templates.LearningProcess:
  """TFF's `build_fed_eval` of a model of ours.

  Each client sends totals and counts of its own examples, so that what a round measures
  is what `build_evaluation` finds for the examples of all its clients together. For
  `tff.learning.programs.EvaluationManager`, or called by itself: `set_model_weights` with
  what a training process's `get_model_weights` gives, then `next`.

  Args:
    model: The model, at work in inference mode. A process that has a `personal_model`
      has none that predicts alone.
    element_spec: None: clients are handed `ClientInput`s, as `ClientSource` has them.
      Else data sets, whose elements are such as `over_datasets` takes.

  Returns:
    A process whose metrics have, at `client_work`, `eval`, the means over the examples
    of the round, `current_round_metrics`, and of all rounds, `total_rounds_metrics`:
    `loss` in nats and the model's metrics, float64, NaN where there was no example.

  Raises:
    InputError: It is no `Model`, the elements are not such, or a metric does not take the
      labels or makes no (B,).
    tf.errors.InvalidArgumentError: In a round, if a label is none that the model takes.
    DamagedError: In a round, if a client's file does not hold what `write_clients` wrote.
  """
  check_model(model)
  evaluate = tff.learning.algorithms.build_fed_eval(tff_model.functional_model(model))
  return tff.simulation.compose_dataset_computation_with_learning_process(
    _batches(model, element_spec), evaluate
  )


def _batches(model: Model, element_spec: Optional[Any]) -> tff.Computation:
  """From what a client is handed to a data set of batches `(x, y)`."""
  spec, labels = model.example_spec, model.labels()
  batch = evaluation.batch_of(model)
  if element_spec is None:

    @tff.tensorflow.computation(tff.to_type(client_data.CLIENT_INPUT_TYPE))
    def of_file(client_input: client_data.ClientInput) -> tf.data.Dataset:
      examples = client_readings.with_labels_of(
        client_data.read(client_input.path, spec), labels
      )
      return tf.data.Dataset.from_tensor_slices(tuple(examples)).batch(batch)

    return of_file
  is_batched = client_readings.is_batched(spec, element_spec)

  def pair(element: Any) -> tuple[tf.Tensor, tf.Tensor]:
    examples = client_readings.as_examples(element)
    return tuple(client_readings.with_labels_of(examples, labels))

  @tff.tensorflow.computation(
    tff.SequenceType(tff.types.tensorflow_to_type(element_spec))
  )
  def of_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
    make = dataset.rebatch if is_batched else dataset.batch
    # Of a mapping each element is one argument, of a pair two.
    return make(batch).map(lambda *e: pair(e[0] if len(e) == 1 else e))

  return of_dataset
