"""The table of splits, and how a word of the command line names one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from numpy.typing import NDArray

from tff_algos import spellings
from tff_algos.partitions.assignment import Partition
from tff_algos.partitions.dealing import iid, natural, shards
from tff_algos.partitions.dirichlet_draws import (
  dirichlet,
  dirichlet_by_class,
  dirichlet_equal,
)
from tff_algos.partitions.few_classes import power_law, twafl


class Split(NamedTuple):
  """A row of `SPLITS`.

  Attributes:
    function: the split.
    description: one line that says what it does.
  """

  function: Callable[..., Partition]
  description: str


SPLITS: dict[str, Split] = {
  "iid": Split(iid, "shuffled and dealt out, sizes equal to within one"),
  "natural": Split(natural, "a client for each role, user or source"),
  "shards": Split(shards, "sorted by label and cut into shards, a few per client"),
  "dirichlet": Split(dirichlet, "class shares Dirichlet(beta) per client, all used"),
  "dirichlet_by_class": Split(
    dirichlet_by_class, "client shares Dirichlet(beta) per class, as NIID-Bench's"
  ),
  "dirichlet_equal": Split(
    dirichlet_equal, "class mix Dirichlet(beta) per client, equal sizes"
  ),
  "power_law": Split(power_law, "one or few classes per client, lognormal sizes"),
  "twafl": Split(twafl, "TWAFL's generator: 2 or 3 classes, clients overlap"),
}


NAMES: tuple[str, ...] = tuple(SPLITS)


def parse(spec: str) -> tuple[str, dict[str, Any]]:
  """Reads the command line's form of a split.

  >>> parse("dirichlet:beta=0.1,min_size=10")
  ('dirichlet', {'beta': 0.1, 'min_size': 10})

  Args:
    spec: a name of `NAMES`, then optionally a colon and key=value pairs separated by
      commas.

  Returns:
    The name and the keyword arguments of its function, of the right types. Whether
    they are in range is for that function to say.

  Raises:
    InputError: the name is unknown, or a parameter is unknown, malformed, of the wrong
      type, given twice or missing.
  """
  functions = {name: split.function for name, split in SPLITS.items()}
  return spellings.parse(spec, "split", functions, given=("seed", "groups"))


def partition(
  spec: str,
  labels: NDArray[Any],
  num_clients: int,
  seed: int,
  *,
  groups: Optional[NDArray[Any]] = None,
) -> Partition:
  """Splits as the command line's form says, for example "shards:shards_per_client=2".

  Args:
    spec: see `parse`.
    labels: integers, shape [examples]; for a split that does not go by labels of any
      kind, shape [examples, ...].
    num_clients: at least 1.
    seed: integer >= 0.
    groups: for `natural`, from whom each example is.

  Returns:
    The `Partition` of the named function.

  Raises:
    InputError: what `parse` or the function raises.
  """
  name, kwargs = parse(spec)
  if name == "natural":
    kwargs["groups"] = groups
  return SPLITS[name].function(labels, num_clients, seed=seed, **kwargs)
