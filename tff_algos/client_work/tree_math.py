"""Vector arithmetic on tuples of weights, taken as one long vector.

TensorFlow's graph optimizer makes a sum of sums into one operation that starts with
whichever term's memory is free at that moment, so that it rounds differently from run to
run. It leaves differences alone: subtract the opposite where a third term comes in.

What takes two tuples raises `InputError` unless their arrays have the same shapes:
TensorFlow would repeat the smaller array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos.errors import InputError
from tff_algos.models.functional import Weights


def _pairs(a: Weights, b: Weights) -> list[tuple[Any, Any]]:
  """The arrays of both, in pairs of one shape."""
  a, b = _dense(a), _dense(b)
  shapes = [[_shape(x) for x in weights] for weights in (a, b)]
  if len(a) != len(b) or not all(x.is_compatible_with(y) for x, y in zip(*shapes)):
    of_a, of_b = (", ".join(map(str, of)) or "none" for of in shapes)
    raise InputError(
      "Vector arithmetic on weights takes arrays of the same shapes, one for one; found "
      f"{of_a} and {of_b}."
    )
  return list(zip(a, b))


def _dense(a: Weights) -> tuple[Any, ...]:
  """With arrays of slices, as `tf.GradientTape` gives of an embedding, made whole."""
  return tuple(
    tf.convert_to_tensor(x) if isinstance(x, tf.IndexedSlices) else x for x in a
  )


def _shape(x: Any) -> tf.TensorShape:
  return tf.TensorShape(x.shape if hasattr(x, "shape") else np.shape(x))


def subtract(a: Weights, b: Weights) -> Weights:
  """The difference a - b."""
  return tuple(x - y for x, y in _pairs(a, b))


def add(a: Weights, b: Weights) -> Weights:
  """The sum a + b; not for a term of another sum."""
  return tuple(x + y for x, y in _pairs(a, b))


def add_scaled(a: Weights, scale: Any, b: Weights) -> Weights:
  """The sum a + scale * b, which may be a term of another sum."""
  opposite = -scale
  return tuple(x - opposite * y for x, y in _pairs(a, b))


def zeros_like(a: Weights) -> Weights:
  """Zeros of the same shapes."""
  return tuple(tf.zeros(x.shape, x.dtype) for x in a)


def dot(a: Weights, b: Weights) -> tf.Tensor:
  """The inner product over all weights together, a float32 scalar."""
  # A product of vectors passes over memory once and allocates nothing.
  flat = ((tf.reshape(x, [1, -1]), tf.reshape(y, [1, -1])) for x, y in _pairs(a, b))
  return tf.add_n([tf.matmul(x, y, transpose_b=True)[0, 0] for x, y in flat])


def norm(a: Weights) -> tf.Tensor:
  """The Euclidean norm over all weights together, a float32 scalar."""
  return tf.sqrt(2 * tf.add_n([tf.nn.l2_loss(x) for x in _dense(a)]))


def clip(a: Weights, max_norm: Any) -> Weights:
  """The weights, scaled down to the norm `max_norm` where theirs is larger.

  Those of a norm whose square float32 does not hold, above 1.8e19, become zeros.
  """
  a = _dense(a)
  scale = clip_scale(norm(a), max_norm)
  return tuple(scale * x for x in a)


def clip_scale(length: tf.Tensor, max_norm: Any) -> tf.Tensor:
  """By what weights of norm `length` are multiplied to be clipped to `max_norm`, 0..1."""
  scale = tf.minimum(1.0, tf.math.divide_no_nan(max_norm, length))
  return tf.where(length > 0, scale, 1.0)
