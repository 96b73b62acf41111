"""The defaults of the hyper-parameters: the page's table is written from the papers."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from typing import Any

import pytest

from tff_algos.algorithms import registry

_PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs/algorithms.md"
_ALL, _PRIVATE = "all, where nothing else is said", "the private forms"
_WORDS = {"e/2": math.e / 2, "empty": ""}


def _value(text: str) -> Any:
  try:
    return _WORDS[text] if text in _WORDS else float(text)
  except ValueError:
    return text


def _rows() -> dict[str, tuple[dict[str, Any], set[str]]]:
  """What the table gives an algorithm, and what it takes from it."""
  table = _PAGE.read_text().partition("| algorithm | options, with defaults |")[2]
  rows = {}
  for line in table.partition("\n\n")[0].splitlines()[2:]:
    names, cell = (part.strip() for part in line.strip("|").split("|"))
    given, _, taken = cell.partition("without ")
    own = {k: _value(v) for k, v in re.findall(r"`(\w+)` ([^\s,;]+)", given)}
    assert own or taken, line
    for name in [names] if names == _ALL else names.split(", "):
      rows[name] = own, set(re.findall(r"`(\w+)`", taken))
  return rows


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_page_gives_every_default(name):
  rows = _rows()
  plain = "sgd" if name == "dpsgd" else name.removesuffix("_dpsgd")
  own, taken = rows.get(plain, ({}, set()))  # FedAvg has no row.
  expected = {k: v for k, v in {**rows[_ALL][0], **own}.items() if k not in taken}
  assert taken <= set(rows[_ALL][0])
  if name.endswith("dpsgd"):
    expected.update(rows[_PRIVATE][0])
  fields = dataclasses.fields(registry.get(name).hparams_class)
  assert {field.name: field.default for field in fields} == expected


def test_page_has_no_algorithm_that_is_none():
  assert set(_rows()) <= {_ALL, _PRIVATE, *registry.ALGORITHMS}
