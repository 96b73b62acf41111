"""The plays of Shakespeare: who says what, and what a line becomes."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.datasets import dataset, shakespeare

# As the real files have it: cast lists that look like speeches, headings, pages with the
# title, directions over several lines or without their end, names over two lines, braces
# around what several say, and a name that ends in a colon.
_PLAY = """


	TWO FRIENDS' TALE


	DRAMATIS PERSONAE


ANNA	a friend.

BEN	(BENJAMIN:)	|
		|  brothers.
CARL			|


SCENE	A room.




	TWO FRIENDS TALE


ACT I



SCENE I	A room. [Night]
	Another room.


	[Enter ANNA, and BEN
	behind her]

ANNA	Good day! [To BEN]  How
	are you?

	[Exit BEN]

	Gone.

DON
BEN	Here I am.

	TWO FRIENDS' TALE


ACT I


SCENE II	A street.

	Nobody says this.

Don Ben	And here [Exit

ANNA	|
	|  Both of us.
CARL	|

First Lord:	O!

	SONG.

	Nobody sings this.

CARL	I
ANNA: Again 2 +
	[END]
"""
_OTHER_PLAY = _PLAY.replace("TWO FRIENDS", "A SECOND").replace("Good day!", "Bad day!")
# Whose one role has too few lines.
_SHORT_PLAY = "\tA THIRD\n\n\tDRAMATIS PERSONAE\n\nACT I\n\nANNA\tOh!\n"

_LINES = {
  "ANNA": ["Good day! How", "are you?", "Gone.", "Both of us.", "Again 2 +"],
  "DON BEN": ["Here I am.", "And here"],
  "FIRST LORD": ["O!"],
}


@pytest.fixture(name="folder")
def _folder(tmp_path):
  for name, text in zip(shakespeare.FILES, (_PLAY, _OTHER_PLAY, _SHORT_PLAY)):
    (tmp_path / name).write_text(text)
  return tmp_path


def _text(symbols: np.ndarray) -> str:
  """Symbols back to characters, by the documented numbering."""
  names = np.array(["", *shakespeare.CHARACTERS, "?!"])
  return "".join(names[symbols[symbols > 0]].tolist())


def test_lines_are_what_each_role_of_each_play_speaks():
  first = list(_LINES.values())
  second = [["Bad day! How", *first[0][1:]], *first[1:]]
  assert list(shakespeare.read_roles(_PLAY)) == first
  assert list(shakespeare.read_roles(_PLAY + _OTHER_PLAY)) == first + second


def test_roles_with_two_lines_are_groups_and_their_last_fifth_is_for_testing(folder):
  """5 lines: 4 and 1; 2 lines: 1 and 1, the fifth rounded up; 1 line: no group."""
  data = shakespeare.load(folder)
  assert list(data.train_groups) == [0, 0, 0, 0, 1, 2, 2, 2, 2, 3]
  assert _text(data.train_x[3]) == "Both of us."
  assert _text(data.train_x[4]) == "Here I am."
  assert [_text(x) for x in data.test_x] == ["Again 2 ?!", "And here"] * 2
  assert data.num_classes == 90
  whole = "1,235 roles with 85,305 + 21,947 lines"
  assert data.note == f"4 roles with 10 + 4 lines, not {whole}"


def test_label_of_each_character_is_the_next_one(folder):
  data = shakespeare.load(folder)
  assert data.train_x.shape == data.train_y.shape == (10, 80)
  assert data.train_x.dtype == data.train_y.dtype == np.int32
  for x, y in zip(data.train_x, data.train_y):
    length = np.count_nonzero(x)
    np.testing.assert_array_equal(y[: length - 1], x[1:length])
    assert (y[length - 1 :] == -1).all()
    assert (x[length:] == 0).all()


@pytest.mark.parametrize("length, parts", [(2, 1), (80, 1), (81, 1), (82, 2), (200, 3)])
def test_every_character_but_the_first_is_predicted_once(length, parts, folder):
  draw = np.random.default_rng(length)
  line = "".join(draw.choice(list("abcdefg"), length))
  for name in shakespeare.FILES:
    play = f"\tT\n\n\tDRAMATIS PERSONAE\n\nACT I\n\nROLE\t{line}\n\tsecond\n"
    (folder / name).write_text(play)
  data = shakespeare.load(folder)
  assert len(data.train_x) == 3 * parts
  own_x, own_y = data.train_x[:parts].ravel(), data.train_y[:parts].ravel()
  assert _text(own_y) == line[1:]
  # What is predicted from: every character but the last.
  assert _text(own_x[own_y >= 0]) == line[:-1]


def test_symbols_depend_on_no_data():
  characters = shakespeare.CHARACTERS
  assert len(set(characters)) == len(characters) == 86
  assert list(characters) == sorted(characters)
  assert shakespeare.VOCABULARY_SIZE == 90


def test_missing_files_are_named(folder):
  (folder / "histories").unlink()
  for place, match in ((folder, "lacks histories: name"), (None, "comedies, hist")):
    with pytest.raises(dataset.DataMissingError, match=match) as caught:
      shakespeare.load(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"no play\n", b"\xff\xfe\x00"])
def test_files_without_plays_are_refused(content, folder):
  for name in shakespeare.FILES:
    (folder / name).write_bytes(content)
  with pytest.raises(ValueError, match=r"get (them|it) again") as caught:
    shakespeare.load(folder)
  assert "\n" not in str(caught.value)


def test_each_file_must_hold_a_play(folder):
  (folder / "histories").write_text("<html>no such page</html>\n")
  with pytest.raises(ValueError, match=r"histories holds no play: get it again"):
    shakespeare.load(folder)


def test_real_plays(shared_data_dir):
  folder = shared_data_dir / "shakespeare"
  if not folder.is_dir():
    pytest.skip(f"no real plays: {folder} is missing")
  data = shakespeare.load(folder)
  # The paper has 1,146 roles, 3,564,579 and 870,014 characters, of another edition.
  assert data.note == ""
  num_roles = data.train_groups.max() + 1
  assert num_roles == pytest.approx(1146, rel=0.1)
  assert np.count_nonzero(data.train_x) == pytest.approx(3_564_579, rel=0.1)
  assert np.count_nonzero(data.test_x) == pytest.approx(870_014, rel=0.1)
  # Its updates an epoch in batches of 10.
  assert len(data.train_x) / num_roles / 10 == pytest.approx(7.4, rel=0.1)
  everything = _text(data.train_x) + _text(data.test_x)
  assert "To be, or not to be: that is the question:" in everything
  for direction in ("[Enter", "[Exit", "Exeunt"):
    assert direction not in everything


def test_what_follows_an_epilogue_is_nobodys():
  play = _PLAY + "\n\tEPILOGUE\n\n\tNobody says this either.\n"
  assert list(shakespeare.read_roles(play)) == list(_LINES.values())
