"""Docstrings are plain English with code in backticks; here they are made markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CODE = re.compile(r"(``[^`]+``|`[^`]+`)")


def as_markdown(text: str) -> str:
  """A docstring as Markdown: nothing of it but backticks is markup."""
  return "".join(
    part if part.startswith("`") else re.sub(r"([*_<>\[\]|\\$])", r"\\\1", part)
    for part in _CODE.split(text)
  )


def as_rst(lines: Sequence[str]) -> list[str]:
  """The lines of a docstring as reStructuredText, with formulas as they are.

  A formula is what is indented by four or more after a line that ends with a colon and an
  empty one.
  """
  found: list[str] = []
  waiting: list[str] = []
  margin = None  # Of the paragraph before a formula that is open.
  for line in lines:
    indent = len(line) - len(line.lstrip())
    before = [x for x in (*found, *waiting)[-2:]]
    if margin is not None and line.strip() and indent <= margin:
      margin = None
    if margin is None and line.strip() and len(before) == 2 and not before[1].strip():
      above = before[0]
      inner = len(above) - len(above.lstrip())
      if above.rstrip().endswith(":") and indent >= inner + 4:
        found += _marked(waiting)
        waiting = []
        place = len(found) - 2
        found[place] = f"{found[place].rstrip()}:"
        margin = inner
    if margin is None:
      waiting.append(line)
    else:
      found += [*_marked(waiting), line]
      waiting = []
  return [*found, *_marked(waiting)]


def _marked(lines: Sequence[str]) -> list[str]:
  """Lines without formulas: what is in backticks may go over several of them."""
  parts = _CODE.split("\n".join(lines))
  text = "".join(
    f"``{' '.join(part.strip('`').split())}``" if part.startswith("`") else _escape(part)
    for part in parts
  )
  return text.split("\n") if lines else []


def _escape(text: str) -> str:
  text = re.sub(r"([\\*|@])", r"\\\1", text)  # `1@MNIST` would be an address of mail.
  return re.sub(r"(?<=\w)_(?!\w)", r"\\_", text)  # `name_` would be a link.
