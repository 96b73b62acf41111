"""When a run is at its end, by hand."""

from __future__ import annotations

import math

import pytest

from tff_algos.simulation import stopping
from tff_algos.simulation.stopping import StopRule


def _ends(rule: StopRule, values, metric: str = "accuracy") -> tuple[int, str | None]:
  """In which round it ends, and why; None in a value's place: no evaluation."""
  name = f"test_{metric}"
  records = [{"round": k, **({} if v is None else {name: v})} for k, v in values]
  for done in range(len(records) + 1):
    reason = rule.reason(records[:done])
    if reason is not None:
      # A run that is gone on with is at its end still.
      assert rule.reason(records) == reason
      return done, reason
  return len(records), None


def _rounds(*values):
  return list(enumerate(values, 1))


@pytest.mark.parametrize(
  "values, expected",
  [
    ((0.1, 0.5, 0.49, 0.6), (4, "target")),
    ((0.1, 0.6, 0.7), (2, "target")),
    ((0.1, 0.59999), (2, None)),
    ((None, None), (2, None)),
    ((math.nan, 0.9), (2, "target")),
    ((), (0, None)),
  ],
)
def test_target_is_as_good_or_better(values, expected):
  assert _ends(StopRule(target=0.6), _rounds(*values)) == expected


@pytest.mark.parametrize("metric, name", [("loss", "loss"), ("-off", "off")])
def test_of_a_loss_and_of_what_has_a_minus_less_is_better(metric, name):
  losses = _rounds(1.0, 0.4, 0.3, 0.29)
  assert _ends(StopRule(metric, target=0.3), losses, name) == (3, "target")
  assert _ends(StopRule(metric, patience=1), losses, name) == (4, None)
  assert _ends(StopRule(metric, patience=1), _rounds(1, 2, 0), name) == (2, "patience")


@pytest.mark.parametrize(
  "values, expected",
  [
    ((0.1, 0.2, 0.2, 0.1), (4, "patience")),  # As good is not better.
    ((0.1, 0.2, 0.1, 0.3, 0.2, 0.1), (6, "patience")),
    ((0.1, 0.2, 0.1, 0.3, 0.2), (5, None)),
    ((0.2, None, 0.1, None, None, 0.2), (6, "patience")),  # Evaluations, not rounds.
    ((math.nan, math.nan), (2, "patience")),
    ((0.2, math.nan, 0.3, 0.1), (4, None)),
  ],
)
def test_patience_counts_evaluations_without_a_better_one(values, expected):
  assert _ends(StopRule(patience=2), _rounds(*values)) == expected


def test_whichever_comes_first():
  rule = StopRule(target=0.9, patience=2)
  assert _ends(rule, _rounds(0.5, 0.4, 0.95)) == (3, "target")
  assert _ends(rule, _rounds(0.5, 0.4, 0.4, 0.95)) == (3, "patience")
  assert StopRule().reason([{"test_accuracy": 1.0}] * 9) is None


def test_target_is_read_from_a_word():
  assert stopping.parse("accuracy:0.95") == ("accuracy", 0.95)
  assert stopping.parse("loss: 1e-2") == ("loss", 0.01)
  for word in ("accuracy", "0.95", "accuracy:", "accuracy:high", "accuracy=0.95"):
    with pytest.raises(ValueError, match=r"as in accuracy:0\.95; found"):
      stopping.parse(word)


@pytest.mark.parametrize(
  "options, said",
  [
    (dict(patience=0), "patience must be at least 1; found 0"),
    (dict(patience=2.5), r"patience must be a whole number; found 2\.5"),
    (dict(metric="loss", target=math.nan), "target of loss must be finite"),
    (dict(metric="loss", target=math.inf), "target of loss must be finite"),
    (dict(target=95.0), r"target of accuracy must be in \(0, 1\]; found 95\."),
    (dict(target=0.0), r"target of accuracy must be in \(0, 1\]; found 0\."),
    (dict(target="0.9"), r"target of accuracy must be a number; found '0\.9'"),
    (dict(metric="loss", target=[1]), r"target of loss must be a number; found \[1\]"),
    (dict(metric=0.9), r"metric must be a name, such as 'accuracy'; found 0\.9"),
  ],
)
def test_impossible_rules_are_refused(options, said):
  with pytest.raises(ValueError, match=said):
    StopRule(**options)
