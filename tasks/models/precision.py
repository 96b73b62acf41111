"""Under which of Keras's policies a network is built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def policy(mixed_precision: bool) -> Iterator[None]:
  """Networks built inside compute in bfloat16, their weights being float32.

  Args:
    mixed_precision: Whether; if not, by the policy that is set.
  """
  before = tf.keras.mixed_precision.global_policy()
  if mixed_precision:
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
  try:
    yield
  finally:
    tf.keras.mixed_precision.set_global_policy(before)
