"""Law: a round that was compiled for a deployment is the round."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import driver
import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tff_algos.templates import deployment, views

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/tff.md"
_COHORT = (2, 0, 3)
_FORMS = (
  (
    deployment.compile_form,
    tff.backends.mapreduce.get_computation_for_map_reduce_form,
  ),
  (
    tff.backends.mapreduce.get_distribute_aggregate_form_for_computation,
    tff.backends.mapreduce.get_computation_for_distribute_aggregate_form,
  ),
)


def inputs_of(federation, cohort, round_num: int = 0) -> list:
  return [
    tff_algos.ClientInput(
      federation.problem.directory.path(str(c)), np.array([round_num, c], np.int32)
    )
    for c in cohort
  ]


def difference(found: Any, expected: Any) -> str:
  """How far two results are from each other, as the documentation has it."""
  if not driver.differ(found, expected):
    return "the same bits"
  driver.assert_within_rounding(found, expected)
  return "up to rounding"


@pytest.mark.parametrize("name, settings", driver.every_form())
def test_forms_are_the_round_and_the_page_says_so(federate, name, settings):
  federation = federate(name, **settings)
  process = federation.process
  cells = []
  for compile_form, run_form in _FORMS:
    answers = {}
    for rounds_done in range(len(process.schedule)):
      kind = process.kind_of_round(rounds_done)
      if kind in answers:
        continue
      comp = views.on_device_next(process, rounds_done)
      try:
        form = compile_form(comp)
      except (TypeError, ValueError):
        answers[kind] = "no"
        continue
      state = federation.state._replace(round_num=np.int32(rounds_done))
      own = process.initialize_client()
      inputs = inputs_of(federation, _COHORT)
      expected = process.next_of(rounds_done)(state, [own] * len(_COHORT), inputs)
      brought = [views.OnDeviceInput(own, data) for data in inputs]
      # The forms forget Python's containers.
      whole = tff.framework.ConcreteComputation.with_type(
        run_form(form), comp.type_signature
      )
      found = whole(state, brought)
      answers[kind] = difference(found, (expected.state, expected.metrics))
    cells.append(", ".join(sorted(set(answers.values()))))
  label = "".join(f", {k}={v}" for k, v in settings.items() if k == "estimates")
  row = f"| {name}{label} | {' | '.join(cells)} |"
  assert row in _PAGE.read_text(), f"docs/tff.md does not say {row}"


def leaves(value) -> list:
  """In the order of the type, where `tf.nest` sorts by name."""
  if isinstance(value, Mapping):
    value = tuple(value.values())
  return (
    [v for part in value for v in leaves(part)] if isinstance(value, tuple) else [value]
  )


class Deployment:
  """A server and devices that are nothing but the compiled computations."""

  def __init__(self, process):
    self.process, self.state = process, process.initialize()
    self.kept: dict[int, Any] = {}
    self.forms: dict[str, deployment.DeviceForm] = {}

  def round(self, rounds_done, cohort, inputs):
    kind = self.process.kind_of_round(rounds_done)
    if kind not in self.forms:
      self.forms[kind] = tff_algos.device_form(self.process, rounds_done)
    form, work = self.forms[kind].form, self.forms[kind].work
    broadcast = form.prepare(self.state)
    total, secure = form.zero(), None
    for client, data in zip(cohort, inputs):
      own = self.kept.get(client, self.process.initialize_client())
      done = work(views.OnDeviceInput(own, data), broadcast)
      self.kept[client] = done.state
      summed, *secure = done.upload
      total = form.accumulate(total, summed)
    assert secure == [(), (), ()]
    self.state, metrics = form.update(self.state, (form.report(total), *secure))
    return metrics


@pytest.mark.parametrize(
  "name", ["scaffold", pytest.param("twafl", marks=pytest.mark.thorough)]
)
def test_devices_keep_their_states_over_five_rounds(federate, name):
  federation = federate(name)
  process, state = federation.process, federation.process.initialize()
  deployed, kept = Deployment(process), {}
  for t, cohort in enumerate([(0, 1), (1, 2), (2, 0, 3), (3,), (0, 1, 2)]):
    inputs = inputs_of(federation, cohort, t)
    states = [kept.get(c, process.initialize_client()) for c in cohort]
    output = process.next_of(t)(state, states, inputs)
    state = output.state
    kept.update(zip(cohort, output.client_states))
    metrics = deployed.round(t, cohort, inputs)
    driver.assert_same(leaves(deployed.state), leaves(state), f"round {t}")
    driver.assert_same(leaves(metrics), leaves(output.metrics), f"round {t}")
    driver.assert_same(deployed.kept, kept)


@pytest.mark.parametrize(
  "name", [pytest.param("fedavg", marks=pytest.mark.thorough), "scaffold"]
)
def test_a_round_of_one_part_is_what_devices_add_up_one_by_one(federate, name):
  """Of as many clients as the page says."""
  federation = federate(name)
  process = federation.process
  inputs = inputs_of(federation, [k % 4 for k in range(15)])
  deployed = Deployment(process)
  metrics = deployed.round(0, range(15), inputs)
  found = leaves((deployed.state, metrics))

  def of_next():
    own = [process.initialize_client()] * 15
    output = process.next(process.initialize(), own, inputs)
    return leaves((output.state, output.metrics))

  assert driver.differ(found, of_next()), "parts make no difference here"
  with tff_algos.create_runtime(clients_per_part=15):
    driver.assert_same(found, of_next())
  assert "up to 15 clients" in _PAGE.read_text()
  assert "`create_runtime(clients_per_part=15)`" in _PAGE.read_text()


def test_a_round_of_several_exchanges_is_refused_in_one_sentence(federate):
  process = federate("fedagg", **driver.ESTIMATES).process
  with pytest.raises(tff_algos.UnsupportedComputationError, match="more than once"):
    tff_algos.device_form(process)
