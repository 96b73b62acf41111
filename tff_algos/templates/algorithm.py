"""What a module of `tff_algos.algorithms` says of the algorithms in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tff_algos.hyper_parameters import HyperParameters

if TYPE_CHECKING:
  from tff_algos.models.functional import Model
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
  """

  name: str
  builder: Callable[..., StatefulProcess]
  hparams_class: type[HyperParameters]
  description: str
  source: str

  def build(
    self, model: Model, hparams: HyperParameters, *, num_clients: int, num_examples: int
  ) -> StatefulProcess:
    """Builds the process.

    Args:
      model: A `tff_algos.Model`.
      hparams: An instance of `hparams_class`.
      num_clients: The number of all clients; used where the algorithm needs it.
      num_examples: The examples of all clients together; used likewise.
    """
    population = {"num_clients": num_clients, "num_examples": num_examples}
    options = inspect.signature(self.builder).parameters
    needed = {name: value for name, value in population.items() if name in options}
    return self.builder(model, hparams, **needed)
