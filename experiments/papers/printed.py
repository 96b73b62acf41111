"""The numbers that the papers print."""

from __future__ import annotations

import csv
import os

from experiments.tables.model import PaperNumber

_NUMBERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numbers")


def paper_numbers(file_name: str, table: str) -> list[dict[str, str]]:
  """The rows of a paper's table, as printed there; a line with # is a remark."""
  with open(os.path.join(_NUMBERS, file_name), encoding="utf-8", newline="") as f:
    lines = [line for line in f if not line.startswith("#")]
  return [row for row in csv.DictReader(lines) if row["table"] == table]


def number(text: str) -> PaperNumber:
  """A printed number, or the paper's word where it has none."""
  try:
    return float(text)
  except ValueError:
    return text or "—"
