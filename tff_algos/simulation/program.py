"""A federated program for algorithms whose clients keep a state.

For those without, TFF's own takes them: `tff.learning.programs.train_model` with
`as_learning_process`.
"""

from __future__ import annotations

import copy
import io
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff
import tree

from tff_algos.errors import InputError, check_is, check_whole_number, first_line
from tff_algos.runtimes import private_apis
from tff_algos.simulation import array_files, cohorts
from tff_algos.simulation import origin as origins
from tff_algos.simulation.client_files import ClientFiles
from tff_algos.simulation.client_source import ClientSource, ClientSourceIterator
from tff_algos.simulation.client_state_store import ClientStateStore
from tff_algos.templates.stateful_process import StatefulProcess

# After so many rounds, and after the last, the state is released, as TFF's program does.
_RELEASE_EVERY = 10
_KEY = "training_checkpoint_round_{}"


class KeptStates(private_apis.Serializable):
  """The states of all clients that have one, as a part of a program's state."""

  def __init__(self, leaves: Mapping[int, list[Any]]):
    """Keeps the leaves of each client's state, by its place."""
    self.leaves = dict(leaves)

  def to_bytes(self) -> bytes:
    """All leaves as one .npz."""
    arrays = {
      f"{p}/{i}": v for p, each in self.leaves.items() for i, v in enumerate(each)
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()

  @classmethod
  def from_bytes(cls, buffer: bytes) -> KeptStates:
    """The states that `to_bytes` wrote down."""
    leaves: dict[int, list[Any]] = {}
    with np.load(io.BytesIO(buffer)) as file:
      for name in file.files:
        leaves.setdefault(int(name.partition("/")[0]), []).append(file[name])
    return cls(leaves)


class KeptOrigin(private_apis.Serializable):
  """What a program began with, as a part of its state."""

  def __init__(self, origin: origins.Origin):
    """Keeps it."""
    self.origin = dict(origin)

  def to_bytes(self) -> bytes:
    """As JSON."""
    return json.dumps(self.origin).encode()

  @classmethod
  def from_bytes(cls, buffer: bytes) -> KeptOrigin:
    """What `to_bytes` wrote down."""
    return cls(json.loads(buffer))


class ProgramState(NamedTuple):
  """What the program keeps to go on after it was ended.

  Attributes:
    state: The server state.
    client_states: The clients' states.
    round_num: The number of rounds done.
    data_iterator: The clients that are next.
    origin: What it began with.
  """

  state: Any
  client_states: KeptStates
  round_num: int
  data_iterator: ClientSourceIterator
  origin: KeptOrigin


async def train_with_client_states(
  *,
  train_process: StatefulProcess,
  train_data_source: ClientSource,
  train_per_round_clients: int,
  train_total_rounds: int,
  program_state_manager: tff.program.ProgramStateManager,
  model_output_manager: tff.program.ReleaseManager,
  train_metrics_manager: Optional[tff.program.ReleaseManager] = None,
) -> None:
  """`tff.learning.programs.train_model` for a process whose clients keep a state.

  The state is saved before the first round and after each, the clients' states whole:
  TensorFlow takes at most 2 GB of them. If there is one, the program goes on from the
  newest, with the numbers of a program that was never ended, which are also `simulate`'s.
  A round's metrics and model are released before, so that none is left out: a program
  that died in between releases the same again, by the same key.

  Run it in the context of `Runtime.federated_context()`.

  Args:
    train_process: The process.
    train_data_source: Its clients.
    train_per_round_clients: The size of the cohort.
    train_total_rounds: Rounds in all.
    program_state_manager: Keeps the program's state.
    model_output_manager: Is given the server state every 10 rounds and after the last,
      also where that was done before, by the key `training_checkpoint_round_N`.
    train_metrics_manager: Is given each round's metrics, by its number from 1.

  Raises:
    ValueError: The context in force is not a `tff.program.FederatedContext`.
    InputError: What is given is of another kind or out of range, a client has a label
      for which the model has no output, the process was built for another population,
      or the program began with other clients, another seed, another algorithm or other
      hyper-parameters; or its newest state is damaged.
    DamagedError: A client's file does not hold what `write_clients` wrote.
    FileNotFoundError: The clients that the program began with are nowhere any more.
  """
  tff.program.check_in_federated_context()
  check_is("train_process", train_process, StatefulProcess)
  if not hasattr(train_data_source, "clients"):  # Another class may do the same.
    check_is("train_data_source", train_data_source, ClientSource)
  check_whole_number("train_total_rounds", train_total_rounds, 0)
  keeps, releases = tff.program.ProgramStateManager, tff.program.ReleaseManager
  check_is("program_state_manager", program_state_manager, keeps, "tff.program")
  check_is("model_output_manager", model_output_manager, releases, "tff.program")
  if train_metrics_manager is not None:
    check_is("train_metrics_manager", train_metrics_manager, releases, "tff.program")
  clients = train_data_source.clients
  files = ClientFiles(clients, train_process.model, train_process.identity.example)
  check_whole_number("train_per_round_clients", train_per_round_clients, 1, len(clients))
  cohorts.check_population(train_process.population, clients.num_examples)
  materialize = tff.program.materialize_value
  initial = await materialize(train_process.initialize_client())
  array_files.check_dtypes(initial, "a client's state")
  start = await materialize(train_process.initialize())
  tunable = await materialize(train_process.get_hparams(start))
  origin = KeptOrigin(origins.of_process(train_process, tunable, initial))
  begun = ProgramState(start, KeptStates({}), 0, train_data_source.iterator(), origin)
  found = await _newest(program_state_manager, begun)
  state, kept, round_num, iterator, _ = found or begun
  if found is None:
    await program_state_manager.save(copy.deepcopy(begun), version=0)
  else:
    origins.check(origin.origin, found.origin.origin, "The program")
    if isinstance(begun.data_iterator, ClientSourceIterator):
      iterator.check_goes_on(begun.data_iterator)
  if found is not None and round_num >= train_total_rounds:
    await model_output_manager.release(state, key=_KEY.format(round_num))
  store = ClientStateStore(initial, types=train_process.client_state_types)
  for place, leaves in kept.leaves.items():
    store.put([place], [tree.unflatten_as(initial, leaves)])
  leaves_of = dict(kept.leaves)
  for done in range(int(round_num), train_total_rounds):
    places = iterator.next_places(train_per_round_clients)
    with files.read_in(done + 1, [clients.ids[place] for place in places]):
      inputs = iterator.select(train_per_round_clients)
      output = await materialize(
        train_process.next_of(done)(state, store.get(places), inputs)
      )
    state = output.state
    store.put(places, output.client_states)
    if not train_process.is_stateless:
      leaves_of.update(zip(places, map(tree.flatten, output.client_states)))
    if train_metrics_manager is not None:
      # As TFF's program calls them.
      metrics = OrderedDict(
        model_metrics=output.metrics["client_work"]["train"],
        aggregator=output.metrics["aggregator"],
      )
      await train_metrics_manager.release(metrics, key=done + 1)
    if (done + 1) % _RELEASE_EVERY == 0 or done + 1 == train_total_rounds:
      await model_output_manager.release(state, key=_KEY.format(done + 1))
    # Last: where the program dies before, the round is done and released again, the same.
    await program_state_manager.save(
      ProgramState(
        state, KeptStates(leaves_of), done + 1, copy.deepcopy(iterator), origin
      ),
      version=done + 1,
    )


async def _newest(
  manager: tff.program.ProgramStateManager, begun: ProgramState
) -> Optional[ProgramState]:
  """What the manager has kept last; None where it has nothing.

  Raises:
    InputError: It cannot be read, or is of an algorithm with other states.
    FileNotFoundError: The folder of the clients is gone.
  """
  found: Optional[ProgramState]
  try:
    found, _ = await manager.load_latest(begun)
  except (InputError, FileNotFoundError):
    raise
  except Exception as error:  # Of TFF and TensorFlow there are many.
    version = max(await manager.get_versions() or [0])
    raise InputError(
      f"The program's newest state, of version {version}, cannot be gone on with, as it "
      "is damaged, of another algorithm or model, or of an older version of this library "
      f"({first_line(error)}): where it is damaged, remove it, so that the one before is "
      "taken; else begin anew with another folder for its state."
    ) from error
  return found
