"""What a module of `tff_algos.algorithms` says of the algorithms in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Optional

from tff_algos.errors import InputError
from tff_algos.hyper_parameters import HyperParameters

if TYPE_CHECKING:
  from tff_algos.models.functional import Model
  from tff_algos.templates.rounds import AggregationFactory
  from tff_algos.templates.stateful_process import StatefulProcess


class Algorithm(NamedTuple):
  """One row of the table of algorithms.

  Attributes:
    name: What `--algorithm` takes, and the prefix of the algorithm's own flags.
    builder: `(model, hparams, **options) -> StatefulProcess`. What it must be told of the
      population are options `num_clients` and `num_examples`, of all clients together.
    hparams_class: The dataclass of its hyper-parameters.
    description: A few words for lists.
    source: The paper.
    is_personal: Whether the global model predicts nothing by itself: clients have models
      of their own, `process.personal_model`.
  """

  name: str
  builder: Callable[..., StatefulProcess]
  hparams_class: type[HyperParameters]
  description: str
  source: str
  is_personal: bool = False

  @property
  def takes_aggregator(self) -> bool:
    """Whether another aggregation of the model's part may take the place of its own.

    Not where the server takes back what a client added before, as TWAFL's does.
    """
    return "model_aggregator" in inspect.signature(self.builder).parameters

  def check_aggregator(self) -> None:
    """Raises `InputError` unless the algorithm takes an aggregator."""
    if not self.takes_aggregator:
      raise InputError(
        f"{self.name} takes no aggregator, as its builder has no model_aggregator: leave "
        "it out, or limit what clients send by norm_limit."
      )

  def check_builder(self) -> None:
    """Raises `InputError` unless `build` can call the builder."""
    try:
      signature = inspect.signature(self.builder)
      signature.bind(None, None, **self._asked(num_clients=0, num_examples=0))
    except (TypeError, ValueError) as error:
      raise InputError(
        f"The builder of {self.name} must be a function (model, hparams) whose options "
        f"besides num_clients and num_examples have defaults ({error}); it is "
        f"{self.builder!r}."
      ) from error

  def _asked(self, **population: int) -> dict[str, int]:
    """Those of the population's numbers that the builder has options of."""
    options = inspect.signature(self.builder).parameters
    return {name: value for name, value in population.items() if name in options}

  def build(
    self,
    model: Model,
    hparams: HyperParameters,
    *,
    num_clients: int,
    num_examples: int,
    aggregator: Optional[AggregationFactory] = None,
  ) -> StatefulProcess:
    """Builds the process.

    Args:
      model: A `tff_algos.Model`.
      hparams: An instance of `hparams_class`.
      num_clients: The number of all clients; used where the algorithm needs it.
      num_examples: The examples of all clients together; used likewise.
      aggregator: Takes the place of its own for the model's part; None: none does.

    Raises:
      InputError: It takes no aggregator, a value is out of range, or its builder gives
        no `StatefulProcess`, or one that is not as the row says.
    """
    # Here, as a class of TFF is its base, without which algorithms can be listed.
    from tff_algos.templates.stateful_process import StatefulProcess

    needed = self._asked(num_clients=num_clients, num_examples=num_examples)
    if aggregator is not None:
      self.check_aggregator()
      needed["model_aggregator"] = aggregator
    process = self.builder(model, hparams, **needed)
    if not isinstance(process, StatefulProcess):
      raise InputError(
        f"The builder of {self.name} gives a {type(process).__name__}: it must give a "
        "tff_algos.StatefulProcess, as compose_process and from_learning_process do."
      )
    if self.is_personal != (process.personal_model is not None):
      has = "no" if self.is_personal else "a"
      raise InputError(
        f"{self.name} has {has} personal_model, but its row has is_personal="
        f"{self.is_personal}: give its process one by with_personal_model, or change "
        "the row."
      )
    return process
