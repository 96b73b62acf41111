"""Splits of a labelled training set over clients.

Every split is a pure function of (labels, parameters, seed) and returns a
`Partition`: example indices, no data. It gives every example to at most one client
and says which it gave to nobody; only `twafl` lets clients overlap, because its paper
does. Within a client the examples lie in random order, so that a loader which does
not shuffle again still meets mixed mini-batches.

Sources, as the marks in the docstrings name them: *paper* is printed there, *code* is
what a public implementation does, *recalled* is known from the literature, *derived*
follows from those, *convention* is chosen here because they are silent.

    McMahan et al., Communication-Efficient Learning of Deep Networks from
      Decentralized Data, 2017                                     `iid`, `shards`
    FedGG, section 4.1                                             `dirichlet`
    FedAgg, section VII-A3                            `shards`, `dirichlet_equal`
    McMahan et al. (roles of plays), FedReg (sources, users)       `natural`
    FedReg, section 4.1 and appendix B.2                           `power_law`
    Chen, Sun, Jin, Communication-Efficient Federated Deep Learning with Layerwise
      Asynchronous Model Update and Temporally Weighted Aggregation, Algorithm 4
                                                                   `twafl`
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import zlib
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_algos.errors import InputError

# Beyond these the split is its own limit (one class per client, equal shares), and
# the logarithms below stay far from overflow.
_BETA_RANGE = (1e-6, 1e6)
# A draw takes well under a millisecond for the papers' splits.
_MAX_DRAWS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
  """Which client holds which examples.

  Attributes:
    clients: one int64 array per client, the indices of its examples in random order,
      none twice.
    left_over: int64, ascending, the indices that no client holds.
  """

  clients: tuple[np.ndarray, ...]
  left_over: np.ndarray


def iid(labels: np.ndarray, num_clients: int, *, seed: int) -> Partition:
  """Shuffles the examples and deals them out; nothing is left over.

  Source: recalled (McMahan et al., section 3: MNIST shuffled and dealt to 100 clients
  of 600); sizes that differ by one where the division has a remainder are a convention.

  Args:
    labels: integers, shape [examples]; only their number matters.
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.

  Returns:
    A `Partition` whose client sizes differ by at most 1.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = _check("iid", labels, num_clients)
  rng = _rng("iid", seed)
  owner = rng.permutation(np.arange(len(labels)) % num_clients)
  return _from_owner(owner, num_clients, rng)


def natural(
  labels: np.ndarray,
  num_clients: int,
  *,
  seed: int,
  groups: Optional[np.ndarray] = None,
) -> Partition:
  """Makes each group of the data a client: a role, a user, a source.

  Source: paper (FedReg, section 4.1: images from the same source at the same client);
  recalled (McMahan et al., section 3: a client for each speaking role). The draw among
  more groups than clients is a convention.

  Args:
    labels: integers, shape [examples]; only their number matters.
    num_clients: from 1 to the number G of groups; where it is less, that many groups
      are drawn, and the examples of the others are left over.
    seed: integer >= 0.
    groups: integers 0..G-1 without gaps, shape [examples].

  Returns:
    A `Partition` whose clients are in the order of their groups.

  Raises:
    InputError: an argument is outside its range, or the data have no groups.
  """
  labels = _check_labels("natural", labels)
  _check_at_least("natural", "num_clients", num_clients, 1)
  if groups is None:
    raise InputError(
      "natural: these data do not say from whom each example is: choose another split."
    )
  num_groups = int(groups.max()) + 1
  if num_clients > num_groups:
    raise InputError(
      f"natural: {num_clients} clients but the data come from {num_groups}: lower "
      "num_clients."
    )
  rng = _rng("natural", seed)
  chosen = np.sort(rng.choice(num_groups, num_clients, replace=False))
  client_of = np.full(num_groups, -1)
  client_of[chosen] = np.arange(num_clients)
  return _from_owner(client_of[groups], num_clients, rng)


def shards(
  labels: np.ndarray, num_clients: int, *, seed: int, shards_per_client: int = 2
) -> Partition:
  """Sorts by label, cuts equal shards, deals each client some of them at random.

  With MNIST, 100 clients and 2 shards each: 200 shards of 300. With one shard each,
  the splits of FedReg with equal sizes and one class: EMNIST digits over 10,000 clients
  (24 each) and CIFAR-10 over 10,000 clients (5 each).

  Source: paper (FedAgg, section VII-A3, after McMahan et al., section 3). Convention:
  the remainder of the division into shards is drawn at random from all examples, since
  the end of the sorted list would always take it from the last class.

  Args:
    labels: integers, shape [examples].
    num_clients: at least 1.
    seed: integer >= 0.
    shards_per_client: at least 1; num_clients * shards_per_client is at most the
      number of examples.

  Returns:
    A `Partition`; every client holds shards_per_client shards of
    floor(examples / (num_clients * shards_per_client)). A shard that lies across the
    end of a class holds more than one label.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = _check("shards", labels, num_clients)
  _check_at_least("shards", "shards_per_client", shards_per_client, 1)
  num_shards = num_clients * shards_per_client
  if num_shards > len(labels):
    raise InputError(
      f"shards: {num_clients} clients x {shards_per_client} shards need {num_shards} "
      f"examples but there are {len(labels)}: lower num_clients or shards_per_client."
    )
  rng = _rng("shards", seed)
  shard_size = len(labels) // num_shards
  used = rng.permutation(len(labels))[: num_shards * shard_size]
  by_label = used[np.argsort(labels[used], kind="stable")]
  deal = rng.permutation(np.repeat(np.arange(num_clients), shards_per_client))
  owner = np.full(len(labels), -1)
  owner[by_label] = np.repeat(deal, shard_size)
  return _from_owner(owner, num_clients, rng)


def dirichlet(
  labels: np.ndarray,
  num_clients: int,
  *,
  seed: int,
  beta: float,
  min_size: int = 1,
) -> Partition:
  """Draws class shares p_i ~ Dirichlet(beta) per client; nothing is left over.

  Class j is divided among the clients in proportion to p_ij, so that client i gets
  n_j * p_ij / sum_k p_kj of its n_j examples, rounded by largest remainders.

  Source: paper (FedGG, section 4.1: the vector p_i over the classes, one per client);
  the division of a class by the normalised column is derived from "all examples are
  used"; min_size and the new draw are a convention. Many public repositories draw one
  vector over the *clients* per class instead, which gives other, more unequal sizes.

  Args:
    labels: integers, shape [examples].
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.
    beta: concentration, 1e-6 to 1e6; smaller is more unequal. The paper uses 0.5 and
      0.1.
    min_size: at least 1; all shares are drawn again, up to 1000 times, until every
      client holds this many examples.

  Returns:
    A `Partition` with an empty left_over.

  Raises:
    InputError: an argument is outside its range, or no draw reached min_size.
  """
  labels = _check("dirichlet", labels, num_clients, min_size)
  _check_beta("dirichlet", beta)
  rng = _rng("dirichlet", seed)
  class_of, class_sizes = _classes(labels)
  for _ in range(_MAX_DRAWS):
    log_p = _log_dirichlet(rng, beta, (num_clients, len(class_sizes)))
    counts = round_columns(class_sizes * _softmax(log_p, axis=0), class_sizes)
    if counts.sum(axis=1).min() >= min_size:
      return _from_counts(counts, class_of, rng)
  raise InputError(
    f"dirichlet: none of {_MAX_DRAWS} draws with beta={beta:g} gave each of "
    f"{num_clients} clients min_size={min_size} of the {len(labels)} examples: raise "
    "beta, or lower min_size or num_clients."
  )


def dirichlet_equal(
  labels: np.ndarray, num_clients: int, *, seed: int, beta: float
) -> Partition:
  """Gives every client the same size and a class mix p_i ~ Dirichlet(beta).

  Every place of every client draws its class from p_i. Where a class is asked for more
  often than it has examples, chance decides who gets them, and the others draw again
  from their own p_i among the classes that remain. All clients draw at the same time,
  so that none is served last.

  Source: paper (FedAgg, section VII-A3, for a Dirichlet parameter of 0.6 and 1.0; it is
  silent on the rest); recalled (FedDyn's public code, with which it compares) for equal
  sizes and the draw that goes on when a class runs out; convention for drawing all
  clients at the same time.

  Args:
    labels: integers, shape [examples].
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.
    beta: concentration, 1e-6 to 1e6. The paper uses 0.6 and 1.0.

  Returns:
    A `Partition` whose clients hold floor(examples / num_clients) each.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = _check("dirichlet_equal", labels, num_clients)
  _check_beta("dirichlet_equal", beta)
  rng = _rng("dirichlet_equal", seed)
  class_of, stock = _classes(labels)
  log_p = _log_dirichlet(rng, beta, (num_clients, len(stock)))
  counts = np.zeros((num_clients, len(stock)), np.int64)
  need = np.full(num_clients, len(labels) // num_clients)
  # Every pass fills all places or empties a class: at most one pass per class.
  while need.any():
    open_classes = np.flatnonzero(stock)
    # Again a softmax: all classes that a client favours may have run out, and its
    # chances for the others be too small for a float.
    wanted = rng.multinomial(need, _softmax(log_p[:, open_classes], axis=1))
    for j, asked in zip(open_classes, wanted.T):
      if asked.sum() > stock[j]:
        asked = rng.multivariate_hypergeometric(asked, stock[j])
      counts[:, j] += asked
      need -= asked
      stock[j] -= asked.sum()
  return _from_counts(counts, class_of, rng)


def power_law(
  labels: np.ndarray,
  num_clients: int,
  *,
  seed: int,
  classes_per_client: int = 1,
  sigma: float = 2.0,
  min_size: int = 1,
) -> Partition:
  """Gives few classes to every client and long-tailed sizes, lognormal(0, sigma).

  The classes are dealt so that every client has exactly classes_per_client different
  ones and a class with more examples has more clients. Then each class is divided
  completely among its clients: ceil(min_size / classes_per_client) for each, and the
  rest in proportion to the clients' lognormal weights, rounded by largest remainders.

  Source: paper (FedReg, section 4.1: 5,000 clients of MNIST with images from one class
  or from two, sizes by a power law after Li et al. 2018; appendix B.2: ten clients in
  each of 500 rounds use all training data once on average, so none is left over); code
  (Li et al.'s public generator: a fixed base for everyone plus a share of the rest by
  lognormal(0, 2), normalised per class). Convention: the base, one weight per client
  for all its classes, and classes drawn at random (Li et al. give client u the classes
  u and u + 1 modulo 10).

  Args:
    labels: integers, shape [examples].
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.
    classes_per_client: from 1 to the number of classes.
    sigma: standard deviation of the weights' logarithm, >= 0; 0 gives sizes that are
      equal within a class.
    min_size: at least 1. No client is smaller than classes_per_client either, so that
      it can hold all its classes.

  Returns:
    A `Partition`. Left over are only classes too small to serve one client, and the
    smallest classes if the clients have room for fewer classes than there are.

  Raises:
    InputError: an argument is outside its range, or the classes are too few or too
      small for that many clients.
  """
  labels = _check("power_law", labels, num_clients, min_size)
  _check_at_least("power_law", "classes_per_client", classes_per_client, 1)
  if not 0 <= sigma < math.inf:
    raise InputError(
      f"power_law: sigma must be finite and at least 0 but is {sigma}: give the "
      "standard deviation of the logarithm of the sizes, such as 2."
    )
  class_of, class_sizes = _classes(labels)
  if classes_per_client > len(class_sizes):
    raise InputError(
      f"power_law: classes_per_client={classes_per_client} but the labels have "
      f"{len(class_sizes)} classes: lower classes_per_client."
    )
  base = -(-min_size // classes_per_client)
  capacity = np.minimum(class_sizes // base, num_clients)
  if capacity.sum() < num_clients * classes_per_client:
    raise InputError(
      f"power_law: {num_clients} clients with {classes_per_client} classes each and "
      f"{base} examples per class do not fit the classes' sizes: lower num_clients, "
      "classes_per_client or min_size."
    )
  rng = _rng("power_law", seed)
  places = _apportion_places(class_sizes, capacity, num_clients * classes_per_client)
  holds = _deal_classes(places, num_clients, rng)
  log_weights = rng.normal(0.0, sigma, num_clients)
  counts = np.zeros(holds.shape, np.int64)
  for j in np.flatnonzero(places):
    holders = np.flatnonzero(holds[:, j])
    rest = class_sizes[j] - base * len(holders)
    shares = rest * _softmax(log_weights[holders, np.newaxis], axis=0)
    counts[holders, j] = base + round_columns(shares, rest)[:, 0]
  return _from_counts(counts, class_of, rng)


def twafl(
  labels: np.ndarray,
  num_clients: int,
  *,
  seed: int,
  min_size: int = 1000,
  max_size: int = 1600,
  min_classes: int = 2,
  max_classes: int = 3,
) -> Partition:
  """TWAFL's client data generator; clients may overlap, but repeat nothing inside.

  Each client draws how many classes it has, which, a weight U(0, 1) for each, and its
  size; the size is divided among its classes in proportion to the weights, at least
  one example each, and the examples are drawn without replacement.

  Source: paper (TWAFL, section IV-B and Algorithm 4; its data sets 1@MNIST to 5@MNIST
  are seeds 1 to 5 here, though not the same draws) for the four parameters; code for
  their values and the weights: 2 or 3 classes, MNIST 1000..1600, HAR 250..500.
  Convention: every count is drawn uniformly with both ends included, and a size that
  the smallest class could not fill alone is refused rather than cut.

  Args:
    labels: integers, shape [examples].
    num_clients: at least 1.
    seed: integer >= 0.
    min_size, max_size: bounds of a client's size;
      max_classes <= min_size <= max_size <= size of the smallest class.
    min_classes, max_classes: bounds of a client's number of classes;
      1 <= min_classes <= max_classes <= number of classes.

  Returns:
    A `Partition`; left_over are the examples that no client drew.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = _check_labels("twafl", labels)
  for parameter, value in (
    ("num_clients", num_clients),
    ("min_size", min_size),
    ("max_size", max_size),
    ("min_classes", min_classes),
    ("max_classes", max_classes),
  ):
    _check_at_least("twafl", parameter, value, 1)
  class_of, class_sizes = _classes(labels)
  if not min_classes <= max_classes <= len(class_sizes):
    raise InputError(
      f"twafl: min_classes={min_classes} and max_classes={max_classes} must be in this "
      f"order between 1 and the {len(class_sizes)} classes of the labels: change them."
    )
  if not max_classes <= min_size <= max_size <= class_sizes.min():
    raise InputError(
      f"twafl: min_size={min_size} and max_size={max_size} must be in this order "
      f"between max_classes={max_classes} and the {class_sizes.min()} examples of the "
      "smallest class: change them."
    )
  rng = _rng("twafl", seed)
  members = [np.flatnonzero(class_of == j) for j in range(len(class_sizes))]
  clients = []
  for _ in range(num_clients):
    num_classes = rng.integers(min_classes, max_classes, endpoint=True)
    chosen = rng.choice(len(members), num_classes, replace=False)
    weights = 1.0 - rng.random(num_classes)  # In (0, 1], so that the sum is not 0.
    rest = rng.integers(min_size, max_size, endpoint=True) - num_classes
    shares = rest * weights[:, np.newaxis] / weights.sum()
    counts = 1 + round_columns(shares, rest)[:, 0]
    drawn = [
      rng.choice(members[j], count, replace=False) for j, count in zip(chosen, counts)
    ]
    clients.append(rng.permutation(np.concatenate(drawn)))
  unused = np.ones(len(labels), bool)
  unused[np.concatenate(clients)] = False
  return Partition(tuple(clients), np.flatnonzero(unused))


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
    # Annotations are text here: `from __future__ import annotations`.
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
  labels: np.ndarray,
  num_clients: int,
  seed: int,
  *,
  groups: Optional[np.ndarray] = None,
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


def class_counts(
  partition: Partition, labels: np.ndarray, num_classes: int
) -> np.ndarray:
  """Counts the labels of each class at each client.

  Args:
    partition: a split of these labels.
    labels: integers from 0 to num_classes - 1, shape [examples]; or [examples, steps]
      with -1 at steps without a label.
    num_classes: at least 1.

  Returns:
    int64, shape [clients, num_classes].

  Raises:
    InputError: a label is outside its range.
  """
  lowest = -1 if np.ndim(labels) == 2 else 0
  flat = _check_labels("class_counts", np.ravel(labels))
  _check_at_least("class_counts", "num_classes", num_classes, 1)
  if flat.min() < lowest or flat.max() >= num_classes:
    raise InputError(
      f"class_counts: labels go from {flat.min()} to {flat.max()} but must be in "
      f"{lowest} to {num_classes - 1}: number the classes from 0 or correct num_classes."
    )
  num_clients = len(partition.clients)
  client = np.repeat(np.arange(num_clients), [len(c) for c in partition.clients])
  held = flat.reshape(len(labels), -1)[np.concatenate(partition.clients)]
  cells = (client[:, np.newaxis] * num_classes + held)[held >= 0]
  counts = np.bincount(cells, minlength=num_clients * num_classes)
  return counts.reshape(num_clients, num_classes).astype(np.int64, copy=False)


def _rng(name: str, seed: int) -> np.random.Generator:
  """A generator of its own for each split, so that equal seeds share no draws."""
  _check_at_least(name, "seed", seed, 0)
  return np.random.default_rng(
    np.random.SeedSequence([int(seed), zlib.crc32(name.encode())])
  )


def _check_labels(name: str, labels: np.ndarray) -> np.ndarray:
  labels = np.asarray(labels)
  if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "iu":
    raise InputError(
      f"{name}: labels must be a non-empty vector of integers but have shape "
      f"{labels.shape} and dtype {labels.dtype}: give one class index per example."
    )
  return labels.astype(np.int64, copy=False)


def _check_at_least(name: str, parameter: str, value: int, low: int) -> None:
  if not isinstance(value, (int, np.integer)) or value < low:
    raise InputError(
      f"{name}: {parameter} must be an integer of at least {low} but is {value}: "
      "correct it."
    )


def _check(
  name: str, labels: np.ndarray, num_clients: int, min_size: int = 1
) -> np.ndarray:
  """Checks what the disjoint splits have in common; returns the labels as int64."""
  labels = _check_labels(name, labels)
  _check_at_least(name, "num_clients", num_clients, 1)
  _check_at_least(name, "min_size", min_size, 1)
  if num_clients * min_size > len(labels):
    raise InputError(
      f"{name}: {num_clients} clients with at least {min_size} examples each need "
      f"{num_clients * min_size} but there are {len(labels)}: lower num_clients"
      + (" or min_size." if min_size > 1 else ".")
    )
  return labels


def _check_beta(name: str, beta: float) -> None:
  low, high = _BETA_RANGE
  if not low <= beta <= high:
    raise InputError(
      f"{name}: beta must be from {low:g} to {high:g} but is {beta}: give a small "
      "value such as 0.1 for unequal clients, a large one for equal clients."
    )


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Numbers the classes that occur from 0: (class of each example, class sizes)."""
  _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
  return class_of, sizes


def _softmax(logits: np.ndarray, axis: int) -> np.ndarray:
  weights = np.exp(logits - logits.max(axis=axis, keepdims=True))
  return weights / weights.sum(axis=axis, keepdims=True)


def _log_dirichlet(
  rng: np.random.Generator, beta: float, shape: tuple[int, int]
) -> np.ndarray:
  """Logarithms of rows drawn from the symmetric Dirichlet distribution.

  For small beta most entries are too small for a float: a whole column can come out as
  0, and that class would be lost. In logarithms nothing underflows:
  Gamma(beta) = Gamma(beta + 1) * U^(1 / beta) in distribution, and -log U is
  exponential.
  """
  log_gamma = (
    np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta
  )
  top = log_gamma.max(axis=1, keepdims=True)
  log_sum = top + np.log(np.exp(log_gamma - top).sum(axis=1, keepdims=True))
  return log_gamma - log_sum


def round_columns(shares: np.ndarray, totals: int | np.ndarray) -> np.ndarray:
  """Rounds shares >= 0 by largest remainders so that column j sums to totals[j]."""
  counts = np.floor(shares).astype(np.int64)
  by_remainder = np.argsort(counts - shares, axis=0, kind="stable")
  rank = np.argsort(by_remainder, axis=0)
  return counts + (rank < totals - counts.sum(axis=0))


def _apportion_places(
  class_sizes: np.ndarray, capacity: np.ndarray, num_places: int
) -> np.ndarray:
  """How many clients each class serves, for the most even sizes per client.

  One after the other goes to the class with the most examples per client so far. All
  classes get their first client before one gets a second, the largest first.
  """
  places = np.zeros(len(class_sizes), np.int64)
  for _ in range(num_places):
    per_client = class_sizes / np.maximum(places, 1e-9)
    places[np.argmax(np.where(places < capacity, per_client, -1.0))] += 1
  return places


def _deal_classes(
  places: np.ndarray, num_clients: int, rng: np.random.Generator
) -> np.ndarray:
  """Deals all places to clients at random, to each equally many of different classes.

  Systematic sampling: the places that remain lie on a line, in a random order of the
  classes, and every m-th is taken, m being the clients that remain. No class has more
  than m places, so that none is met twice; one that has exactly m is met for certain,
  so that this stays true for the next client.

  Args:
    places: int64, shape [classes], at most num_clients each; the sum is a multiple of
      num_clients.

  Returns:
    bool, shape [num_clients, classes], whose column sums are places.
  """
  holds = np.zeros((num_clients, len(places)), bool)
  places = places.copy()
  for client in range(num_clients):
    remaining = num_clients - client
    order = rng.permutation(len(places))
    ends = np.cumsum(places[order])
    points = np.arange(rng.integers(remaining), ends[-1], remaining)
    chosen = order[np.searchsorted(ends, points, side="right")]
    holds[client, chosen] = True
    places[chosen] -= 1
  return holds


def _from_counts(
  counts: np.ndarray, class_of: np.ndarray, rng: np.random.Generator
) -> Partition:
  """Gives client i counts[i, j] random examples of class j."""
  num_clients, num_classes = counts.shape
  rest = np.bincount(class_of, minlength=num_classes) - counts.sum(axis=0)
  shuffled = rng.permutation(len(class_of))
  by_class = shuffled[np.argsort(class_of[shuffled], kind="stable")]
  owners = np.tile(np.append(np.arange(num_clients), -1), num_classes)
  owner = np.empty(len(class_of), np.int64)
  owner[by_class] = np.repeat(owners, np.vstack([counts, rest]).T.ravel())
  return _from_owner(owner, num_clients, rng)


def _from_owner(
  owner: np.ndarray, num_clients: int, rng: np.random.Generator
) -> Partition:
  """Collects each client's examples in random order; owner -1 is left over."""
  shuffled = rng.permutation(len(owner))
  by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
  starts = np.searchsorted(owner[by_owner], np.arange(num_clients))
  left_over, *clients = np.split(by_owner, starts)
  return Partition(tuple(clients), np.sort(left_over))
