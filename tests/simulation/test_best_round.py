"""Which round is the best, of those that a run goes on from."""

from __future__ import annotations

import numpy as np
import pytest

from tff_algos.simulation import best_round


def test_of_rounds_as_good_the_first_is_the_best():
  values = (0.5, 0.8, 0.7, 0.8)
  records = [dict(round=k + 1, test_accuracy=v) for k, v in enumerate(values)]
  kept = best_round.Best(2, 0.8, (np.zeros(3),))
  assert best_round.of_checkpoint(kept, records, "accuracy") is kept
  found = best_round.of_checkpoint(None, records, "accuracy")
  assert found == best_round.Best(2, 0.8, None)


@pytest.mark.parametrize("metric, expected", [("off", 2), ("-off", 1)])
def test_with_a_minus_less_is_better(metric, expected):
  records = [dict(round=k + 1, test_off=v) for k, v in enumerate((0.1, 0.8, 0.7))]
  assert best_round.of_checkpoint(None, records, metric).round_num == expected


def test_what_was_kept_by_another_metric_is_not_the_best():
  """Its weights are of a round that by the new metric need not be the best."""
  records = [dict(round=k + 1, test_loss=loss) for k, loss in enumerate((2.0, 1.0))]
  kept = best_round.Best(1, 0.9, (np.zeros(3),))  # Of the accuracy.
  found = best_round.of_checkpoint(kept, records, "loss")
  assert found == best_round.Best(2, 1.0, None)
  # Nor is its value one of the new metric, if it is.
  found = best_round.of_checkpoint(kept, records[:1], "loss")
  assert found == best_round.Best(1, 2.0, None)
