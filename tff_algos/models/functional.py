"""A model as pure functions of its weights."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tff_algos.errors import InputError, check_takes, set_number

# What a seed is folded with, so that no layer draws as `augment` does.
_AUGMENT = -1

# Of tf.Tensor or np.ndarray, in the order of `Model.weight_names`.
Weights = tuple[Any, ...]

# What a metric gives: one number for each example, or totals and counts, see `Model`.
MetricValue = Union["tf.Tensor", "tuple[tf.Tensor, tf.Tensor]"]


class ExampleSpec(NamedTuple):
  """One example as it is stored, without a batch dimension.

  Attributes:
    x: Shape and dtype of the input, such as uint8 (28, 28, 1).
    y: Shape and dtype of the label, such as int32 (); int32 (T,) for a sequence with a
      label at each step, -1 where there is none.
  """

  x: tf.TensorSpec
  y: tf.TensorSpec


def check_example_spec(spec: Any) -> None:
  """Raises `InputError` unless it is an `ExampleSpec`, and of whole shapes."""
  if not isinstance(spec, ExampleSpec):
    raise InputError(
      f"In the place of an ExampleSpec there is a {type(spec).__name__}: give "
      "tff_algos.ExampleSpec(x, y), a tf.TensorSpec of an input and one of its label."
    )
  for name, part in zip(spec._fields, spec):
    if not isinstance(part, tf.TensorSpec):
      raise InputError(
        f"The {name} of the ExampleSpec is a {type(part).__name__}: give a "
        "tf.TensorSpec, such as tf.TensorSpec([28, 28, 1], tf.uint8)."
      )
    if not part.shape.is_fully_defined():
      raise InputError(
        f"The {name} of the ExampleSpec has the shape {part.shape}, but it is of one "
        "example, whose sizes are all known: leave the batch dimension, None, out, and "
        "give a size in the place of any other None."
      )


def sparse_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Cross-entropy in nats of each example: int labels (B,), logits (B, C) -> (B,)."""
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def accuracy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """1.0 where the largest logit is the label's: int (B,), float (B, C) -> (B,).

  Where a logit is NaN none is the largest.
  """
  logits = tf.convert_to_tensor(logits)
  hits = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
  if logits.dtype.is_floating:  # TensorFlow's argmax of NaN is class 0.
    hits &= ~tf.reduce_any(tf.math.is_nan(logits), axis=-1)
  return tf.cast(hits, tf.float32)


def sequence_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Cross-entropy in nats of each sequence, the mean over its steps that have a label.

  Int labels (B, T), -1 where there is none, and logits (B, T, C) -> (B,); 0 for a
  sequence without labels.
  """
  losses = sparse_cross_entropy(tf.maximum(labels, 0), logits)
  is_labelled = tf.cast(labels >= 0, losses.dtype)
  counts = tf.maximum(tf.reduce_sum(is_labelled, axis=-1), 1.0)
  return tf.reduce_sum(losses * is_labelled, axis=-1) / counts


def sequence_accuracy(labels: tf.Tensor, logits: tf.Tensor) -> MetricValue:
  """Hits and labelled steps of each sequence: int (B, T), (B, T, C) -> (B,) and (B,)."""
  # No logit is largest at -1, so a step without a label is no hit.
  hits = tf.reduce_sum(accuracy(labels, logits), axis=-1)
  return hits, tf.reduce_sum(tf.cast(labels >= 0, hits.dtype), axis=-1)


class SoftTargets(NamedTuple):
  """How a model's own predictions become targets of its loss.

  Attributes:
    of: predictions (B, C) -> targets (B, C).
    losses: `(targets, predictions) -> (B,)`.
  """

  of: Callable[[tf.Tensor], tf.Tensor]
  losses: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class _OfLoss(SoftTargets):
  """Those that a loss of this module has by default, and that go where it goes."""


def soft_cross_entropy(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Cross-entropy in nats: class probabilities (B, C), logits (B, C) -> (B,)."""
  # Not TensorFlow's own: the derivative by the targets of its gradient is missing, and
  # whoever differentiates a local step by the examples would take it for 0.
  return -tf.reduce_sum(targets * tf.nn.log_softmax(logits), axis=-1)


@dataclasses.dataclass(frozen=True)
class FadingCrossEntropy:
  """-log(p + epsilon) in nats, p what the softmax gives the label [code, FedReg's].

  Its gradient is p / (p + epsilon) times that of cross-entropy [derived]: examples that a
  model holds to be next to impossible pull no more, and no loss is above -log(epsilon).

  Attributes:
    epsilon: More than 0 and less than 1.

  Raises:
    InputError: It is not.
  """

  epsilon: float

  def __post_init__(self) -> None:
    set_number(self, "epsilon")
    if not 0 < self.epsilon < 1:
      raise InputError(
        f"epsilon must be more than 0 and less than 1; found {self.epsilon!r}: for plain "
        "cross-entropy leave loss= out."
      )

  def __call__(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The loss of each example: int labels (B,), logits (B, C) -> (B,)."""
    return self._faded(sparse_cross_entropy(labels, logits))

  def of_soft_targets(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """-sum_c t_c log(p_c + epsilon): probabilities (B, C), logits (B, C) -> (B,)."""
    faded = self._faded(-tf.nn.log_softmax(logits))
    return tf.reduce_sum(targets * faded, axis=-1)

  def _faded(self, loss: tf.Tensor) -> tf.Tensor:
    """-log(exp(-loss) + epsilon), by whichever form cancels nothing."""
    highest = -math.log(self.epsilon)
    over = loss - highest
    return tf.where(
      over < 0, loss - tf.nn.softplus(over), highest - tf.nn.softplus(-over)
    )


def scale_pictures(x: tf.Tensor) -> tf.Tensor:
  """uint8 0..255 -> float32 0..1; other dtypes are cast to float32 as they are."""
  scale = 1 / 255 if x.dtype == tf.uint8 else 1.0
  return tf.cast(x, tf.float32) * scale


@dataclasses.dataclass(frozen=True)
class Model:
  """A model as pure functions: no variables, so a client can own its copy of weights.

  Attributes:
    initial_weights: float32 arrays, all trainable: what is trained, travels, and is kept
      in states. What `predict` has besides, such as a frozen layer, counts nowhere.
    weight_names: One name for each of them, such as "dense/kernel".
    example_spec: What one stored example looks like.
    predict: `(weights, x, training, seed) -> predictions`; `x` is a preprocessed batch
      (B, ...), `training` a Python bool, `seed` an int32 tensor of shape (2,).
    example_losses: `(y, predictions) -> (B,)`, the loss of each example.
    metrics: Name to `(y, predictions) -> (B,)`, whose mean over the examples evaluation
      reports; or to `-> (totals (B,), counts (B,))`, where it reports the sum of all
      totals over the sum of all counts, such as an accuracy over characters.
    preprocess: Stored batch -> float batch, applied after the batch is drawn.
    augment: `(x, seed) -> x`, by which training changes a preprocessed batch at random
      before `predict`, as a data loader does; by TensorFlow's stateless draws with
      `seed`, int32 (2,). Unlike what layers do it is done to examples alone, not to data
      that an algorithm makes of them, as FedReg's, which are of examples so changed.
      None: nothing.
    soft_targets: For algorithms that train on the model's own predictions; default:
      softmax and cross-entropy where `example_losses` is `sparse_cross_entropy`, or a
      `FadingCrossEntropy`, whose epsilon it then has.
    keras_source: For `to_keras`: what `from_keras` made the model of; None where it was
      made otherwise.

  Raises:
    InputError: A weight is no float32 array or has no name, or there is none; examples
      cannot be so; a metric is no function, or is called loss; or `augment` takes no
      pictures and seed.
  """

  initial_weights: Weights
  weight_names: tuple[str, ...]
  example_spec: ExampleSpec
  predict: Callable[..., tf.Tensor]
  example_losses: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = sparse_cross_entropy
  metrics: Mapping[str, Callable[[tf.Tensor, tf.Tensor], MetricValue]] = (
    dataclasses.field(default_factory=lambda: OrderedDict(accuracy=accuracy))
  )
  preprocess: Callable[[tf.Tensor], tf.Tensor] = scale_pictures
  augment: Optional[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = None
  soft_targets: Optional[SoftTargets] = None
  keras_source: Any = None

  def __post_init__(self) -> None:
    check_example_spec(self.example_spec)
    losses, of_soft_targets = self.example_losses, None
    if losses is sparse_cross_entropy:
      of_soft_targets = soft_cross_entropy
    elif isinstance(losses, FadingCrossEntropy):
      of_soft_targets = losses.of_soft_targets
    if self.soft_targets is None or isinstance(self.soft_targets, _OfLoss):
      of_loss = of_soft_targets and _OfLoss(tf.nn.softmax, of_soft_targets)
      object.__setattr__(self, "soft_targets", of_loss)
    if len(self.initial_weights) != len(self.weight_names):
      raise InputError(
        f"A model needs one name for each of its {len(self.initial_weights)} weight "
        f"arrays; found {len(self.weight_names)} names."
      )
    for name, w in zip(self.weight_names, self.initial_weights):
      if getattr(w, "dtype", None) != np.float32:
        raise InputError(
          f"A model's weights must be float32 arrays; {name} is of "
          f"{getattr(w, 'dtype', type(w).__name__)}: give np.asarray(..., np.float32)."
        )
    if not isinstance(self.metrics, Mapping):
      raise InputError(
        "metrics= must map names to functions (y, predictions) -> (B,); found "
        f"{self.metrics!r}."
      )
    for name, metric in self.metrics.items():
      if isinstance(metric, tf.keras.metrics.Metric) or not callable(metric):
        raise InputError(
          f"Metric {name!r} is a {type(metric).__name__}: give a function "
          "(y, predictions) -> (B,), one number for each example, of which the mean is "
          "reported."
        )
    if "loss" in self.metrics:
      raise InputError(
        "A metric cannot be named 'loss', as evaluation has the model's own by that "
        "name: choose another."
      )
    if not self.initial_weights:
      raise InputError("A model needs at least one trainable weight; found none.")
    if self.augment is not None:
      check_takes("augment", self.augment, ("x", "seed"))

  @property
  def num_weights(self) -> int:
    """How many numbers `initial_weights` hold together, which are those that travel."""
    return sum(int(np.prod(w.shape)) for w in self.initial_weights)

  @property
  def weight_specs(self) -> tuple[tf.TensorSpec, ...]:
    """What the weights are, as a `tf.function`'s signature has it."""
    return tuple(tf.TensorSpec(w.shape, tf.float32) for w in self.initial_weights)

  def inputs(self, x: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
    """A stored batch (B, ...) as `predict` is given it, float (B, ...).

    It is preprocessed, and in training then augmented, by draws of `seed`, int32 (2,).
    """
    x = self.preprocess(x)
    if not training or self.augment is None:
      return x
    return self.augment(x, tf.random.experimental.stateless_fold_in(seed, _AUGMENT))

  def labels(self) -> Optional[range]:
    """The labels that the loss takes, by the number C of outputs that `predict` gives.

    Returns:
      0..C-1, from -1 on for sequences; None where the loss is not of this module.
    """
    losses = self.example_losses
    if losses is sparse_cross_entropy or isinstance(losses, FadingCrossEntropy):
      lowest = 0
    elif losses is sequence_cross_entropy:
      lowest = -1
    else:
      return None
    spec = self.example_spec.x
    x = self.preprocess(tf.zeros([1, *spec.shape], spec.dtype))
    predictions = self.predict(self.initial_weights, x, False, tf.zeros([2], tf.int32))
    return range(lowest, predictions.shape[-1])


def check_model(model: Any) -> None:
  """Raises `InputError` unless it is a `Model`."""
  if not isinstance(model, Model):
    raise InputError(
      f"The model is a {type(model).__name__}: give a tff_algos.Model, such as "
      "tff_algos.from_keras(keras_model, spec) makes of a Keras model."
    )


def check_weights(model: Model, weights: Any) -> Weights:
  """The weights; raises `InputError` unless number and shapes are those of the model's.

  What can be gone through once, as a generator, is spent then: go on with the result.
  """
  found: Weights = ()
  try:
    found = tuple(weights)
    shapes = [tuple(np.shape(w)) for w in found]
  except (TypeError, ValueError):  # Such as a server's state, or both kinds of weights.
    shapes = None
  if shapes != [tuple(w.shape) for w in model.initial_weights]:
    raise InputError(
      "These are not weights of the model: their number or shapes differ from those of "
      "its initial_weights; give process.get_model_weights(state).trainable."
    )
  return found
