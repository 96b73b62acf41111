"""Markdown and words, as all programs write them: they read well on a terminal too."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def count(number: int, what: str) -> str:
  """A number of things, in words."""
  return f"{number} {what}{'' if number == 1 else 's'}"


def three_digits(value: float) -> str:
  """The format that shows three digits of a number, and all of those before the point."""
  exponent = int(f"{value:.2e}".partition("e")[2])
  return f",.{max(0, 2 - exponent)}f"


def table(
  head: Sequence[str], lines: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
  """A table; every line has as many cells as the head.

  Args:
    head: The headings.
    lines: The cells of each line.
    right: Places of the columns that are set to the right, such as numbers.
  """
  # A bar would end its cell, also within code.
  head, *lines = ([cell.replace("|", "\\|") for cell in row] for row in (head, *lines))
  widths = [max(3, *map(len, column)) for column in zip(head, *lines)]

  def row(cells: Sequence[str]) -> str:
    padded = (
      cell.rjust(width) if place in right else cell.ljust(width)
      for place, (cell, width) in enumerate(zip(cells, widths))
    )
    return f"| {' | '.join(padded)} |"

  rule = ["-" * (w - 1) + ":" if k in right else "-" * w for k, w in enumerate(widths)]
  return "\n".join(map(row, [head, rule, *lines]))
