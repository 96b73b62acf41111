"""Composes an algorithm's pure functions into a `StatefulProcess`.

With `composition` and `exchange` the one place that writes an algorithm's rounds as
federated computations. A round is

1. the distributor says what of the server's variables is sent, as named parts;
2. every client reads its examples (`client_readings`) and runs the client work on what
   it received;
3. a result with a number that is not finite is dropped: zeros are sent, which count for
   nothing (but in an aggregator that takes no weights, and in the norms that one of
   TFF's learns), the client's state stays as it was, and the metrics count it;
4. each named part of the messages is aggregated by its own aggregator, which may have
   the clients remember what they sent (`ClientMemoryFactory`);
5. the server update makes the new variables; without any accepted message it is
   skipped, and aggregators keep the states that they have, but for those of a
   `ClientMemoryFactory`, whose uploads grow older, and a `norm_limit`'s medians.

Before 2 there may be exchanges that estimate something (`Estimation`). A process may have
several kinds of rounds over the same states (`Round`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tff_algos import hyper_parameters
from tff_algos.client_data import Examples
from tff_algos.client_work.model_update import ClientResult
from tff_algos.errors import InputError, InputWarning, check_function, check_number
from tff_algos.models.functional import Model, check_model
from tff_algos.templates.client_readings import ClientReading
from tff_algos.templates.rounds import AggregationFactory, Round, ServerVariables, mean

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


def check_norm_limit(norm_limit: Optional[float]) -> Optional[float]:
  """The limit; `InputError` unless it is None, or finite and above 1."""
  if norm_limit is None:
    return None
  limit = check_number("norm_limit", norm_limit, of_float32=True)
  if not 1 < limit < math.inf:
    raise InputError(f"norm_limit must be finite and above 1; found {limit:g}.")
  return limit


def check_given(model: Any, hparams: Any) -> None:
  """Raises `InputError` for a Keras model, or a class or mapping of hyper-parameters."""
  check_model(model)
  if not isinstance(hparams, hyper_parameters.HyperParameters):
    raise InputError(
      "hparams must be hyper-parameters of the algorithm, such as "
      f"tff_algos.FedAvgHparams(epochs=2); found {hparams!r}."
    )


def compose_process(
  model: Model,
  hparams: hyper_parameters.HyperParameters,
  *,
  rounds: Round | Mapping[str, Round],
  aggregators: Mapping[str, Optional[AggregationFactory]],
  init_server: Callable[[], Any] = lambda: (),
  init_client: Callable[[], Any] = lambda: (),
  schedule: Sequence[str] = (),
  norm_limit: Optional[float] = None,
) -> StatefulProcess:
  """Makes the process.

  Args:
    model: The model; its initial weights are x^0.
    hparams: The algorithm's hyper-parameters.
    rounds: What a round is; or, where rounds differ in what travels, each kind by name.
    aggregators: An aggregation factory for each part of the message; None: its weighted
      mean.
    init_server: `() -> extra`.
    init_client: `() -> C`.
    schedule: Where there are several kinds, the names of those that follow one another,
      again and again.
    norm_limit: Drops and counts clients whose update's norm is more than so many times
      the median of past rounds, above 1; see `norm_limits`. None: no limit. Not for
      rounds with an `Estimation`, whose means reach all clients before the check.

  Warns:
    InputWarning: A hyper-parameter is not at its default, and nothing reads it, or, of a
      tunable one, no function from its `h`; or a function reads a tunable one as a
      number; or the model's part is added up, not averaged.

  Raises:
    InputError: `model`, `hparams` or an aggregator is something else, or `norm_limit` not
      above 1, or there is an estimation that it would not hold; or an aggregator's
      clients remember their uploads, and the rounds do not take that; or there are
      several kinds of rounds, and no `schedule` of these.
    ProcessTypeError: The functions do not fit together, or clients would draw other
      numbers in each run.
  """
  # Here, as classes of TFF are its bases, without which algorithms can be listed.
  from tff_algos.aggregators.client_memory import ClientMemoryFactory
  from tff_algos.templates import own_functions
  from tff_algos.templates.composition import Composition
  from tff_algos.templates.exchange import Exchange
  from tff_algos.templates.stateful_process import StatefulProcess

  check_given(model, hparams)
  norm_limit = check_norm_limit(norm_limit)
  check_function("init_server", init_server, " of no arguments")
  check_function("init_client", init_client, " of no arguments")
  if not isinstance(rounds, (Round, Mapping)):
    raise InputError(
      "rounds must be a tff_algos.Round, or a mapping of names to several; found a "
      f"{type(rounds).__name__}."
    )
  if not isinstance(aggregators, Mapping):
    raise InputError(
      "aggregators must map the names of the message's parts to factories, such as "
      f"{{'model': tff_algos.mean()}}; found a {type(aggregators).__name__}."
    )
  factories = {p: mean() if f is None else f for p, f in aggregators.items()}
  composition = Composition(
    model, hparams, factories, init_server, init_client, norm_limit
  )
  kinds = {"": rounds} if isinstance(rounds, Round) else dict(rounds)
  for kind in kinds.values():
    own_functions.check_round(kind)
    if norm_limit is not None and kind.estimation is not None:
      raise InputError(
        "norm_limit does not look at what clients estimate before they train, which "
        "reaches all of them (FedAgg's estimates=fixed_point): take estimates of the "
        "round before, or no norm_limit."
      )
    for factory in factories.values():
      if isinstance(factory, ClientMemoryFactory) and not kind.takes_memories:
        raise InputError(
          f"This algorithm cannot take a {type(factory).__name__}: its server goes on "
          "with what this round's clients send, and not with what others sent before."
        )
  exchanges = {k: Exchange(composition, kind, k) for k, kind in kinds.items()}
  composition.create_aggregators(exchanges.values())

  def client_work(
    variables: ServerVariables,
    client_state: Any,
    examples: Examples,
    seed: tf.Tensor,
  ) -> ClientResult:
    (this,) = kinds.values()
    if this.estimation is not None:
      raise InputError(
        "The clients of this round first estimate something together: none works alone."
      )
    h = hyper_parameters.with_values(hparams, composition.constant_hparams())
    parts = this.distribute(variables)
    own = client_state.own if composition.memories else client_state
    return this.client_update(parts, own, examples, seed, h)

  accessors = composition.accessors()
  given: dict[str, Any] = dict(
    rounds=kinds,
    aggregators=factories,
    init_server=init_server,
    init_client=init_client,
    schedule=schedule,
    norm_limit=norm_limit,
  )

  def over(reading: ClientReading) -> StatefulProcess:
    def recompose(**changed: Any) -> StatefulProcess:
      for name in changed:
        if name not in given:
          raise InputError(
            f"{name!r} is nothing that recomposed can change, which is "
            f"{', '.join(given)}: for another model or other hyper-parameters build "
            "the process anew."
          )
      return compose_process(model, hparams, **{**given, **changed}).over(reading)

    return StatefulProcess(
      composition.initialize,
      composition.initialize_client,
      {name: exchange.build_next(reading) for name, exchange in exchanges.items()},
      *accessors,
      schedule=schedule,
      client_work=client_work if len(kinds) == 1 else None,
      count_traffic=lambda: {n: e.traffic(reading) for n, e in exchanges.items()},
      model=model,
      over=over,
      recompose=recompose,
      composed_of={"hparams": hparams, **given},
    )

  process = over(composition.files)
  for found, said in (
    (
      hyper_parameters.unread_values(hparams),
      "changes no round, as nothing has read it by the time that the process is "
      "composed: give the builder hyper-parameters of its algorithm's own class, read it "
      "sooner, or leave it at its default.",
    ),
    (
      hyper_parameters.fixed_values(hparams),
      "is read by no function of the rounds from its h, so that set_hparams and "
      "schedules change nothing: read it there, or leave it at its default.",
    ),
  ):
    if found:
      values = ", ".join(f"{name}={value!r}" for name, value in found.items())
      whose = type(hparams).__name__
      warnings.warn(f"{values} of {whose} {said}", InputWarning, stacklevel=3)
  return process
