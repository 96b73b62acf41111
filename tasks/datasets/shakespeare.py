"""The plays of Shakespeare by role: predict the next character of a line.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", 2017, section 3, make a client of every speaking role with at least two lines; they
count 1,146 of them, with 3,564,579 characters for training and 870,014 for testing
[recalled], and do not say which edition. The public-domain text that comes in the three
files of `FILES` has 1,235 roles with 3,341,799 and 846,381 characters, and 69 lines for
training on average, where the paper's 7.4 updates an epoch in batches of 10 mean 74.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

from tasks.datasets import dataset
from tff_algos.errors import InputError

#: The files, plain text; the poems, which nobody speaks, are not read.
FILES = ("comedies", "histories", "tragedies")
#: How many roles with two lines these files have, and how many examples for training and
#: for testing.
ROLES, EXAMPLES = 1235, (85_305, 21_947)
#: How many characters the network is unrolled over [recalled, McMahan et al.].
STEPS = 80
#: What has a symbol of its own, in the order of the symbols 1, 2, ...: the 86 characters
#: that TFF's Shakespeare data have [recalled].
CHARACTERS = "\n\r !\"#$%&'()*,-./0123456789:;?@" + (
  "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
)
#: Padding is 0, the characters follow, then any other character; two more symbols are the
#: begin and end that TFF counts [recalled], not used here, so that the network has the
#: 820,522 weights that others report.
VOCABULARY_SIZE = len(CHARACTERS) + 4

_OTHER = len(CHARACTERS) + 1
_SYMBOLS = {character: i + 1 for i, character in enumerate(CHARACTERS)}
# A play begins with its title and its cast.
_TITLE = re.compile(
  r"^\t(\S[^\n]*)\n(?:[ \t]*\n)+\tDRAMATIS PERSONAE[ \t]*$", re.MULTILINE
)
# A stage direction, to its bracket or, where that is missing, to the paragraph's end.
_DIRECTION = re.compile(r"\[[^\]]*?(?:\]|(?=\n[ \t]*\n))")
# What ends a speech. The cast ends with the first of these that is no scene, since it
# names the place of the play in the same way.
_BEGIN = re.compile(r"ACT \w+|\t(?:THE )?(?:INDUCTION|PROLOGUE)\.?")
_HEADING = re.compile(r"(?:SCENE|\tEPILOGUE|\tDUMB SHOW|\t(?:THE )?SONG\b).*")
_SPEECH = re.compile(r"([^\t:]+)(?::?\t|: )(.*)")


def load(data_dir: str | os.PathLike[str] | None) -> dataset.Dataset:
  """Loads the roles' lines as examples.

  An example is a line as printed: x holds its characters and y at each the next one, -1
  where there is none, both int32 (`STEPS`,), padded with 0 and -1. A line of more than
  `STEPS` + 1 characters goes on in further examples, so that every character but a line's
  first is predicted once [convention; no line of these plays is so long]. The first 80 %
  of a role's lines are for training, the others, rounded up, for testing [recalled,
  McMahan et al.]. Lines of one character, with nothing to predict, are left out.

  Args:
    data_dir: the folder that holds `FILES`.

  Returns:
    Examples in the order of the text; `train_groups` numbers the roles of all plays. The
    note says how many these and the examples are where they are not `ROLES` and
    `EXAMPLES`, as of files cut short.

  Raises:
    dataset.DataMissingError: a file is missing.
    InputError: a file is no text of plays.
  """
  if data_dir is None:
    raise dataset.DataMissingError(
      f"Shakespeare's plays are not on this machine: name the folder that holds the "
      f"text files {', '.join(FILES)}."
    )
  folder = pathlib.Path(data_dir).expanduser()
  spoken = [lines for name in FILES for lines in _lines_by_role(folder / name)]
  roles = [lines for lines in spoken if len(lines) >= 2]
  if not roles:
    raise InputError(
      f"The plays in {folder} have no role with two lines: get them again."
    )
  train: list[str] = []
  test: list[str] = []
  groups: list[int] = []
  for role, lines in enumerate(roles):
    num_train = len(lines) * 4 // 5
    train += (parts := list(_parts(lines[:num_train])))
    test += _parts(lines[num_train:])
    groups += [role] * len(parts)
  note = ""
  if (len(roles), len(train), len(test)) != (ROLES, *EXAMPLES):
    here, whole = (
      "{:,} roles with {:,} + {:,} lines".format(*counts)
      for counts in ((len(roles), len(train), len(test)), (ROLES, *EXAMPLES))
    )
    note = f"{here}, not {whole}"
  return dataset.Dataset(
    *_encode(train),
    *_encode(test),
    VOCABULARY_SIZE,
    note,
    train_groups=np.array(groups, np.int32),
  )


def read_roles(text: str) -> Iterator[list[str]]:
  """The lines of each role of each play, in the order in which roles first speak.

  Args:
    text: plays, each from its title and 'DRAMATIS PERSONAE' on; a speech is
      'SPEAKER<tab>line' and lines that start with a tab; stage directions are in
      brackets and not spoken. Songs and prologues that no speaker is named for are left
      out.
  """
  _, *plays = _TITLE.split(_DIRECTION.sub("", text))
  for title, play in zip(plays[::2], plays[1::2]):
    yield from _roles_of_play(title, play).values()


def _roles_of_play(title: str, play: str) -> dict[str, list[str]]:
  roles: dict[str, list[str]] = {}
  has_begun, speaker, name = False, "", ""
  for line in play.splitlines():
    begins = bool(_BEGIN.fullmatch(line.rstrip()))
    has_begun = has_begun or begins
    # Every scene's page has the title, with or without an apostrophe.
    is_heading = _HEADING.fullmatch(line) or _letters(line) == _letters(title)
    if not line.strip() or not has_begun:
      name = ""
    elif begins or is_heading:
      speaker = name = ""
    elif line.startswith("\t"):
      _add(roles, speaker, line)
    elif speech := _SPEECH.fullmatch(line):
      speaker = _words(f"{name} {speech[1]}").upper()
      name = ""
      _add(roles, speaker, speech[2])
    else:
      name = line  # The first of two lines of a long name.
  return roles


def _add(roles: dict[str, list[str]], speaker: str, line: str) -> None:
  line = _words(line.replace("|", ""))  # A brace around what several say.
  if speaker and len(line) > 1:
    roles.setdefault(speaker, []).append(line)


def _words(text: str) -> str:
  return " ".join(text.split())


def _letters(text: str) -> str:
  return "".join(filter(str.isalpha, text)).upper()


def _lines_by_role(path: pathlib.Path) -> list[list[str]]:
  try:
    text = path.read_text("utf-8")
  except FileNotFoundError as error:
    raise dataset.DataMissingError(
      f"{path.parent} lacks {path.name}: name the folder that holds the text files "
      f"{', '.join(FILES)}."
    ) from error
  except UnicodeDecodeError as error:
    raise InputError(f"{path} is no text ({error.reason}): get it again.") from error
  roles = list(read_roles(text))
  if not roles:  # Else the plays of the other files would pass for all.
    raise InputError(f"{path} holds no play: get it again.")
  return roles


def _parts(lines: Iterable[str]) -> Iterator[str]:
  """Cuts lines into parts that an example holds; each begins with the last's end."""
  for line in lines:
    for start in range(0, len(line) - 1, STEPS):
      yield line[start : start + STEPS + 1]


def _encode(lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
  x = np.zeros((len(lines), STEPS), np.int32)
  y = np.full((len(lines), STEPS), -1, np.int32)
  for row, line in enumerate(lines):
    symbols = [_SYMBOLS.get(character, _OTHER) for character in line]
    x[row, : min(len(symbols), STEPS)] = symbols[:STEPS]
    y[row, : len(symbols) - 1] = symbols[1:]
  return x, y
