"""Seeds of the local steps and of the noise that they add, of all 64 bits of a client's.

TensorFlow's `stateless_fold_in` passes on 32 bits of a seed [code]. By it two of 77,000
steps would draw the same noise with even odds [derived: sqrt(2^33 ln 2)], and where both
are uploaded their difference has none.
"""

from __future__ import annotations

import tensorflow as tf

# What a client's seed is folded with, so that no step's is that of a shuffle.
_STEP = 2


def fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
  """A seed for one of many draws, int32 (2,); others for other int32 numbers."""
  drawn = tf.random.stateless_uniform([2], seed, None, None, tf.int32)
  return drawn + tf.stack([0, number])


def of_step(seed: tf.Tensor, step: tf.Tensor | int) -> tf.Tensor:
  """The seed of a client's local step, int32 (2,)."""
  return fold_in(fold_in(seed, _STEP), step)
