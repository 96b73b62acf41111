"""Hyper-parameters: what they take, what they refuse and what they say."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import sys
import typing
from typing import Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_algos import hyper_parameters
from tff_algos.algorithms import registry
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import hparam


@dataclasses.dataclass(frozen=True)
class Example(hyper_parameters.HyperParameters):
  """One of each kind."""

  count: int = hparam(3, "A count.", source="convention", low=1, high=9)
  size: Optional[int] = hparam(5, "A size.", source="convention", low=1, optional=True)
  rate: float = hparam(0.5, "Any.", source="paper", low=0, open_low=True, tunable=True)
  share: float = hparam(0.0, "A share.", source="paper", low=0, high=1, tunable=True)
  free: float = hparam(1.0, "Any.", source="derived")
  word: str = hparam("a", "A word.", source="convention", choices=("a", "b"))
  flag: bool = hparam(False, "Yes or no.", source="convention")
  clip: Optional[float] = hparam(None, "A norm.", source="own", low=0, optional=True)


def _refuses(error, **values) -> str:
  with pytest.raises(error) as caught:
    Example(**values)
  [(name, value)] = values.items()
  message = str(caught.value)
  assert message.startswith(f"{name} must be ")
  assert repr(value) in message
  assert "\n" not in message
  return message


# --- Ranges -------------------------------------------------------------------------


@pytest.mark.parametrize(
  "values",
  [
    dict(count=1),
    dict(count=9),
    dict(size=1),
    dict(size=10**9),
    dict(size=None),
    dict(rate=1e-30),
    dict(rate=1e30),
    dict(share=0.0),
    dict(share=1.0),
    dict(free=-1e30),
    dict(word="b"),
    dict(flag=True),
    dict(clip=0.5),
    dict(clip=2),
  ],
)
def test_takes_values_up_to_the_ends_of_the_range(values):
  found = Example(**values)
  [(name, value)] = values.items()
  assert getattr(found, name) == value
  assert dataclasses.replace(found, **{name: getattr(Example(), name)}) == Example()


@pytest.mark.parametrize(
  "values, text",
  [
    (dict(count=0), ">= 1 and <= 9"),
    (dict(count=10), ">= 1 and <= 9"),
    (dict(size=0), ">= 1 or inf"),
    (dict(rate=0.0), "> 0"),
    (dict(rate=-1.0), "> 0"),
    (dict(share=-1e-9), ">= 0 and <= 1"),
    (dict(share=1 + 1e-9), ">= 0 and <= 1"),
    (dict(word="c"), "one of a, b"),
    (dict(word=""), "one of a, b"),
    (dict(clip=-0.5), ">= 0 or inf"),
  ],
)
def test_refuses_what_lies_outside_and_names_the_range(values, text):
  assert text in _refuses(ValueError, **values)


@pytest.mark.parametrize("name", ["rate", "share", "free"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_refuses_numbers_that_are_not_finite(name, value):
  _refuses(ValueError, **{name: value})


@pytest.mark.parametrize("value", [1e39, 1e-46])
def test_what_the_server_state_would_make_infinite_or_0_is_refused(value):
  """Tunable ones are float32 there; others stay what they are."""
  said = "rate must be a number that float32 holds, > 0; found "
  assert said in _refuses(InputError, rate=value)
  assert Example(free=value).free == value
  assert Example(share=0.0).share == 0


@given(st.floats(allow_nan=True))
def test_share_is_taken_exactly_where_it_is_in_range(value):
  if 0 <= value <= 1 and bool(np.float32(value)) == bool(value):
    assert Example(share=value).share == value
  else:
    with pytest.raises(ValueError):
      Example(share=value)


@given(st.integers())
def test_count_is_taken_exactly_where_it_is_in_range(value):
  if 1 <= value <= 9:
    assert Example(count=value).count == value
  else:
    with pytest.raises(ValueError):
      Example(count=value)


# --- Types --------------------------------------------------------------------------


@pytest.mark.parametrize(
  "values",
  [
    dict(count=1.0),
    dict(count=True),
    dict(count="3"),
    dict(count=None),
    dict(size=2.0),
    dict(size=False),
    dict(rate=True),
    dict(rate=False),
    dict(rate="0.5"),
    dict(rate=None),
    dict(word=1),
    dict(word=None),
    dict(flag=1),
    dict(flag=0),
    dict(flag="yes"),
    dict(clip="0.5"),
  ],
)
def test_refuses_another_type(values):
  assert " of type " in _refuses(TypeError, **values)


@given(st.integers(-(2**53), 2**53))
def test_whole_number_is_taken_for_a_float(value):
  found = Example(free=value).free
  assert type(found) is float
  assert found == value


def test_numpy_numbers_become_pythons_own():
  """Some of them cannot be written as JSON, where all values go."""
  found = Example(rate=np.float32(0.5), count=np.int64(3), free=np.float64(2))
  assert [type(v) for v in (found.rate, found.count, found.free)] == [float, int, float]
  assert found == Example(rate=0.5, count=3, free=2.0)


def test_numpy_numbers_of_another_type_are_refused():
  assert " of type float" in _refuses(TypeError, count=np.float64(3))
  assert " of type bool" in _refuses(TypeError, count=np.bool_(True))


def test_infinity_is_none_where_that_is_allowed():
  assert Example(size=math.inf, clip=math.inf) == Example(size=None, clip=None)
  said = "rate must be a finite number, > 0; found inf."
  assert said in _refuses(InputError, rate=math.inf)
  assert "found inf" in _refuses(TypeError, count=math.inf)
  assert "found -inf" in _refuses(InputError, clip=-math.inf)
  assert "ndarray" in _refuses(TypeError, clip=np.array([1.0, 2.0]))


def test_they_are_frozen():
  with pytest.raises(dataclasses.FrozenInstanceError):
    Example().count = 4


# --- What is said of them -----------------------------------------------------------


def test_range_in_words():
  texts = {f.name: hyper_parameters.range_text(f) for f in dataclasses.fields(Example)}
  assert texts == dict(
    count=">= 1 and <= 9",
    size=">= 1 or inf",
    rate="> 0",
    share=">= 0 and <= 1",
    free="any number",
    word="one of a, b",
    flag="true or false",
    clip=">= 0 or inf",
  )


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_algorithm_documents_its_hyper_parameters(name):
  """And takes its own defaults, which making one checks."""
  for field in dataclasses.fields(registry.get(name).hparams_class()):
    assert field.metadata["help"].endswith(".")
    marks = ("paper", "derived", "code", "convention")
    assert field.metadata["source"].startswith(marks), field.name
    assert hyper_parameters.range_text(field)


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_types_say_which_hyper_parameters_may_be_none(name):
  hparams_class = registry.get(name).hparams_class
  types = typing.get_type_hints(hparams_class)
  for field in dataclasses.fields(hparams_class):
    kind, is_optional = type(field.default), field.metadata["optional"]
    assert types[field.name] == (Optional[kind] if is_optional else kind), field.name


# --- Which were read ----------------------------------------------------------------


def test_values_that_nothing_has_read_are_those_that_were_given():
  hparams = Example(count=4, rate=0.75, share=0.25)
  assert list(hyper_parameters.unread_values(hparams)) == ["count", "rate", "share"]
  hyper_parameters.tunable_values(hparams)  # Which is no use of them.
  assert hparams.count == 4
  changed = hyper_parameters.with_values(hparams, {"rate": object()})
  assert changed.rate is not None
  assert hyper_parameters.unread_values(hparams) == {"share": 0.25}
  assert list(hyper_parameters.unread_values(Example(count=4))) == ["count"]


def test_fixed_values_are_tunable_ones_that_no_copy_was_asked_for():
  hparams = Example(count=4, rate=0.75, share=0.25)
  assert not hyper_parameters.fixed_values(hparams)  # Nothing was read.
  assert (hparams.count, hparams.rate, hparams.share) == (4, 0.75, 0.25)
  changed = hyper_parameters.with_values(hparams, {"rate": 0.5, "share": 0.5})
  again = hyper_parameters.with_values(changed, {"rate": 0.125})
  assert again.rate == 0.125
  assert hyper_parameters.fixed_values(hparams) == {"share": 0.25}
  default = Example()
  assert default.rate == 0.5 and not hyper_parameters.fixed_values(default)
  assert not hyper_parameters.fixed_values(copy.copy(hparams))


def test_who_has_not_been_told_who_reads_it_has_no_unread_values():
  hparams = Example(count=4)
  for other in (copy.copy(hparams), copy.deepcopy(hparams), _pickled(hparams)):
    assert not hyper_parameters.unread_values(other)
    assert other == hparams  # Which reads all fields.

  @dataclasses.dataclass(frozen=True)
  class Unchecked(Example):
    def __post_init__(self):
      pass

  assert not hyper_parameters.unread_values(Unchecked(count=4))


def _pickled(value):
  return pickle.loads(pickle.dumps(value))


def test_copies_keep_what_is_no_field():
  @dataclasses.dataclass(frozen=True)
  class Derived(Example):
    __slots__ = ("double",)

    def __post_init__(self):
      super().__post_init__()
      object.__setattr__(self, "double", 2 * self.count)
      object.__setattr__(self, "triple", 3 * self.count)

  changed = hyper_parameters.with_values(Derived(count=4), {"rate": 0.75})
  assert (changed.double, changed.triple, changed.rate) == (8, 12, 0.75)


def test_the_fields_alone_are_what_vars_has():
  assert vars(Example(count=4)) == dataclasses.asdict(Example(count=4))


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 has no such classes.")
def test_class_with_slots():
  more = {"slots": True}  # Which Python 3.9 does not take.

  @dataclasses.dataclass(frozen=True, **more)
  class Slotted(hyper_parameters.HyperParameters):
    epochs: int = hyper_parameters.hparam(1, "Epochs.", source="convention")
    rate: float = hyper_parameters.hparam(
      0.1, "A rate.", source="convention", tunable=True
    )

  hparams = Slotted(epochs=2)
  assert hyper_parameters.tunable_values(hparams) == {"rate": 0.1}
  assert hyper_parameters.unread_values(hparams) == {"epochs": 2}
  changed = hyper_parameters.with_values(hparams, {"rate": 0.5})
  assert (changed.epochs, changed.rate, hparams.rate) == (2, 0.5, 0.1)
  assert not hyper_parameters.unread_values(hparams)


# --- Tunable ones -------------------------------------------------------------------


def test_tunable_values_are_in_the_order_of_the_fields():
  values = hyper_parameters.tunable_values(Example(rate=2, share=0.25))
  assert list(values.items()) == [("rate", 2.0), ("share", 0.25)]


def test_with_values_replaces_without_checks_and_leaves_the_original():
  original = Example()
  marker = object()
  changed = hyper_parameters.with_values(original, {"rate": marker})
  assert changed.rate is marker
  assert type(changed) is Example
  assert original == Example()
  names = [f.name for f in dataclasses.fields(Example) if f.name != "rate"]
  assert all(getattr(changed, n) == getattr(original, n) for n in names)


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_tunable_value_is_a_number(name):
  """They live in the server state as float32."""
  values = hyper_parameters.tunable_values(registry.get(name).hparams_class())
  assert values
  assert all(type(value) is float for value in values.values())


@pytest.mark.parametrize(
  "name, given",
  [
    ("fedavg", dict(momentum=1.0)),
    ("scaffold", dict(momentum=1.0)),
    ("fedavg", dict(learning_rate=0.0)),
    ("fedadam", dict(tau=0.0)),
    ("twafl", dict(freq=4, rounds_in_loop=3)),
  ],
)
def test_what_would_make_no_numbers_is_refused(name, given):
  with pytest.raises(InputError, match=f"^{next(iter(given))} must be "):
    registry.get(name).hparams_class(**given)
