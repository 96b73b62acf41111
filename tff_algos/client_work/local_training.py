"""The local training loop: one `tf.while_loop` over mini-batches held as tensors.

An algorithm changes it by functions; the memory of `adjust_gradient` and `note_direction`
from step to step is its `carry`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, step_seeds, tree_math
from tff_algos.client_work.local_sgd import PlainSgd
from tff_algos.errors import InputError, check_is
from tff_algos.models.functional import Model, Weights

# What a seed is folded with, so that no two kinds of draws share a key.
_SHUFFLE = 1


class Batch(NamedTuple):
  """The mini-batch of one local step.

  Attributes:
    rows: int32 (B,), which of the client's examples it holds.
    x: Their stored inputs (B, ...), not preprocessed yet.
    y: Their labels (B, ...).
    seed: int32 (2,), the step's own, for the model's random layers and noise.
  """

  rows: tf.Tensor
  x: tf.Tensor
  y: tf.Tensor
  seed: tf.Tensor


GradientOf = Callable[[Weights, Batch], "tuple[Weights, tf.Tensor]"]
# What a builder takes for its local steps' gradient: `GradientOf` of a model and `h`.
LocalGradient = Callable[[Model, Any, Weights, Batch], "tuple[Weights, tf.Tensor]"]
AdjustGradient = Callable[[Weights, Weights, Any], "tuple[Weights, Any]"]
NoteDirection = Callable[[Weights, Any], Any]
AfterStep = Callable[[Weights, Batch], Weights]


class Pull(NamedTuple):
  """What a quadratic penalty adds to the gradient: strength * w - target.

  Attributes:
    target: Weights, constant in a round.
    strength: float32 scalar; None where there is only the target.
  """

  target: Weights
  strength: Any = None

  def add_to(self, gradient: Weights, weights: Weights) -> Weights:
    """The gradient with the penalty's."""
    gradient = tree_math.subtract(gradient, self.target)
    if self.strength is None:
      return gradient
    return tree_math.add_scaled(gradient, self.strength, weights)


class LocalResult(NamedTuple):
  """What local training leaves behind.

  Attributes:
    weights: The local weights after the last step, w(K).
    num_steps: float32 scalar K, the number of local steps taken.
    loss: float32 scalar, the sum of the losses of all examples met, each at the weights
      it was met with.
    num_seen: float32 scalar, the number of examples met (epochs times n).
    carry: The algorithm's carry after the last step.
  """

  weights: Weights
  num_steps: tf.Tensor
  loss: tf.Tensor
  num_seen: tf.Tensor
  carry: Any


_NOTED: contextvars.ContextVar[Optional[list[LocalResult]]] = contextvars.ContextVar(
  "noted", default=None
)


@contextlib.contextmanager
def noting() -> Iterator[list[LocalResult]]:
  """Within this a list has what is given to `note`, as it is traced.

  Of a client's local model it is the one place: what is sent may be scaled.
  """
  results: list[LocalResult] = []
  token = _NOTED.set(results)
  try:
    yield results
  finally:
    _NOTED.reset(token)


def note(result: LocalResult) -> LocalResult:
  """What it is given, which the last call says is all that a client's training leaves.

  `train_client` ends with it; whoever calls that in a loop of its own calls it again.
  """
  noted = _NOTED.get()
  if noted is not None:
    noted.append(result)
  return result


def batch_order(seed: tf.Tensor, num_examples: tf.Tensor, epochs: int) -> tf.Tensor:
  """The order in which examples are met: int32 (epochs, n), a shuffle for each epoch."""
  keys = tf.random.stateless_uniform(
    [epochs, num_examples],
    tf.random.experimental.stateless_fold_in(seed, _SHUFFLE),
    dtype=tf.int32,
    minval=None,
    maxval=None,
  )
  return tf.argsort(keys, axis=1, stable=True)


def steps_of_epoch(examples: Examples, hparams: PlainSgd) -> tf.Tensor:
  """The number of mini-batches in an epoch, int32; the last one may be short."""
  n = tf.shape(examples.y)[0]
  return tf.constant(1) if hparams.batch_size is None else -(-n // hparams.batch_size)


def train_client(
  model: Model,
  start: Weights,
  examples: Examples,
  hparams: PlainSgd,
  seed: tf.Tensor,
  *,
  gradient_of: Optional[GradientOf] = None,
  pull: Optional[Pull] = None,
  adjust_gradient: Optional[AdjustGradient] = None,
  note_direction: Optional[NoteDirection] = None,
  after_step: Optional[AfterStep] = None,
  carry: Any = (),
  only_epoch: Optional[int | tf.Tensor] = None,
) -> LocalResult:
  """Trains on one client's examples by mini-batch SGD; the last short batch is kept.

  One local step m = 1..K:

      g = gradient_of(w, batch) + pull.strength * w - pull.target
      g, carry = adjust_gradient(g, w, carry)
      v = momentum * v + g
      carry = note_direction(v, carry)
      w = after_step(w - learning_rate * v, batch)

  Args:
    model: The model.
    start: The weights to start from, w(0).
    examples: The client's examples, n > 0.
    hparams: epochs, batch_size, learning_rate and, where it has one, momentum.
    seed: int32 (2,), keys the shuffles and the model's random layers.
    gradient_of: `(weights, Batch) -> (gradient, sum of the batch's losses)`; default:
      that of the batch's mean loss.
    pull: What is added to each gradient; default: nothing.
    adjust_gradient: `(gradient, weights, carry) -> (gradient, carry)`; default: none.
    note_direction: `(direction, carry) -> carry`, where the weights are about to move by
      `-learning_rate * direction`; default: none.
    after_step: `(weights, Batch) -> weights`; default: none.
    carry: The first value of the algorithm's carry, a structure of tensors.
    only_epoch: Takes the steps of this epoch alone, 0..epochs-1, an int or int32 scalar;
      default: of all.

  Raises:
    InputError: What a function returns, or `pull`, is not of the weights' shapes.
  """
  if pull is not None:
    check_is("pull", pull, Pull)
  momentum = getattr(hparams, "momentum", 0.0)
  has_momentum = tf.is_tensor(momentum) or momentum != 0
  is_seen = gradient_of or adjust_gradient or note_direction or has_momentum
  direct_step = None
  if not is_seen:
    direct_step = _build_direct_step(model, hparams, pull)
  if gradient_of is None:

    def gradient_of(weights: Weights, batch: Batch) -> tuple[Weights, tf.Tensor]:
      return gradients.batch_gradient(model, weights, batch.x, batch.y, batch.seed)

  n = tf.shape(examples.y)[0]
  batch_size = n if hparams.batch_size is None else hparams.batch_size
  batches = steps_of_epoch(examples, hparams)
  order = batch_order(seed, n, hparams.epochs)
  first_epoch = 0 if only_epoch is None else only_epoch
  num_epochs = hparams.epochs if only_epoch is None else 1
  first_step, num_steps = first_epoch * batches, num_epochs * batches

  def body(
    step: tf.Tensor, weights: Weights, velocity: Weights, carry: Any, loss: tf.Tensor
  ) -> tuple[tf.Tensor, Weights, Weights, Any, tf.Tensor]:
    epoch, place = step // batches, step % batches
    rows = order[epoch, place * batch_size : (place + 1) * batch_size]
    batch = Batch(
      rows=rows,
      x=tf.gather(examples.x, rows),
      y=tf.gather(examples.y, rows),
      seed=step_seeds.of_step(seed, step),
    )
    if direct_step is not None:
      weights, batch_loss = direct_step(weights, batch)
    else:
      gradient, batch_loss = _two(
        "gradient_of", "(gradient, sum of losses)", gradient_of(weights, batch)
      )
      _check_is_of("The gradient of gradient_of", gradient, weights)
      if pull is not None:
        gradient = pull.add_to(gradient, weights)
      if adjust_gradient is not None:
        adjusted = adjust_gradient(gradient, weights, carry)
        gradient, carry = _two("adjust_gradient", "(gradient, carry)", adjusted)
        _check_is_of("The gradient of adjust_gradient", gradient, weights)
      if has_momentum:
        velocity = tree_math.add_scaled(gradient, momentum, velocity)
        gradient = velocity
      if note_direction is not None:
        carry = note_direction(gradient, carry)
      weights = tree_math.add_scaled(weights, -hparams.learning_rate, gradient)
    if after_step is not None:
      moved = after_step(weights, batch)
      _check_is_of("What after_step returns", moved, weights)
      weights = tuple(moved)
    return step + 1, weights, velocity, carry, loss + batch_loss

  start = tuple(start)
  velocity = tuple(tf.zeros_like(w) for w in start) if has_momentum else ()
  _, weights, _, carry, loss = tf.while_loop(
    lambda step, *_: step < first_step + num_steps,
    body,
    (first_step, start, velocity, carry, tf.constant(0.0)),
    parallel_iterations=1,
  )
  result = LocalResult(
    weights=weights,
    num_steps=tf.cast(num_steps, tf.float32),
    loss=loss,
    num_seen=tf.cast(num_epochs * n, tf.float32),
    carry=carry,
  )
  return note(result)


def _two(who: str, wanted: str, found: Any) -> tuple[Any, Any]:
  if not isinstance(found, (tuple, list)) or len(found) != 2:
    raise InputError(f"{who} must return a pair {wanted}; found {_shown(found)}.")
  return found[0], found[1]


def _check_is_of(what: str, found: Any, weights: Weights) -> None:
  """Raises `InputError` unless it has an array for each of the weights', of its shape."""
  shapes = [tf.TensorShape(w.shape) for w in weights]
  fits = isinstance(found, (tuple, list)) and len(found) == len(weights)
  if not fits or not all(
    hasattr(x, "shape") and shape.is_compatible_with(x.shape)
    for x, shape in zip(found, shapes)
  ):
    raise InputError(
      f"{what} must be a tuple of arrays as the weights' are, {_shown(weights)}; found "
      f"{_shown(found)}."
    )


def _shown(found: Any) -> str:
  """Its shapes, or what it is."""
  if isinstance(found, (tuple, list)):
    return f"({', '.join(map(_shown, found))})"
  return str(getattr(found, "shape", found))


def _build_direct_step(
  model: Model, hparams: PlainSgd, pull: Optional[Pull]
) -> Callable[[Weights, Batch], tuple[Weights, tf.Tensor]]:
  """The local step where nothing looks at the gradient, as few sums.

  The learning rate goes in at the loss, as a pass over all weights takes long.
  """
  if pull is not None:
    toward = tuple(hparams.learning_rate * t for t in pull.target)

  def step(weights: Weights, batch: Batch) -> tuple[Weights, tf.Tensor]:
    way, loss = gradients.batch_gradient(
      model, weights, batch.x, batch.y, batch.seed, scale=hparams.learning_rate
    )
    if pull is None:
      return tree_math.subtract(weights, way), loss
    if pull.strength is not None:
      kept = 1.0 - hparams.learning_rate * pull.strength
      weights = tuple(kept * w for w in weights)
    return tree_math.subtract(tree_math.add(weights, toward), way), loss

  return step


def effective_steps(num_steps: tf.Tensor, momentum: float) -> tf.Tensor:
  """The steps that K steps are worth: along a constant g, w moves by -eta g times them.

  With momentum b the gradient of step j acts on every later step too, so the sum is
  sum_{j=1..K} (1 - b^j) / (1 - b), which is K for b = 0 [derived].
  """
  if not momentum:
    return num_steps
  # The two terms are nearly equal for a momentum near 1.
  steps = tf.cast(num_steps, tf.float64)
  geometric = momentum * (1 - momentum**steps) / (1 - momentum)
  return tf.cast((steps - geometric) / (1 - momentum), tf.float32)
