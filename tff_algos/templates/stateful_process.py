"""The template of every process: `LearningProcess` with a state for each client.

TFF's `LearningProcess` cannot return anything placed at CLIENTS. This template can, and
is checked as strictly. With S the server's state, C one client's state, D what a client
is handed (`ClientInput`) and M the metrics:

- `initialize`: `( -> S@SERVER)`
- `initialize_client`: `( -> C)`, the state of a client never seen before
- `next`: `(<S@SERVER, {C}@CLIENTS, {D}@CLIENTS> ->
  <state=S@SERVER, client_states={C}@CLIENTS, metrics=M@SERVER>)`
- `get_model_weights`: `(S -> tff.learning.models.ModelWeights)`
- `set_model_weights`: `(<S, ModelWeights> -> S)`
- `get_hparams`: `(S -> OrderedDict)`, `set_hparams`: `(<S, OrderedDict> -> S)`

C is the empty structure for an algorithm whose clients keep nothing. Types are static, so
rounds of different shape (in what travels) are several `next`s over the same S and C,
which a schedule has follow one another.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import tensorflow_federated as tff

from tff_algos.client_data import Examples
from tff_algos.errors import InputError
from tff_algos.models.functional import Model, Weights
from tff_algos.privacy.accounting import GaussianMechanism
from tff_algos.templates import identity as identities
from tff_algos.templates import process_types
from tff_algos.templates.client_readings import ClientReading
from tff_algos.templates.identity import Identity
from tff_algos.templates.ledger import RoundTraffic, bytes_per_client

PersonalModel = Callable[[Weights, Examples], Model]


class Population(NamedTuple):
  """The clients that train, in any round, as far as an algorithm's formulas have them.

  Attributes:
    num_clients: N, how many.
    num_examples: The examples of all of them together; None where no formula has it.
  """

  num_clients: int
  num_examples: Optional[int] = None


class _Said(NamedTuple):
  """What its builder says of a process, which its computations do not."""

  privacy: Optional[GaussianMechanism] = None
  personal_model: Optional[PersonalModel] = None
  population: Optional[Population] = None
  identity: Optional[Identity] = None


class StatefulProcess(tff.templates.IterativeProcess):
  """A federated learning process whose clients keep a state of their own."""

  def __init__(
    self,
    initialize_fn: tff.Computation,
    initialize_client_fn: tff.Computation,
    next_fns: Mapping[str, tff.Computation],
    get_model_weights: tff.Computation,
    set_model_weights: tff.Computation,
    get_hparams: tff.Computation,
    set_hparams: tff.Computation,
    *,
    schedule: Sequence[str] = (),
    client_work: Optional[Callable[..., Any]] = None,
    count_traffic: Optional[Callable[[], Mapping[str, RoundTraffic]]] = None,
    model: Optional[Model] = None,
    over: Optional[Callable[[ClientReading], StatefulProcess]] = None,
    recompose: Optional[Callable[..., StatefulProcess]] = None,
    composed_of: Optional[Mapping[str, Any]] = None,
  ):
    """Checks all types and keeps the computations.

    `next_fns` are the `next` of each kind of round by name; `next` itself is the last.
    Where there are several, `schedule` says which follow one another, again and again.
    `client_work` and `model` are kept for who wants to look at what one client does, and
    `over` for clients who get at their examples in another way. `recompose` builds the
    process anew with some arguments of `compose_process`, `composed_of`, changed.
    `count_traffic` makes `traffic`; default: what crosses in the compiled rounds, without
    parts' names.

    Raises:
      ProcessTypeError: A computation has another type than the module's docstring says.
      InputError: There are several kinds of rounds, and no `schedule` of these.
    """
    process_types.check(
      initialize_fn,
      initialize_client_fn,
      next_fns.values(),
      (get_model_weights, set_model_weights),
      (get_hparams, set_hparams),
    )
    if not schedule and len(next_fns) == 1:
      schedule = tuple(next_fns)
    if not schedule or not set(schedule) <= set(next_fns):
      raise InputError(
        f"Say by schedule which of the kinds of rounds, {', '.join(next_fns)}, follow "
        f"one another; found {tuple(schedule)}."
      )
    super().__init__(initialize_fn, [*next_fns.values()][-1], next_is_multi_arg=True)
    self._next_fns, self._schedule = dict(next_fns), tuple(schedule)
    self._initialize_client, self._client_work = initialize_client_fn, client_work
    self._count_traffic = count_traffic
    self._said = _Said()
    self._model, self._over, self._recompose = model, over, recompose
    self._composed_of = MappingProxyType(dict(composed_of or {}))
    self._get_model_weights = get_model_weights
    self._set_model_weights = set_model_weights
    self._get_hparams = get_hparams
    self._set_hparams = set_hparams

  @property
  def initialize_client(self) -> tff.Computation:
    """`( -> C)`: the state of a client never seen before."""
    return self._initialize_client

  @property
  def state_types(self) -> Any:
    """The server's state with the `tff.TensorType` of each array in its place.

    Its shape has None for an axis whose length may change from round to round.
    """
    return _leaf_types(self.initialize.type_signature.result.member)

  @property
  def client_state_types(self) -> Any:
    """The same of a client's state."""
    return _leaf_types(self.initialize_client.type_signature.result)

  @property
  def client_work(self) -> Optional[Callable[..., Any]]:
    """What one client does in a round, as a pure TensorFlow function.

    None if not known, and where clients send other parts in some rounds.

    `(variables, client_state, examples, seed) -> ClientResult`, with the server's
    `variables` and the hyper-parameters that the process was built with. Its message is
    what the client uploads, before any aggregator. It can be differentiated.
    """
    return self._client_work

  @property
  def model(self) -> Optional[Model]:
    """The model that is trained; None if not known."""
    return self._model

  @property
  def privacy(self) -> Optional[GaussianMechanism]:
    """How private a round is for a client's examples; None where it is not.

    It is of the noise multiplier that the process was built with: who changes that by
    `set_hparams` must account for it.
    """
    return self._said.privacy

  def with_privacy(self, privacy: GaussianMechanism) -> StatefulProcess:
    """The same process, of which its builder says how private it is."""
    return _saying(self._said._replace(privacy=privacy), self)

  @property
  def personal_model(self) -> Optional[PersonalModel]:
    """A client's own model, where the global one alone predicts nothing; else None.

    `(global weights, examples of the client) -> Model`, a pure TensorFlow function of at
    least one example, whose model takes the global weights.
    """
    return self._said.personal_model

  def with_personal_model(self, personal_model: PersonalModel) -> StatefulProcess:
    """The same process, of which its builder says how a client comes to predict."""
    return _saying(self._said._replace(personal_model=personal_model), self)

  @property
  def population(self) -> Optional[Population]:
    """The clients that it was built for; None where it does not matter how many."""
    return self._said.population

  def with_population(
    self, num_clients: int, num_examples: Optional[int] = None
  ) -> StatefulProcess:
    """The same process, of which its builder says for what `Population` it is."""
    # NumPy's integers cannot be written to a file by `save_process`.
    examples = None if num_examples is None else int(num_examples)
    population = Population(int(num_clients), examples)
    return _saying(self._said._replace(population=population), self)

  @property
  def identity(self) -> Identity:
    """What it was composed of; of a loaded process, what the saved one was."""
    return self._said.identity or identities.of(self.composed_of, self.model)

  def with_identity(self, identity: Identity) -> StatefulProcess:
    """The same process, of which its file says what it was composed of."""
    return _saying(self._said._replace(identity=identity), self)

  def over(self, reading: ClientReading) -> StatefulProcess:
    """The same process over clients who get at their examples in another way.

    Server and client states are of the same types, so either goes on with the other's.
    It is not private where clients are told no seeds.

    Raises:
      InputError: `compose_process` has not made this process.
    """
    if self._over is None:
      raise InputError(
        "This process was not made by compose_process, so it takes its clients' data as "
        "it is: give what its `next` takes."
      )
    said = self._said if reading.is_told_seeds else self._said._replace(privacy=None)
    return _saying(said, self._over(reading))

  @property
  def composed_of(self) -> Mapping[str, Any]:
    """The arguments of `compose_process` that made it, {} if that did not.

    So that `recomposed` can be given functions that are made of these. `rounds` is a
    mapping, whose only key is "" where there is one kind.
    """
    return self._composed_of

  def recomposed(self, **changed: Any) -> StatefulProcess:
    """The same process with other arguments of `compose_process`, traced anew.

    The model and the hyper-parameters stay. For example
    `process.recomposed(norm_limit=10.0)`. With other `rounds` its `privacy` is None, as
    clients then may send what hides nothing: say by `with_privacy` what holds.

    Raises:
      InputError: `compose_process` has not made this process, or has no such argument, or
        a value is out of range.
    """
    if self._recompose is None:
      raise InputError(
        "This process was not made by compose_process, so nothing of it can be changed: "
        "change it where it is made."
      )
    said = self._said._replace(privacy=None) if "rounds" in changed else self._said
    return _saying(said, self._recompose(**changed))

  @property
  def next_fns(self) -> Mapping[str, tff.Computation]:
    """The `next` of each kind of round, by name."""
    return self._next_fns

  @property
  def schedule(self) -> tuple[str, ...]:
    """The names of the kinds of rounds that follow one another, again and again."""
    return self._schedule

  def kind_of_round(self, rounds_done: int) -> str:
    """The name of the kind of the round after so many rounds."""
    return self._schedule[rounds_done % len(self._schedule)]

  def next_of(self, rounds_done: int) -> tff.Computation:
    """The `next` of the round after so many rounds."""
    return self._next_fns[self.kind_of_round(rounds_done)]

  @functools.cached_property
  def traffic(self) -> Mapping[str, RoundTraffic]:
    """The bytes that cross in each kind of round, by name; counted when first asked for.

    Parts have the names that the algorithm gave them, and "hparams", "round_num",
    "metrics" for what a composed process adds. What aggregators send for themselves is
    "aggregation", and so is all that crosses in a process that is not composed.
    """
    if self._count_traffic is None:
      return {kind: bytes_per_client(fn) for kind, fn in self._next_fns.items()}
    return self._count_traffic()

  @property
  def get_model_weights(self) -> tff.Computation:
    """`(S -> tff.learning.models.ModelWeights)`."""
    return self._get_model_weights

  @property
  def set_model_weights(self) -> tff.Computation:
    """`(<S, tff.learning.models.ModelWeights> -> S)`.

    TEFL, TWAFL, AFL, whatever has a `TemporalWeightingFactory`, and FedGG by
    `direction=broadcast` keep more of the model than that, also at their clients: they
    begin with other weights by a `Model` that has them.
    """
    return self._set_model_weights

  @property
  def get_hparams(self) -> tff.Computation:
    """`(S -> OrderedDict)` of the tunable hyper-parameters."""
    return self._get_hparams

  @property
  def set_hparams(self) -> tff.Computation:
    """`(<S, OrderedDict> -> S)`: changes them without tracing anything again."""
    return self._set_hparams

  @property
  def is_stateless(self) -> bool:
    """Whether clients keep nothing between rounds (C is the empty structure)."""
    client_type = self._initialize_client.type_signature.result
    return isinstance(client_type, tff.StructType) and len(client_type) == 0


def _saying(said: _Said, process: StatefulProcess) -> StatefulProcess:
  changed = copy.copy(process)
  changed._said = said
  return changed


def check_process(process: Any) -> None:
  """Raises `InputError` for what is no process, such as a model."""
  # By what it has, as another class may do the same.
  if not hasattr(process, "initialize_client"):
    raise InputError(
      f"The process is a {type(process).__name__}: give a StatefulProcess, such as "
      "tff_algos.build_fed_avg(model) makes of a model."
    )


def _leaf_types(value_type: tff.Type) -> Any:
  return tff.types.structure_from_tensor_type_tree(lambda leaf: leaf, value_type)
