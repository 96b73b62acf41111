"""Whether a loss or a metric makes one number of each example, as a `Model` says.

What makes other numbers would train too, but by gradients that are several times too
small or too large, and would be evaluated to other means.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos import graphs
from tff_algos.errors import InputError, InputWarning, first_line
from tff_algos.models import functional

_OURS = (functional.sparse_cross_entropy, functional.sequence_cross_entropy)


def takes_logits(loss: Any) -> bool:
  """Whether it is one of ours, which take logits and labels that are classes."""
  return loss in _OURS or isinstance(loss, functional.FadingCrossEntropy)


def one_each(
  what: str, value: functional.MetricValue, y: tf.Tensor, predictions: Any
) -> functional.MetricValue:
  """`value`, or both of its parts, as (B,), as far as its static shape tells.

  Args:
    what: Whose value it is, for the message: "the loss", "metric 'accuracy'".
    value: What it made.
    y: Of which labels (B, ...).
    predictions: Of which predictions (B, ...).

  Raises:
    InputError: It is not (B,).
  """
  for part in value if isinstance(value, tuple) else (value,):
    shape = tf.convert_to_tensor(part).shape
    # Where it is not known how long the batch is, a length that is known is another.
    if shape.rank is not None and shape.as_list() not in ([None], [y.shape[0]]):
      raise _not_one_each(what, shape, y, predictions)
  return value


def check(model: functional.Model, predictions: Any) -> None:
  """Looks whether the loss takes the labels of the examples, and what is made of them.

  Args:
    model: The model.
    predictions: What it predicts of a batch: one spec (B, ...), or a structure of them.

  Warns:
    InputWarning: The loss or a metric of an example depends on the others of its batch.

  Raises:
    InputError: It does not take them, makes other than (B,), compares tensors by `==`,
      or uses a tensor from outside.
  """
  spec, loss = model.example_spec.y, model.example_losses
  if not callable(loss):
    raise InputError(
      f"loss= must be a function (y, predictions) -> (B,); found {loss!r}."
    )
  y = tf.TensorSpec([None, *spec.shape], spec.dtype)
  predicted = tf.nest.map_structure(
    lambda v: tf.TensorSpec(v.shape, v.dtype), predictions
  )

  try:
    with tf.Graph().as_default(), graphs.refusing_equality("The loss"):
      traced = tf.function(loss, autograph=False).get_concrete_function(y, predicted)
  except (ValueError, TypeError) as error:
    if isinstance(error, InputError):
      raise
    advice = "give ExampleSpec the labels that it takes, or pass another loss="
    if takes_logits(loss):
      advice = (
        "it takes numbers of classes, int32 or int64, of one-hot labels their argmax, "
        "and predictions of one number for each class, at each step of a sequence; for "
        "others pass a loss= of yours"
      )
    raise InputError(
      f"The loss does not take labels {spec.dtype.name} {_text(y.shape)} with "
      f"predictions {_shapes(predicted)}: {advice} ({first_line(error)})."
    ) from error
  if any(tf.is_tensor(t) and hasattr(t, "numpy") for t in traced.captured_inputs):
    raise InputError(
      "The loss uses a tensor or a variable from outside, which TFF cannot take along: "
      "make it a NumPy array."
    )
  shape = getattr(traced.structured_outputs, "shape", None)
  # A length that is known is not that of the batch.
  if shape is None or (shape.rank is not None and shape.as_list() != [None]):
    raise _not_one_each("the loss", shape, y, predicted)
  values = {} if takes_logits(loss) else {"the loss": loss}
  own = (item for item in model.metrics.items() if item[1] is not functional.accuracy)
  values.update((f"the metric {name!r}", metric) for name, metric in own)
  for what, value_of in values.items():
    if _depends_on_others(value_of, spec, predicted):
      warnings.warn(
        f"Of labels {_text(y.shape)} and predictions {_shapes(predicted)} {what} makes "
        "numbers that change with the other examples of a batch, as where one is spread "
        "over the other: unless that is meant, give ExampleSpec labels of the "
        "predictions' shape.",
        InputWarning,
        stacklevel=3,
      )


def _depends_on_others(
  value_of: Callable[[tf.Tensor, Any], functional.MetricValue],
  spec: tf.TensorSpec,
  predicted: Any,
) -> bool:
  """Whether the values of three examples differ from those of each by itself."""
  shapes = [spec.shape, *(v.shape[1:] for v in tf.nest.flatten(predicted))]
  if not (tf.executing_eagerly() and all(s.is_fully_defined() for s in shapes)):
    return False
  draw = np.random.default_rng(0)

  def some(dtype: tf.DType, shape: tf.TensorShape) -> tf.Tensor:
    numbers = draw.uniform(size=[3, *shape])
    whole = dtype.is_integer or dtype.is_bool  # 0 and 1, which most losses take.
    return tf.cast(tf.constant(numbers.round() if whole else numbers), dtype)

  y = some(spec.dtype, spec.shape)
  made = tf.nest.map_structure(lambda v: some(v.dtype, v.shape[1:]), predicted)
  try:
    together = _columns(value_of(y, made))
    alone = [_columns(value_of(*row)) for row in _split((y, made))]
    found = np.concatenate(alone, axis=-1)
  except Exception:  # Whatever a loss of the user's does with labels that are none.
    return False
  is_same = together.shape == found.shape and np.allclose(
    together, found, 1e-3, 1e-5, equal_nan=True
  )
  return not is_same


def _columns(value: functional.MetricValue) -> np.ndarray[Any, Any]:
  """(1, B), or (2, B) of a pair."""
  parts = value if isinstance(value, tuple) else (value,)
  return np.stack([np.asarray(part, np.float64) for part in parts])


def _split(structure: Any) -> list[Any]:
  """A structure of three rows as three of one."""
  parts = [tf.split(v, 3) for v in tf.nest.flatten(structure)]
  return [tf.nest.pack_sequence_as(structure, row) for row in zip(*parts)]


def _not_one_each(what: str, shape: Any, y: Any, predictions: Any) -> InputError:
  made = "no tensor" if shape is None else _text(shape)
  advice = (
    "take means over all but the first dimension; of Keras take a loss with "
    "reduction='none', or a function in the place of a metric object"
  )
  if y.dtype.is_integer and y.shape.rank == 2:
    advice = (
      "give loss=tff_algos.sequence_cross_entropy and metrics={'accuracy': "
      "tff_algos.sequence_accuracy} for a label at each step, or " + advice
    )
  return InputError(
    f"Of labels {_text(y.shape)} and predictions {_shapes(predictions)} {what} makes "
    f"{made}, where it must make (B,), one number for each example: {advice}."
  )


def _text(shape: tf.TensorShape) -> str:
  if shape.rank is None:
    return "of unknown shape"
  sizes = ["B" if size is None else str(size) for size in shape]
  return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _shapes(predictions: Any) -> str:
  return ", ".join(_text(v.shape) for v in tf.nest.flatten(predictions))
