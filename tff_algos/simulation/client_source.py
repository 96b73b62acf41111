"""Clients on disk as the data source of TFF's federated programs."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

import tensorflow_federated as tff

from tff_algos import client_data
from tff_algos.client_data import ClientDirectory, ClientInput
from tff_algos.errors import InputError, check_is, check_whole_number
from tff_algos.simulation import client_inputs, cohorts


class ClientSource(tff.program.FederatedDataSource):
  """The clients of a folder, in cohorts that are drawn as `simulate` draws them.

  So with the same seed a program's rounds are those of `simulate`, also after it was
  ended and went on with the iterator that its program state holds: with the same clients,
  wherever they are now, on disk or `in_memory()`.
  """

  def __init__(self, clients: ClientDirectory, seed: int = 0):
    """Makes the source.

    Args:
      clients: All clients.
      seed: The seed of cohorts and of the clients' draws, >= 0.

    Raises:
      InputError: The seed is no whole number of at least 0, or the clients are no
        `ClientDirectory`.
    """
    check_is("clients", clients, ClientDirectory)
    self.clients, self.seed = clients, check_whole_number("seed", seed, 0)
    if clients.has_checksums:
      _FOLDERS[clients.digest()] = _place(clients)

  @property
  def federated_type(self) -> tff.FederatedType:
    """`{ClientInput}@CLIENTS`."""
    return _TYPE

  def iterator(self) -> ClientSourceIterator:
    """An iterator before the first round."""
    return ClientSourceIterator(self.clients, self.seed)


class ClientSourceIterator(tff.program.FederatedDataSourceIterator):
  """The cohorts of a `ClientSource`, round after round."""

  def __init__(self, clients: ClientDirectory, seed: int, rounds_done: int = 0):
    self._clients, self._seed, self._rounds_done = clients, seed, rounds_done

  @property
  def federated_type(self) -> tff.FederatedType:
    """`{ClientInput}@CLIENTS`."""
    return _TYPE

  def next_places(self, k: int) -> list[int]:
    """The places of the clients that `select(k)` gives next."""
    drawn = cohorts.uniform_cohort(len(self._clients), k, self._seed, self._rounds_done)
    return list(drawn)

  def select(self, k: Optional[int] = None) -> list[ClientInput]:
    """The next cohort, of k clients; default: of all.

    Raises:
      InputError: There are not so many clients, or k is not positive.
      DamagedError: A client's file does not hold what `write_clients` wrote.
    """
    places = self.next_places(len(self._clients) if k is None else k)
    ids = [self._clients.ids[place] for place in places]
    self._clients.check_files(ids, f" in round {self._rounds_done + 1}")
    inputs = client_inputs.of_cohort(self._clients, places, self._seed, self._rounds_done)
    self._rounds_done += 1
    return inputs

  def check_goes_on(self, given: ClientSourceIterator) -> None:
    """Compares the iterator that a program has kept with the one that it is given now.

    Raises:
      InputError: They have other clients or other seeds.
    """
    now = given._of()
    for what, began in self._of().items():
      if began != now[what]:
        raise InputError(
          f"The program began with {what} {began}, but its data source has {now[what]}: "
          "give it what it began with, or begin anew with another folder for its state."
        )

  def _of(self) -> dict[str, object]:
    found: dict[str, object] = {
      "the clients of the digest": self._clients.digest(),
      "the seed": self._seed,
    }
    # Without checksums a digest does not tell clients of as many examples apart.
    if not self._clients.has_checksums:
      found["the clients of"] = _place(self._clients)
    return found

  def to_bytes(self) -> bytes:
    """What `from_bytes` reads: where the clients are and how many rounds are done."""
    content = {
      "folder": _place(self._clients),
      "clients": self._clients.digest(),
      "seed": self._seed,
      "rounds_done": self._rounds_done,
    }
    return json.dumps(content).encode()

  @classmethod
  def from_bytes(cls, buffer: bytes) -> ClientSourceIterator:
    """The iterator that `to_bytes` wrote down.

    Its clients are those of a `ClientSource` that this process has made of the same ones;
    without one, those of the folder in which they were.

    Raises:
      FileNotFoundError: There is no such source, and the folder is gone.
      InputError: The folder holds other clients.
    """
    content = json.loads(buffer)
    began_in = content["folder"]
    others = None
    for folder in dict.fromkeys([_FOLDERS.get(content["clients"], began_in), began_in]):
      try:
        clients = ClientDirectory(folder)
      except FileNotFoundError:
        continue
      if clients.digest() == content["clients"]:
        return cls(clients, content["seed"], content["rounds_done"])
      others = folder
    if others is None:
      raise FileNotFoundError(
        f"The clients that the program began with are no longer in {began_in}: give its "
        "data source these, wherever they are, or begin anew with another folder for the "
        "program's state."
      )
    raise InputError(
      f"{others} holds other clients than those that the program began with: put these "
      "back, or begin anew with another folder for the program's state."
    )

  def __deepcopy__(self, memo: Any) -> ClientSourceIterator:
    # Programs copy it in each round; the directory never changes.
    return ClientSourceIterator(self._clients, self._seed, self._rounds_done)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, ClientSourceIterator):
      return NotImplemented
    return self.to_bytes() == other.to_bytes()

  # It changes.
  __hash__ = None  # type: ignore[assignment]


_TYPE = tff.FederatedType(tff.to_type(client_data.CLIENT_INPUT_TYPE), tff.CLIENTS)

# Where this process's sources have their clients, by digest: TFF asks `from_bytes` for an
# iterator without saying for which source.
_FOLDERS: dict[str, str] = {}


def _place(clients: ClientDirectory) -> str:
  """Where they are, whatever folder a process starts in."""
  folder = clients.folder
  return folder if "://" in folder else os.path.realpath(folder)
