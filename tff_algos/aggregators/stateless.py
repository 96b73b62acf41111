"""Aggregation processes that remember nothing between rounds."""

from __future__ import annotations

import tensorflow_federated as tff


def process(
  value_type: tff.Type,
  weight_type: tff.Type,
  nobody: tff.Computation,
  accumulate: tff.Computation,
  merge: tff.Computation,
  report: tff.Computation,
) -> tff.templates.AggregationProcess:
  """A weighted process without a state, which measures nothing.

  Args:
    value_type: Of a client's value.
    weight_type: Of its weight.
    nobody: `() -> accumulator`.
    accumulate: `(accumulator, (value, weight)) -> accumulator`.
    merge: `(accumulator, accumulator) -> accumulator`.
    report: `accumulator -> result`.
  """

  @tff.federated_computation
  def initialize() -> tff.Value:
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(value_type, tff.CLIENTS),
    tff.FederatedType(weight_type, tff.CLIENTS),
  )
  def next_fn(
    state: tff.Value, values: tff.Value, weights: tff.Value
  ) -> tff.templates.MeasuredProcessOutput:
    clients = tff.federated_zip((values, weights))
    result = tff.federated_aggregate(clients, nobody(), accumulate, merge, report)
    return tff.templates.MeasuredProcessOutput(
      state, result, tff.federated_value((), tff.SERVER)
    )

  return tff.templates.AggregationProcess(initialize, next_fn)
