"""What of a client's result is looked at before it counts."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tree

from tff_algos.client_work.model_update import ClientResult
from tff_algos.templates import client_results


@pytest.mark.parametrize("part", ["message", "weight", "client_state", "metrics"])
def test_a_number_that_is_not_finite_anywhere_in_a_result_drops_it(part):
  one = tf.constant(1.0)
  result = ClientResult(
    OrderedDict(model=(tf.ones([2]),)),
    OrderedDict(model=one),
    tf.ones([3]),
    OrderedDict(loss=(one, one)),
  )
  before = tf.zeros([3])
  kept = client_results.drop_non_finite(result, before, tf.constant(5))
  assert int(kept.totals["counts"]["num_accepted"]) == 1
  spoilt = tf.nest.map_structure(lambda v: v * np.nan, getattr(result, part))
  changed = result._replace(**{part: spoilt})
  found = client_results.drop_non_finite(changed, before, tf.constant(5))
  assert int(found.totals["counts"]["num_dropped"]) == 1
  for value in tree.flatten((found.message, found.weight, found.client_state)):
    np.testing.assert_array_equal(value, np.zeros_like(value))
