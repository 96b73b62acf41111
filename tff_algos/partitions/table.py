"""The table of splits, and how a word of the command line names one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError
from tff_algos.partitions.assignment import Partition
from tff_algos.partitions.dealing import iid, natural, shards
from tff_algos.partitions.dirichlet_draws import dirichlet, dirichlet_equal
from tff_algos.partitions.few_classes import power_law, twafl


class Split(NamedTuple):
  """A row of `SPLITS`.

  Attributes:
    function: the split.
    description: one line that says what it does.
    by_label: whether the labels decide, and not only how many there are.
  """

  function: Callable[..., Partition]
  description: str
  by_label: bool = True


SPLITS: dict[str, Split] = {
  "iid": Split(iid, "shuffled and dealt out, sizes equal to within one", by_label=False),
  "natural": Split(natural, "a client for each role, user or source", by_label=False),
  "shards": Split(shards, "sorted by label and cut into shards, a few per client"),
  "dirichlet": Split(dirichlet, "class shares Dirichlet(beta) per client, all used"),
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
  name, colon, rest = spec.partition(":")
  name = name.strip()
  if name not in SPLITS:
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
    raise InputError(
      f"split {spec!r}: there is no split named {name!r}, the nearest is {near!r}: "
      f"give one of {', '.join(NAMES)}."
    )
  types = {
    # Annotations are text: the splits' modules import those of `__future__`.
    key: ({"int": int, "float": float}[parameter.annotation], parameter.default)
    for key, parameter in inspect.signature(SPLITS[name].function).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and key not in ("seed", "groups")
  }
  takes = ", ".join(
    f"{key} ({kind.__name__}"
    + (", required)" if default is inspect.Parameter.empty else f", {default})")
    for key, (kind, default) in types.items()
  )
  takes = f"{name} takes {takes or 'no parameters'}."
  kwargs: dict[str, Any] = {}
  for item in rest.split(",") if colon else ():
    key, equals, text = (part.strip() for part in item.partition("="))
    if not (key and equals and text):
      raise InputError(f"split {spec!r}: {item!r} is not of the form key=value: {takes}")
    if key not in types:
      raise InputError(f"split {spec!r}: there is no parameter {key!r}: {takes}")
    if key in kwargs:
      raise InputError(f"split {spec!r}: {key} is given twice: {takes}")
    kind = types[key][0]
    try:
      kwargs[key] = kind(text)
    except ValueError:
      raise InputError(
        f"split {spec!r}: {key}={text} is not {kind.__name__}: {takes}"
      ) from None
  for key, (_, default) in types.items():
    if default is inspect.Parameter.empty and key not in kwargs:
      raise InputError(f"split {spec!r}: {key} is missing: {takes}")
  return name, kwargs


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
    labels: integers, shape [examples]; or [examples, steps] for a split that does not
      go by labels.
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
  if np.ndim(labels) == 2 and not SPLITS[name].by_label:
    labels = labels[:, 0]
  return SPLITS[name].function(labels, num_clients, seed=seed, **kwargs)
