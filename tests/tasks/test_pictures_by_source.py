"""COVID-CT and Landmarks-User-160k, from small folders of the published layouts.

Every picture is of one grey or colour that tells which it is.
"""

from __future__ import annotations

import collections
import io
import itertools
import pathlib
import re
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from tasks.datasets import covid_ct, dataset, landmarks, picture_files
from tff_algos.errors import InputError


def _picture(value: int, shape: tuple[int, ...] = (30, 20), kind: str = "png") -> bytes:
  buffer = io.BytesIO()
  Image.fromarray(np.full(shape, value, np.uint8)).save(buffer, kind, quality=95)
  return buffer.getvalue()


# --- Picture files ------------------------------------------------------------------


def test_square_in_the_middle_is_resized_and_grey_has_three_channels():
  """Of 12 x 4 the rows 4..7: two of 100 above two of 200."""
  rows = np.repeat([0, 0, 100, 200, 0, 0], 2)
  buffer = io.BytesIO()
  Image.fromarray(np.tile(rows[:, np.newaxis], (1, 4)).astype(np.uint8)).save(
    buffer, "png"
  )
  found = picture_files.load(["a"], lambda name: buffer.getvalue(), 4)
  assert found.shape == (1, 4, 4, 3)
  assert found.dtype == np.uint8
  expected = np.broadcast_to(rows[4:8, np.newaxis, np.newaxis], (4, 4, 3))
  np.testing.assert_array_equal(found[0], expected)
  # With antialiasing a triangle as wide as the square, whose weights on rows are 5, 7, 7
  # and 5: not the mean of the two in the middle, 150.
  rows = np.array([0] * 4 + [0, 100, 200, 60] + [0] * 4)
  buffer = io.BytesIO()
  Image.fromarray(np.tile(rows[:, np.newaxis], (1, 4)).astype(np.uint8)).save(
    buffer, "png"
  )
  [one] = picture_files.load(["a"], lambda name: buffer.getvalue(), 1)
  np.testing.assert_array_equal(
    one, np.full((1, 1, 3), (7 * 100 + 7 * 200 + 5 * 60) / 24)
  )


def test_picture_that_cannot_be_decoded_is_named():
  with pytest.raises(ValueError, match=r"The picture b.png cannot be decoded"):
    picture_files.load(["b.png"], lambda name: b"no picture", 4)


# --- COVID-CT -----------------------------------------------------------------------

_TRAIN_COVID = [
  "kjr-21-e24-g001-l-a.png",
  "2020.01.24.919183-p27-132.png",
  "2020.02.10.20021584-p6-52%0.png",
  "2020.01.24.919183-p27-133.png",
  "2020.02.10.20021584-p7-1.png",
  "2020.01.24.919183-p28-1%2.png",
]
_COVID_LISTS = {
  ("COVID", "train"): _TRAIN_COVID,
  ("COVID", "test"): ["nejmoa2001191_f1-PA.png"],
  ("NonCOVID", "train"): [f"{i}.png" for i in range(12)],
  ("NonCOVID", "test"): ["20.png", "21%1.png"],
}


def _value(name: str) -> int:
  """The grey of a picture, another for each."""
  names = list(itertools.chain(*_COVID_LISTS.values()))
  return 10 * names.index(name) + 5


@pytest.fixture(name="covid", params=["folders", "archives"])
def _covid(request, tmp_path) -> pathlib.Path:
  for (label, split), names in _COVID_LISTS.items():
    path = tmp_path / f"Data-split/{label}/{split}CT_{label}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(names) + "\n")
    for name in names:
      _put(tmp_path, f"CT_{label}", name, request.param == "archives")
  return tmp_path


def _put(root: pathlib.Path, folder: str, name: str, packed: bool) -> None:
  content = _picture(_value(name))
  place = root / "Images-processed"
  if packed:
    place.mkdir(exist_ok=True)
    with zipfile.ZipFile(place / f"{folder}.zip", "a") as archive:
      archive.writestr(f"{folder}/{name}", content)
      archive.writestr(f"__MACOSX/{folder}/{name}", b"what macOS adds")
  else:
    (place / folder).mkdir(parents=True, exist_ok=True)
    (place / folder / name).write_bytes(content)


def test_covid_pictures_have_their_split_and_label(covid):
  data = covid_ct.load(covid, size=8)
  assert data.train_x.shape == (18, 8, 8, 3)
  assert data.test_x.shape == (3, 8, 8, 3)
  for split, x, y in (
    ("train", data.train_x, data.train_y),
    ("test", data.test_x, data.test_y),
  ):
    names = [_COVID_LISTS[label, split] for label in covid_ct.CLASSES]
    expected = [_value(name) for name in itertools.chain(*names)]
    np.testing.assert_array_equal(x, np.reshape(expected, (-1, 1, 1, 1)) + 0 * x)
    np.testing.assert_array_equal(y, [0] * len(names[0]) + [1] * len(names[1]))


def test_covid_clients_are_sources_with_others_in_proportion(covid):
  """1, 3 and 2 pictures of three sources get 2, 6 and 4 of the 12 others.

  In the order of the list, which is not that of the names.
  """
  data = covid_ct.load(covid, size=8)
  np.testing.assert_array_equal(data.train_groups[:6], [0, 1, 2, 1, 2, 1])
  assert collections.Counter(data.train_groups[6:]) == {0: 2, 1: 6, 2: 4}
  assert (np.diff(data.train_groups[6:]) < 0).any()  # Not one after the other.
  assert data.note == (
    "3 sources by file name, FedReg's are 32; pictures: 6 + 12 for training, 1 + 2 for "
    "testing; published are 191 + 234 for training, 98 + 105 for testing"
  )
  again = covid_ct.load(covid, size=8)
  np.testing.assert_array_equal(data.train_groups, again.train_groups)


@pytest.mark.parametrize("split", ["train", "test"])
def test_covid_picture_that_is_named_twice_is_refused(covid, split):
  """In a list, or for testing what was trained on."""
  name = _COVID_LISTS["COVID", "train"][0]
  with open(covid / f"Data-split/COVID/{split}CT_COVID.txt", "a") as file:
    file.write(f"\n{name}\n")
  with pytest.raises(InputError, match=rf"COVID names {re.escape(name)} 2 times"):
    covid_ct.load(covid, size=8)


@pytest.mark.parametrize(
  "name, expected",
  [
    ("2020.02.10.20021584-p6-52%0.png", "2020.02.10.20021584"),
    ("1-s2.0-S0929664620300449-gr3_lrg-b.jpg", "1-s2.0-S0929664620300449"),
    ("kjr-21-e24-g001-l-a.jpg", "kjr-21-e24"),
    ("PIIS0140673620303603%8.png", "PIIS0140673620303603"),
    ("nejmoa2001191_f1-PA.jpeg", "nejmoa2001191"),
    ("one.more.png", "one.more"),
  ],
)
def test_source_is_the_publication(name, expected):
  assert covid_ct.source(name) == expected


@pytest.mark.parametrize(
  "missing, match",
  [
    ("Data-split/COVID/testCT_COVID.txt", "lacks Data-split/COVID/testCT_COVID.txt"),
    ("Images-processed/CT_NonCOVID", "holds neither CT_NonCOVID nor CT_NonCOVID.zip"),
    ("Images-processed/CT_COVID/kjr-21-e24-g001-l-a.png", "lacks kjr-21-e24-g001-l-a"),
  ],
)
@pytest.mark.parametrize("covid", ["folders"], indirect=True)
def test_covid_missing_files_are_named(missing, match, covid):
  path = covid / missing
  path.rename(covid / "away")
  with pytest.raises(dataset.DataMissingError, match=match) as caught:
    covid_ct.load(covid, size=8)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("covid", ["archives"], indirect=True)
def test_covid_damaged_archives_are_named(covid):
  path = covid / "Images-processed/CT_COVID.zip"
  whole = path.read_bytes()
  # The content of the first picture, so that its checksum is wrong.
  path.write_bytes(whole.replace(_picture(5), bytes(len(_picture(5)))))
  with pytest.raises(ValueError, match=r"kjr-21-e24-g001-l-a.png in .* cannot be read"):
    covid_ct.load(covid, size=8)
  path.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ValueError, match=r"CT_COVID\.zip cannot be read"):
    covid_ct.load(covid, size=8)
  # In the list of contents, the method of compression, which is unknown then.
  place = whole.index(b"PK\x01\x02") + 10
  path.write_bytes(whole[:place] + b"c" + whole[place + 1 :])
  with pytest.raises(InputError, match=r"in .*CT_COVID\.zip cannot be read"):
    covid_ct.load(covid, size=8)


@pytest.mark.parametrize("covid", ["archives"], indirect=True)
def test_covid_list_that_is_no_text_is_named(covid):
  path = covid / "Data-split/COVID/trainCT_COVID.txt"
  path.write_bytes(path.read_bytes() + b"\xe9.png\n")
  with pytest.raises(InputError, match=r"trainCT_COVID\.txt is no text") as caught:
    covid_ct.load(covid, size=8)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("covid", ["archives"], indirect=True)
def test_covid_list_of_zeros_is_refused_and_a_byte_order_mark_is_none(covid):
  path = covid / "Data-split/COVID/trainCT_COVID.txt"
  plain, expected = path.read_bytes(), covid_ct.load(covid, size=8)
  path.write_bytes(b"\xef\xbb\xbf" + plain)
  np.testing.assert_array_equal(covid_ct.load(covid, size=8).train_x, expected.train_x)
  path.write_bytes(plain + b"a\0b.png\n")
  with pytest.raises(InputError, match=r"trainCT_COVID\.txt names no picture"):
    covid_ct.load(covid, size=8)


@pytest.mark.parametrize("photographs", [""], indirect=True)
def test_landmarks_lists_may_have_a_byte_order_mark(photographs):
  expected = landmarks.load(photographs, size=16)
  path = photographs / "federated_train.csv"
  path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
  found = landmarks.load(photographs, size=16)
  np.testing.assert_array_equal(found.train_groups, expected.train_groups)


@pytest.mark.parametrize("loader", [covid_ct, landmarks])
def test_no_folder_says_where_to_get_the_data(loader, tmp_path):
  for place in (None, tmp_path):
    with pytest.raises(dataset.DataMissingError, match=r"https://github\.com") as caught:
      loader.load(place)
    assert "\n" not in str(caught.value)


# --- Landmarks ----------------------------------------------------------------------

_TRAIN = [  # User, picture, class.
  ("41", "000a1b2c3d4e5f60", 7),
  ("7", "001a1b2c3d4e5f61", 2027),
  ("41", "f02a1b2c3d4e5f62", 0),
  ("1001", "f03a1b2c3d4e5f63", 7),
]
_TEST = [("abc4567890123456", 7), ("abd4567890123457", 1)]


@pytest.fixture(name="photographs", params=["", "landmarks-user-160k"])
def _photographs(request, tmp_path) -> pathlib.Path:
  root = tmp_path / "data"
  (root / request.param).mkdir(parents=True)
  train = [",".join(map(str, row)) for row in _TRAIN]
  test = [",".join(map(str, row)) for row in _TEST]
  for name, lines in (
    ("federated_train.csv", ["user_id,image_id,class", *train]),
    ("test.csv", ["image_id,class", *test]),
  ):
    (root / request.param / name).write_text("\n".join(lines) + "\n")
  pictures = [row[1] for row in _TRAIN] + [row[0] for row in _TEST]
  for i, name in enumerate(pictures):
    path = root / "train" / name[0] / name[1] / name[2] / f"{name}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_picture(20 * (i + 1), (40, 60 + i, 3), "jpeg"))
  return root


def test_landmarks_are_read_by_the_lists(photographs):
  data = landmarks.load(photographs, size=16)
  assert data.train_x.shape == (4, 16, 16, 3)
  # JPEG of one grey is exact to a level or so.
  np.testing.assert_allclose(data.train_x.mean(axis=(1, 2, 3)), [20, 40, 60, 80], atol=2)
  np.testing.assert_allclose(data.test_x.mean(axis=(1, 2, 3)), [100, 120], atol=2)
  np.testing.assert_array_equal(data.train_y, [7, 2027, 0, 7])
  np.testing.assert_array_equal(data.test_y, [7, 1])
  np.testing.assert_array_equal(data.train_groups, [0, 1, 0, 2])
  assert data.num_classes == 2028
  assert data.note == "4 + 2 16x16 pictures, not Landmarks-User-160k's"


@pytest.mark.parametrize("photographs", [""], indirect=True)
def test_landmarks_are_decoded_once_while_the_lists_are_the_same(photographs, tmp_path):
  options = dict(size=16, cache_dir=tmp_path / "cache")
  first = landmarks.load(photographs, **options)
  for path in photographs.rglob("*.jpg"):
    path.unlink()
  again = landmarks.load(photographs, **options)
  for name in ("train_x", "train_y", "test_x", "test_y", "train_groups"):
    np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
  for change in (dict(options, size=8), options):
    if change is options:
      test_list = photographs / "test.csv"
      test_list.write_text(test_list.read_text().replace(",1\n", ",2\n"))
    with pytest.raises(dataset.DataMissingError, match=r"The picture /.*\.jpg is miss"):
      landmarks.load(photographs, **change)


@pytest.mark.parametrize("photographs", [""], indirect=True)
@pytest.mark.parametrize(
  "line, match",
  [
    ("7,,3", "federated_train.csv has no image_id or no class in line 6"),
    ("7,000a1b2c3d4e5f60,x", "no image_id or no class in line 6"),
    ("\n\n7,000a1b2c3d4e5f60,x", "no image_id or no class in line 8"),
    ("7,000a1b2c3d4e5f60", "no image_id or no class in line 6"),
    ("7,000a1b2c3d4e5f60,2028", "class 2028 in line 6, but they are 0..2027"),
    ("7,000a1b2c3d4e5f60,4294967299", "class 4294967299 in line 6"),  # 3 as an int32.
    ("7,000a1b2c3d4e5f60," + "9" * 5000, "class 9{20} in line 6"),
    ("7,000a\0b2c3d4e5f60,3", "no image_id or no class in line 6|NUL"),
    (",000a1b2c3d4e5f60,3", "federated_train.csv has no user_id in a line"),
    pytest.param("\udce9,000a1b,3", "csv cannot be read .*utf-8", id="no UTF-8"),
    pytest.param('"' + "\n" * 200_000, "csv cannot be read .*limit", id="open quote"),
  ],
)
def test_landmarks_wrong_lines_are_named(line, match, photographs):
  path = photographs / "federated_train.csv"
  with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
    file.write(line + "\n")
  with pytest.raises(InputError, match=match) as caught:
    landmarks.load(photographs, size=16)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("photographs", [""], indirect=True)
def test_landmarks_of_another_folder_are_decoded_anew(photographs, tmp_path):
  options = dict(size=16, cache_dir=tmp_path / "cache")
  landmarks.load(photographs, **options)
  other = shutil.copytree(photographs, tmp_path / "other")
  for path in other.rglob("*.jpg"):
    path.write_bytes(_picture(200, (40, 40, 3), "jpeg"))
  np.testing.assert_allclose(landmarks.load(other, **options).train_x, 200, atol=2)


def test_cached_pictures_are_on_the_disk_before_they_have_their_name(named, tmp_path):
  picture_files.write_cache(tmp_path / "a.npz", [np.zeros(3)] * 4)
  assert named == [("a.npz", True)]
