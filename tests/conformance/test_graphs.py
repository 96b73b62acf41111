"""Law: a graph holds the model as often however many steps its loops make."""

from __future__ import annotations

import dataclasses

import driver
import pytest


@pytest.mark.parametrize(
  "name, steps", [("fedavg", "epochs"), ("fedagg", "epochs"), ("fedreg", "pseudo_steps")]
)
def test_building_calls_the_model_as_often_for_more_steps(problem_of, name, steps):
  ordinary = problem_of("mlp")
  calls = 0

  def predict(*given):
    nonlocal calls
    calls += 1
    return ordinary.model.predict(*given)

  model = dataclasses.replace(ordinary.model, predict=predict)
  counts = []
  for number in (2, 5):
    calls = 0
    hparams = driver.hparams_of(name, **{steps: number})
    driver.build(name, ordinary._replace(model=model), hparams)
    counts.append(calls)
  assert 0 < counts[0] == counts[1]
