"""The medians of past rounds, which a norm limit is a multiple of."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import past_medians


def test_past_medians_are_the_ten_last_that_were_above_0(in_process):
  scalar = tff.to_type(np.float32)
  process = past_medians.PastMediansFactory().create(scalar, scalar)
  state = process.initialize()
  norms = [*range(1, 9), *range(20, 14, -1), 0, *range(14, 8, -1)]
  for norm in norms:
    state = process.next(state, [np.float32(norm)], [np.float32(1)]).state
  kept = [norm for norm in norms if norm][-10:]
  np.testing.assert_array_equal(state, kept)
  assert float(past_medians.median_of(tf.constant(state))) == np.median(kept)
