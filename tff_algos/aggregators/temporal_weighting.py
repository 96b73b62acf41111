"""Temporally weighted aggregation: all clients' last models, older ones counting less.

Chen, Sun, Jin: "Communication-Efficient Federated Deep Learning with Layerwise
Asynchronous Model Update and Temporally Weighted Aggregation", IEEE TNNLS 2020, Eq. (1).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.client_memory import ClientMemoryFactory, Contribution
from tff_algos.errors import InputError, check_number
from tff_algos.models.functional import Weights


class TemporalWeightingFactory(ClientMemoryFactory):
  """x = sum_k n_k a^(t_k - t) w_k / sum_k n_k a^(t_k - t) over all K clients.

  t_k is the round of client k's last upload w_k; at the start every client holds x^0 of
  time 0. The sums are kept without K models on the server [derived]: in round t

      P <- P / a + sum_{k in S} (n_k w_k - n_k a^(t_k - t) w_k_old)

  and the same without the weights for the denominator, where w_k_old and t_k are the
  client's memory. This is a plain sum over the round's clients, so secure aggregation can
  make it. a = 1 counts all uploads alike. The printed Eq. (1) divides by sum_k n_k, which
  lets the model shrink each round; hence `normalize` [code: public implementations].

  A client's n_k may change from upload to upload: what it takes back is what it added
  [derived]. Until its first upload it counts as that upload does, and `total_weight`,
  by which the printed rule divides, stays.
  """

  def __init__(
    self,
    initial: Weights,
    *,
    total_weight: float,
    base: float = math.e / 2,
    normalize: bool = True,
    sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  ):
    """Makes the factory.

    Args:
      initial: x^0, the part's first values: float32 arrays.
      total_weight: sum_k n_k over all K clients, in what the algorithm weighs clients by:
        examples, or the number of clients where all count the same.
      base: a >= 1.
      normalize: Whether to divide by the sum of the weights, not by `total_weight`.
      sum_factory: What sums the contributions; default: `tff.aggregators.SumFactory`. It
        must give their plain sum, without clipping: what a client adds takes back what it
        added before.

    Raises:
      InputError: `initial` is not of float32 arrays, or one has a number that is not
        finite; `base` or `total_weight` is no number or out of range; or `sum_factory`
        is no factory, or TFF's of a mean or of differential privacy, which averages too.
        Inside another factory these are not seen: give none that averages.
    """
    arrays = [np.asarray(w) for w in (initial if np.iterable(initial) else [initial])]
    if any(w.dtype != np.float32 for w in arrays):
      raise InputError(
        "initial must be a sequence of float32 arrays, such as model.initial_weights."
      )
    if not all(np.isfinite(w).all() for w in arrays):
      raise InputError("initial holds a number that is not finite: give finite ones.")
    base = check_number("base", base, of_float32=True)
    total_weight = check_number("total_weight", total_weight, of_float32=True)
    if not 1 <= base < math.inf:
      raise InputError(f"base must be finite and at least 1; found {base}.")
    if not 0 < total_weight < math.inf:
      raise InputError(f"total_weight must be positive and finite; found {total_weight}.")
    averages = (
      tff.aggregators.WeightedAggregationFactory,
      tff.aggregators.UnweightedMeanFactory,
      tff.aggregators.DifferentiallyPrivateFactory,
    )
    if isinstance(sum_factory, averages):
      raise InputError(
        "sum_factory must sum what the clients add, like tff.aggregators.SumFactory(); "
        f"found {type(sum_factory).__name__}, which averages."
      )
    of_sums = tff.aggregators.UnweightedAggregationFactory
    if sum_factory is not None and not isinstance(sum_factory, of_sums):
      raise InputError(
        f"sum_factory must be an aggregation factory of TFF; found {sum_factory!r}."
      )
    self._initial = tuple(arrays)
    self._total_weight = float(total_weight)
    self._base = float(base)
    self._normalize = normalize
    self._sum_factory = sum_factory or tff.aggregators.SumFactory()

  def initialize_client(self) -> Any:
    """x^0, uploaded in round 0."""
    return OrderedDict(
      value=self._initial_tensors(), weight=tf.constant(0.0), round_num=tf.constant(0)
    )

  def contribute(
    self, value: Weights, weight: tf.Tensor, memory: Any, round_num: tf.Tensor
  ) -> tuple[Contribution, Any]:
    """n_k w_k - n_k_old a^(t_k - t) w_k_old, and n_k - n_k_old a^(t_k - t).

    Raises:
      InputError: The part is not of the shapes of `initial`.
    """
    found = [tuple(w.shape) for w in value]
    if found != [w.shape for w in self._initial]:
      raise InputError(
        "The initial values of a TemporalWeightingFactory have the shapes "
        f"{[w.shape for w in self._initial]}, but what it aggregates has {found}: give "
        "those of the part, such as model.initial_weights."
      )
    age = tf.cast(round_num - memory["round_num"], tf.float32)
    added = tf.where(memory["round_num"] > 0, memory["weight"], weight)
    old_weight = added * self._base**-age
    numerator = tuple(
      weight * new - old_weight * old for new, old in zip(value, memory["value"])
    )
    memory = OrderedDict(value=value, weight=weight, round_num=round_num)
    return Contribution(numerator, weight - old_weight), memory

  def skip_round(self, state: Any) -> Any:
    """All uploads get one round older."""
    aged = tf.nest.map_structure(lambda v: v / self._base, state["sums"])
    return OrderedDict(sums=aged, sum=state["sum"])

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """The process over contributions; its result is x, without their weight.

    Raises:
      InputError: `value_type` is none of contributions, as where another factory, such as
        one that clips, is around this one.
    """
    if not isinstance(value_type, tff.StructWithPythonType) or (
      value_type.python_container is not Contribution
    ):
      raise InputError(
        "TemporalWeightingFactory sums what clients add, not their weights, so no other "
        "aggregation factory goes around it: give one that sums as its sum_factory."
      )
    sum_process = self._sum_factory.create(value_type)

    @tff.tensorflow.computation
    def initial_sums() -> Contribution:
      value = tuple(self._total_weight * w for w in self._initial_tensors())
      return Contribution(value, tf.constant(self._total_weight))

    sums_type = initial_sums.type_signature.result

    @tff.federated_computation
    def initialize() -> tff.Value:
      sums = tff.federated_eval(initial_sums, tff.SERVER)
      return tff.federated_zip(OrderedDict(sums=sums, sum=sum_process.initialize()))

    @tff.tensorflow.computation(sums_type, value_type)
    def add(sums: Contribution, summed: Contribution) -> Contribution:
      value, weight = summed
      return Contribution(
        tuple(p / self._base + c for p, c in zip(sums.value, value)),
        sums.weight / self._base + weight,
      )

    @tff.tensorflow.computation(sums_type)
    def divide(sums: Contribution) -> Weights:
      weight = sums.weight if self._normalize else self._total_weight
      return tuple(p / weight for p in sums.value)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(
      state: tff.Value, contributions: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
      summed = sum_process.next(state["sum"], contributions)
      sums = tff.federated_map(add, (state["sums"], summed.result))
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(OrderedDict(sums=sums, sum=summed.state)),
        tff.federated_map(divide, sums),
        summed.measurements,
      )

    return tff.templates.AggregationProcess(initialize, next_fn)

  def _initial_tensors(self) -> Weights:
    return tuple(tf.constant(w) for w in self._initial)
