"""Federated evaluation of a global model, as TFF's programs take it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_data
from tff_algos.models.functional import Model, check_model
from tff_algos.simulation import evaluation
from tff_algos.templates import client_readings

# Name to total and count, float64 (2,).
_Totals = OrderedDict[str, tf.Tensor]


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
  evaluation.build_means(model)  # Which says what is wrong with a metric.
  spec, names = model.example_spec, ("loss", *model.metrics)

  def predict(weights: Any, x: Any, training: bool = False) -> Any:
    del training
    no_seed = tf.constant([0, 0])
    return model.predict(tuple(weights[0]), model.preprocess(x), False, no_seed)

  def mean_loss(predictions: Any, y: tf.Tensor, sample_weight: Any = None) -> tf.Tensor:
    del sample_weight
    return tf.reduce_mean(model.example_losses(y, predictions))

  def nothing() -> _Totals:
    return OrderedDict((name, tf.zeros([2], tf.float64)) for name in names)

  def add(sums: _Totals, y: tf.Tensor, batch: Any, sample_weight: Any = None) -> _Totals:
    del sample_weight
    found = evaluation.totals_of(model, y, batch.predictions)
    return OrderedDict((name, sums[name] + found[name]) for name in names)

  def means(sums: _Totals) -> _Totals:
    return OrderedDict((name, sums[name][0] / sums[name][1]) for name in names)

  functional_model = tff.learning.models.FunctionalModel(
    initial_weights=(tuple(model.initial_weights), ()),
    predict_on_batch_fn=tf.function(predict, autograph=False),
    loss_fn=tf.function(mean_loss, autograph=False),
    metrics_fns=tuple(tf.function(f, autograph=False) for f in (nothing, add, means)),
    input_spec=tuple(tf.TensorSpec([None, *s.shape], s.dtype) for s in spec),
  )
  return tff.simulation.compose_dataset_computation_with_learning_process(
    _batches(model, element_spec),
    tff.learning.algorithms.build_fed_eval(functional_model),
  )


def _batches(model: Model, element_spec: Optional[Any]) -> tff.Computation:
  """From what a client is handed to a data set of batches `(x, y)`."""
  spec, labels = model.example_spec, model.labels()
  if element_spec is None:

    @tff.tensorflow.computation(tff.to_type(client_data.CLIENT_INPUT_TYPE))
    def of_file(client_input: client_data.ClientInput) -> tf.data.Dataset:
      examples = client_readings.with_labels_of(
        client_data.read(client_input.path, spec), labels
      )
      return tf.data.Dataset.from_tensor_slices(tuple(examples)).batch(evaluation.BATCH)

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
    return make(evaluation.BATCH).map(lambda *e: pair(e[0] if len(e) == 1 else e))

  return of_dataset
