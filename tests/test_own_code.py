"""Algorithms of a user's own, named as module:attribute."""

from __future__ import annotations

import own_algorithms
import pytest

from tff_algos.algorithms import registry


def test_row_is_what_is_named():
  assert registry.get("own_algorithms:good") is own_algorithms.good


def test_row_of_a_builder_is_named_after_it():
  row = registry.get("own_algorithms:build_good")
  assert (row.name, row.builder) == ("good", own_algorithms.build_good)
  assert row.hparams_class is own_algorithms.GoodHparams
  assert row.description == "FedAvg, which may move twice as far."


_MISTAKES = {
  "no such module": ("no_such_module:x", "there is no module 'no_such_module'"),
  "no such attribute": ("own_algorithms:x", "own_algorithms.py has no 'x'"),
  "no attribute": ("own_algorithms:", "cannot be imported.*my_algorithms:mine"),
  "another thing": ("own_algorithms:not_an_algorithm", "tff_algos.Algorithm.* a int"),
  "a class": ("own_algorithms:GoodHparams", "tff_algos.Algorithm.* a type"),
  "two": ("own_algorithms:two", "holds 2 algorithms"),
  "none": ("own_algorithms:none", "holds 0 algorithms"),
  "no class": ("own_algorithms:build_without_default", "no such default"),
  "values in the default": ("own_algorithms:build_other_default", r"not GoodHparams\(\)"),
  "a name of two words": ("own_algorithms:no_word", "'fed avg'.*underscores"),
  "no name": ("own_algorithms:no_name", "is called None"),
  "no builder": ("own_algorithms:no_builder", "builder of good .*; it is None"),
  "an option that is due": ("own_algorithms:build_due_option", "argument: 'rate'"),
  "a builder of a model": ("own_algorithms:of_model_alone", "too many positional"),
  "values for a class": ("own_algorithms:no_class", "hparams_class of .* a class of "),
  "a plain field": ("own_algorithms:plain_field", r"PlainFieldHparams\.mu.*hparam"),
}


@pytest.mark.parametrize("kind", _MISTAKES)
def test_what_is_no_algorithm_is_refused(kind):
  name, said = _MISTAKES[kind]
  with pytest.raises(ValueError, match=said):
    registry.get(name)
