"""The table of splits, their words on the command line, and what they refuse."""

from __future__ import annotations

import fractions

import numpy as np
import pytest
from split_laws import ALL, DISJOINT, equal, shuffled

from tff_algos import partitions
from tff_algos.errors import InputError

# Not by label, so that a sequence's labels are no matter either.
_BY_NUMBER = ("iid", "natural")


# --- The command line's form --------------------------------------------------------


@pytest.mark.parametrize(
  ("spec", "expected"),
  [
    ("iid", ("iid", {})),
    ("shards:shards_per_client=3", ("shards", {"shards_per_client": 3})),
    (
      "dirichlet:beta=0.1,min_size=10",
      ("dirichlet", {"beta": 0.1, "min_size": 10}),
    ),
    (" dirichlet_equal: beta = 1 ", ("dirichlet_equal", {"beta": 1.0})),
    (
      "power_law:sigma=1e-1,classes_per_client=2",
      ("power_law", {"sigma": 0.1, "classes_per_client": 2}),
    ),
    ("twafl:min_size=250,max_size=500", ("twafl", {"min_size": 250, "max_size": 500})),
  ],
)
def test_parse(spec, expected):
  name, kwargs = partitions.parse(spec)
  assert (name, kwargs) == expected
  assert [type(v) for v in kwargs.values()] == [type(v) for v in expected[1].values()]


@pytest.mark.parametrize(
  ("spec", "fragments"),
  [
    ("dirichlett:beta=1", ["'dirichlett'", "nearest is 'dirichlet'", "power_law"]),
    ("IID", ["'IID'", "nearest is 'iid'"]),
    ("", ["no split named ''", "iid"]),
    ("iid:seed=3", ["no parameter 'seed'", "iid takes no parameters"]),
    ("iid:", ["key=value"]),
    ("shards:shards=2", ["no parameter 'shards'", "shards_per_client (int, 2)"]),
    ("dirichlet", ["beta is missing", "beta (float, required)", "min_size (int, 1)"]),
    ("dirichlet:min_size=2", ["beta is missing"]),
    ("dirichlet:beta", ["'beta' is not of the form key=value", "beta (float"]),
    ("dirichlet:beta=", ["'beta=' is not of the form key=value"]),
    ("dirichlet:=1", ["'=1' is not of the form key=value"]),
    ("dirichlet:beta=1,", ["'' is not of the form key=value"]),
    ("dirichlet:beta=small", ["beta=small is not float", "beta (float, required)"]),
    ("dirichlet:beta=1,min_size=2.5", ["min_size=2.5 is not int"]),
    ("dirichlet:beta=1,beta=2", ["beta is given twice"]),
  ],
)
def test_parse_errors(spec, fragments):
  with pytest.raises(ValueError) as caught:
    partitions.parse(spec)
  message = str(caught.value)
  assert repr(spec) in message
  assert message.endswith(".") and "\n" not in message
  for fragment in fragments:
    assert fragment in message


def test_partition_calls_the_named_split(mnist):
  assert equal(
    partitions.partition("dirichlet:beta=0.5,min_size=10", mnist, 10, 4),
    partitions.dirichlet(mnist, 10, seed=4, beta=0.5, min_size=10),
  )


def test_the_table_names_and_describes_every_split():
  assert tuple(partitions.SPLITS) == partitions.NAMES
  for name, split in partitions.SPLITS.items():
    assert getattr(partitions, name) is split.function
    assert split.description and "\n" not in split.description
  assert {spec.split(":")[0] for spec in (*ALL, "natural")} == set(partitions.NAMES)


# --- Errors are one sentence: where, what, and what to do ---------------------------


@pytest.mark.parametrize(
  ("spec", "num_clients", "fragments"),
  [
    ("iid", 0, ["iid: num_clients", "at least 1", "found 0"]),
    ("iid", 2.0, ["iid: num_clients", "whole number", "2.0"]),
    ("iid", 31, ["iid: 31 clients", "there are 30", "lower num_clients"]),
    ("shards:shards_per_client=0", 2, ["shards: shards_per_client", "at least 1"]),
    (
      "shards:shards_per_client=16",
      2,
      ["shards: 2 clients x 16", "32", "there are 30"],
    ),
    ("dirichlet:beta=0", 2, ["dirichlet: beta", "is 0.0"]),
    ("dirichlet:beta=-1", 2, ["dirichlet: beta", "is -1.0"]),
    ("dirichlet:beta=nan", 2, ["dirichlet: beta", "is nan"]),
    ("dirichlet:beta=inf", 2, ["dirichlet: beta", "is inf"]),
    ("dirichlet:beta=1,min_size=0", 2, ["dirichlet: min_size", "at least 1"]),
    ("dirichlet:beta=1,min_size=16", 2, ["need 32", "there are 30", "min_size"]),
    ("dirichlet_equal:beta=0", 2, ["dirichlet_equal: beta", "is 0.0"]),
    ("dirichlet_equal:beta=1", 31, ["dirichlet_equal: 31 clients"]),
    ("power_law:classes_per_client=0", 2, ["power_law: classes_per_client"]),
    ("power_law:classes_per_client=4", 2, ["classes_per_client=4", "3 classes"]),
    ("power_law:classes_per_client=2", 16, ["power_law: 16 clients with 2 classes"]),
    ("power_law:min_size=7", 4, ["power_law: 4 clients", "7 examples"]),
    ("power_law:sigma=-1", 2, ["power_law: sigma", "is -1.0"]),
    ("power_law:sigma=inf", 2, ["power_law: sigma", "is inf"]),
    ("twafl", 0, ["twafl: num_clients"]),
    ("twafl", 2, ["twafl: min_size=1000", "10 examples of the smallest class"]),
    ("twafl:min_size=9,max_size=8", 2, ["min_size=9 and max_size=8"]),
    ("twafl:min_size=2,max_size=8", 2, ["min_size=2", "max_classes=3"]),
    ("twafl:min_classes=0", 2, ["twafl: min_classes", "at least 1"]),
    ("twafl:max_classes=4", 2, ["max_classes=4", "3 classes"]),
  ],
)
def test_split_errors(spec, num_clients, fragments):
  # power_law with min_size=7 passes the count of examples (28 of 30), but classes of
  # 10 serve one client of 7 each, 3 in all. With two classes each, 16 clients need 32.
  with pytest.raises(ValueError) as caught:
    partitions.partition(spec, shuffled([10, 10, 10]), num_clients, 0)
  message = str(caught.value)
  assert message.endswith(".") and "\n" not in message and ". " not in message
  assert message.startswith(spec.split(":")[0] + ": ")
  for fragment in fragments:
    assert fragment in message


@pytest.mark.parametrize("seed", [-1, 0.5, None])
@pytest.mark.parametrize("spec", DISJOINT)
def test_seed_must_be_a_natural_number(spec, seed):
  with pytest.raises(
    ValueError, match=r"seed must be (a whole number|at least 0); found"
  ):
    partitions.partition(spec, shuffled([10, 10, 10]), 2, seed)


_NO_CLASSES = [np.zeros((30, 1, 1), int), np.linspace(0, 1, 30), np.array(30 * ["a"])]


@pytest.mark.parametrize("labels", [*_NO_CLASSES, np.array([], int)])
@pytest.mark.parametrize("spec", [spec for spec in ALL if spec not in _BY_NUMBER])
def test_labels_must_be_a_vector_of_integers(spec, labels):
  with pytest.raises(ValueError, match="labels must be a non-empty vector of integers"):
    partitions.partition(spec, labels, 1, 0)


@pytest.mark.parametrize("labels", _NO_CLASSES)
@pytest.mark.parametrize("spec", _BY_NUMBER)
def test_where_labels_do_not_matter_they_are_of_any_kind(spec, labels):
  groups = np.arange(30) % 5
  of_classes = partitions.partition(spec, groups, 3, 0, groups=groups)
  assert equal(partitions.partition(spec, labels, 3, 0, groups=groups), of_classes)


@pytest.mark.parametrize("labels", [np.array([]), np.zeros((3, 0)), 7])
@pytest.mark.parametrize("spec", _BY_NUMBER)
def test_there_must_be_labels(spec, labels):
  with pytest.raises(InputError, match=rf"^{spec}: labels must be an array that is not"):
    partitions.partition(spec, labels, 1, 0)


@pytest.mark.parametrize("spec", [*ALL, "natural"])
def test_labels_whose_rows_differ_are_refused(spec):
  for labels in ([[0, 1], [1]], [0, [1]]):
    with pytest.raises(InputError, match=": the labels make no array: give all rows"):
      partitions.partition(spec, labels, 1, 0)


@pytest.mark.parametrize("value", [None, "0.5", [0.5], np.array([0.5, 0.6]), 1j, True])
def test_parameter_that_is_no_number_is_refused(value):
  labels = shuffled([10, 10, 10])
  for name in ("dirichlet", "dirichlet_by_class", "dirichlet_equal"):
    with pytest.raises(InputError, match=f"^{name}: beta must be a number; found"):
      getattr(partitions, name)(labels, 2, seed=0, beta=value)
  with pytest.raises(InputError, match=r"^power_law: sigma must be a number; found"):
    partitions.power_law(labels, 2, seed=0, sigma=value)


@pytest.mark.parametrize("half", [fractions.Fraction(1, 2), np.float16(0.5)])
def test_parameter_is_any_real_number(half):
  labels = shuffled([40, 40, 40])
  for name in ("dirichlet", "dirichlet_by_class", "dirichlet_equal"):
    split = getattr(partitions, name)
    expected = split(labels, 4, seed=0, beta=0.5)
    assert equal(split(labels, 4, seed=0, beta=half), expected)
  expected = partitions.power_law(labels, 4, seed=0, sigma=0.5)
  assert equal(partitions.power_law(labels, 4, seed=0, sigma=half), expected)


@pytest.mark.parametrize("spec", ALL)
def test_sequences_are_split_only_where_labels_do_not_matter(spec):
  labels = np.arange(40).reshape(20, 2) % 3
  if spec in _BY_NUMBER:
    split = partitions.partition(spec, labels, 4, 0)
    assert equal(split, partitions.partition(spec, np.zeros(20, int), 4, 0))
    assert equal(split, partitions.partition(spec, labels.tolist(), 4, 0))
  else:
    with pytest.raises(ValueError, match="labels must be a non-empty vector"):
      partitions.partition(spec, labels, 4, 0)
