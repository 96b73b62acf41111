"""Markdown, as the programs write it."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  """A table; every line has as many cells as the head."""
  every = [head, ["---"] * len(head), *lines]
  return "\n".join(f"| {' | '.join(line)} |" for line in every)
