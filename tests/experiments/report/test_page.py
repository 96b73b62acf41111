"""The page of runs: what it says, that it is harmless, and that it works."""

from __future__ import annotations

import base64
import html
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import zlib

import pytest

from experiments.report import page
from experiments.run_folder.reading import read_runs

# Markup, and an end of the element that the data are in.
_NASTY = "<img src=x onerror=boom()></script><!--<script>"
_HEAD = "round,train_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
_PART_HEAD = f"{_HEAD},bytes_down_model,bytes_up_model,bytes_up_state,bytes_up_metrics"


def _describe(*folders: str, **given):
  return page.describe(read_runs(folders), **given)


def _cells(described, run: int = 0) -> dict[str, str]:
  """The text of a run's row by column; spaces are plain."""
  row = [
    text.replace("\N{NO-BREAK SPACE}", " ") for text, _ in described["runs"][run]["row"]
  ]
  return dict(zip(described["columns"], row))


def _details(described, run: int = 0) -> dict[str, dict[str, str]]:
  return {heading: dict(pairs) for heading, pairs in described["runs"][run]["details"]}


# --- The table and the curves --------------------------------------------------------


def test_row_of_a_run(write_run, tmp_path):
  flags = {"partition": "iid", "rounds": 30, "target_accuracy": 0.7}
  folder = write_run(tmp_path / "a", flags=flags, data={"note": "JPEG CIFAR-10"})
  (tmp_path / "a/summary.json").write_text(
    '{"rounds": 4, "peak_memory_bytes": 1500000000}'
  )
  assert _cells(_describe(folder)) == {
    "run": "a",
    "algorithm": "fedavg",
    "task": "digits_cnn (JPEG CIFAR-10)",
    "split": "iid",
    "rounds": "4 of 30",
    "best accuracy": "75.00 %",
    "in round": "3",
    "final accuracy": "50.00 %",
    "rounds to target": "3 (70 %)",
    "megabytes": "6.00",
    "seconds a round": "1",  # The median of all but the first, which traces.
    "peak memory": "1.50 GB",
  }


_LOSS_HEAD = _HEAD.replace("test_accuracy", "test_loss,test_accuracy")


def test_runs_without_accuracy_are_shown_by_their_loss(write_run, tmp_path):
  rounds = ["1,2,0.5,,1,0,1000000,0", "2,1,0.25,,1,0,1000000,0", "3,1,0.75,,1,0,0,0"]
  of_loss = write_run(
    tmp_path / "a", head=_LOSS_HEAD, rounds=rounds, flags={"task": "regression"}
  )
  described = _describe(of_loss, write_run(tmp_path / "b"))
  run, other = described["runs"]
  assert run["curve"] == [(1, 1.0, 0.5), (2, 2.0, 0.25), (3, 2.0, 0.75)]
  assert (run["best"], other["best"]) == (0.25, 75)
  assert [group["of_loss"] for group in described["groups"]] == [True, False]
  cells = _cells(described)
  assert (cells["least test loss"], cells["in round"]) == ("0.25", "2")
  assert "rounds to target" not in cells
  cells = _cells(_describe(of_loss, str(tmp_path / "b"), target=0.7))
  assert cells["rounds to target"] == "\N{EN DASH}"
  assert (cells["final test loss"], cells["best accuracy"]) == ("0.75", "\N{EN DASH}")
  assert _cells(described, 1)["least test loss"] == "\N{EN DASH}"


def test_the_target_that_is_asked_for_is_over_the_runs_own(write_run, tmp_path):
  folder = write_run(tmp_path / "a", flags={"target_accuracy": 0.2})
  assert _cells(_describe(folder))["rounds to target"] == "1 (20 %)"
  cells = _cells(_describe(folder, target=0.8))
  assert cells["rounds to target"] == "not reached (80 %)"


def test_numbers_are_sorted_as_numbers_and_what_is_missing_as_none(write_run, tmp_path):
  a = write_run(tmp_path / "a", rounds=["1,1.0,,1.0,0,5,5"])
  b = write_run(tmp_path / "b")
  described = _describe(a, b)
  place = described["columns"].index("best accuracy")
  found = [run["row"][place][1] for run in described["runs"]]
  assert found == [None, 75]


def test_column_that_no_run_fills_is_left_out(write_run, tmp_path):
  columns = _describe(write_run(tmp_path / "a"))["columns"]
  assert "peak memory" not in columns and "rounds to target" not in columns


def test_curves_have_a_point_for_each_measured_round(write_run, tmp_path):
  run = _describe(write_run(tmp_path / "a"))["runs"][0]
  assert run["curve"] == [(1, 1.5, 25), (3, 6.0, 75), (4, 6.0, 50)]
  assert run["loss"] == [(1, 2.5), (2, 2.0), (3, 1.5), (4, 1.0)]


def test_loss_that_is_not_finite_is_a_gap_and_is_said(write_run, tmp_path):
  rounds = ["1,2.0,0.5,1,0,5,5", "2,nan,0.4,1,0,5,5", "3,inf,0.3,1,0,5,5"]
  described = _describe(write_run(tmp_path / "a", rounds=rounds))
  assert described["runs"][0]["loss"] == [(1, 2.0), (2, None), (3, None)]
  said = _details(described)["Worth knowing"]["training loss"]
  assert said == "not finite in 2 rounds, the first of them 2"


def test_round_in_which_nobody_took_part_has_not_diverged(write_run, tmp_path):
  head = (
    "round,train_loss,test_accuracy,seconds,num_examples,num_dropped,bytes_down,bytes_up"
  )
  rounds = ["1,nan,0.5,1,0,0,5,5", "2,nan,0.5,1,0,4,5,5", "3,nan,0.5,1,0,0,5,5"]
  said = _details(_describe(write_run(tmp_path / "a", rounds=rounds, head=head)))
  expected = "not finite in 1 round, the first of them 2"
  assert said["Worth knowing"]["training loss"] == expected


def test_round_of_which_no_result_was_taken_has_no_loss(write_run, tmp_path):
  head = (
    "round,train_loss,test_accuracy,seconds,num_examples,num_dropped,bytes_down,bytes_up"
  )
  rounds = ["1,2.0,0.5,1,40,0,5,5", "2,0.0,0.5,1,0,4,5,5"]
  described = _describe(write_run(tmp_path / "a", rounds=rounds, head=head))
  assert described["runs"][0]["loss"] == [(1, 2.0), (2, None)]


def test_final_accuracy_that_is_not_finite_has_no_number(write_run, tmp_path):
  rounds = ["1,2.0,0.5,1,0,5,5", "2,nan,nan,1,0,5,5"]
  described = _describe(write_run(tmp_path / "a", rounds=rounds))
  cells = _cells(described)
  assert cells["best accuracy"] == "50.00 %" and "final accuracy" not in cells
  json.dumps(described, allow_nan=False)


@pytest.mark.parametrize(
  "rounds, most", [(1000, 1000), (1001, 501), (1002, 501), (2500, 834)]
)
def test_long_curve_keeps_every_other_point_and_its_end(
  write_run, tmp_path, rounds, most
):
  rows = [f"{k},1.0,0.5,1,0,5,5" for k in range(1, rounds + 1)]
  curve = _describe(write_run(tmp_path / "a", rounds=rows))["runs"][0]["curve"]
  assert len(curve) == most and curve[-1][0] == rounds
  assert len({b[0] - a[0] for a, b in zip(curve, curve[1:])}) == 1


def test_bytes_are_by_direction_and_part_and_small_parts_are_one(write_run, tmp_path):
  rounds = ["1,1,0.5,1,0,9000,10005,9000,9000,1000,5", "2,1,0.5,1,0,0,1000,0,0,1000,0"]
  folder = write_run(tmp_path / "a", rounds=rounds, head=_PART_HEAD)
  assert _describe(folder)["runs"][0]["bytes"] == [
    ("down", "model", 9000),
    ("up", "model", 9000),
    ("up", "state", 2000),
    ("up", "other", 5),
  ]


def test_bytes_of_a_run_from_before_parts_were_counted(write_run, tmp_path):
  found = _describe(write_run(tmp_path / "a"))["runs"][0]["bytes"]
  what = "parts not counted"
  assert found == [("down", what, 3_000_000), ("up", what, 3_000_000)]


def test_bytes_of_a_run_that_went_on_when_parts_were_counted_add_up(write_run, tmp_path):
  rounds = ["1,1,0.5,1,0,500,600,,,,", "2,1,0.5,1,0,9000,10000,9000,9000,1000,0"]
  folder = write_run(tmp_path / "a", rounds=rounds, head=_PART_HEAD)
  assert _describe(folder)["runs"][0]["bytes"] == [
    ("down", "model", 9000),
    ("down", "parts not counted", 500),
    ("up", "model", 9000),
    ("up", "state", 1000),
    ("up", "parts not counted", 600),
  ]


# --- Tasks, settings and splits ------------------------------------------------------


def test_runs_are_together_with_those_of_their_task_and_data(write_run, tmp_path):
  folders = [
    write_run(tmp_path / "a", flags={"task": "cifar"}, data={"note": "JPEG"}),
    write_run(tmp_path / "b", flags={"task": "mnist"}),
    write_run(tmp_path / "c", flags={"task": "cifar"}, data={"note": ""}),
    write_run(tmp_path / "d", flags={"task": "mnist"}),
  ]
  groups = _describe(*folders)["groups"]
  assert [(group["title"], group["runs"]) for group in groups] == [
    ("cifar (JPEG)", [0]),
    ("mnist", [1, 3]),
    ("cifar", [2]),
  ]


def test_seeds_of_one_setting_are_together(write_run, tmp_path):
  folders = [
    write_run(tmp_path / f"{task}_{name}{seed}", name, flags={"task": task, "seed": seed})
    for seed in range(2)
    for task, name in (("cifar", "fedavg"), ("mnist", "fedavg"), ("mnist", "fedgg"))
    if (seed, name) != (1, "fedgg")
  ]
  groups = _describe(*folders)["groups"]
  assert [group["settings"] for group in groups] == [
    [{"label": "fedavg (2 seeds)", "runs": [0, 3]}],
    [{"label": "fedavg (2 seeds)", "runs": [1, 4]}, {"label": "fedgg", "runs": [2]}],
  ]


def test_settings_unlike_those_of_other_runs_of_the_task_come_first(write_run, tmp_path):
  flags = {"seed": 1, "run_dir": "a", "data_dir": None, "dropout": 0.0}
  a = write_run(tmp_path / "a", flags=flags, hparams={"mu": 0.1, "epochs": 5})
  flags = {"seed": 3, "run_dir": "b", "data_dir": None}
  b = write_run(tmp_path / "b", flags=flags, hparams={"epochs": 5, "rule": ""})
  flags = {"seed": 2, "task": "another"}
  described = _describe(a, b, write_run(tmp_path / "c", flags=flags))
  first = [run["details"][0] for run in described["runs"][:2]]
  assert first == [
    ("Unlike other runs", [("seed", "1"), ("mu", "0.1")]),
    ("Unlike other runs", [("seed", "3"), ("rule", '""')]),
  ]
  assert "Unlike other runs" not in _details(described, 2)
  found = _details(described)
  assert found["Hyper-parameters"] == {"mu": "0.1", "epochs": "5"}
  settings = {"algorithm": "fedavg", "task": "digits_cnn", "seed": "1", "dropout": "0.0"}
  assert found["Settings"] == settings


def test_details_say_what_a_run_was_made_by(write_run, tmp_path):
  folder = write_run(
    tmp_path / "a",
    command=["elsewhere/train.py", "--run_dir=a b"],
    versions={"numpy": "1.25.2"},
    git_commit="abc+changes",
    num_weights=10,
    data={"note": "", "examples": 50},
  )
  privacy = {"epsilon": None, "delta": 1e-5, "most_participations": 3}
  (tmp_path / "a/summary.json").write_text(json.dumps({"rounds": 4, "privacy": privacy}))
  found = _details(_describe(folder))
  assert found["Made by"] == {
    "command": "python elsewhere/train.py '--run_dir=a b'",
    "commit": "abc+changes",
    "numpy": "1.25.2",
    "folder": folder,
  }
  assert found["Model and data"] == {"weights": "10", "examples": "50"}
  assert "no differential privacy" in found["Worth knowing"]["privacy"]
  assert found["Worth knowing"]["clients dropped"] == "1"


def test_picture_of_a_split_is_there_once(write_run, tmp_path):
  flags = {"partition": "iid", "num_clients": 10, "partition_seed": 0}
  folders = []
  for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
    folders.append(write_run(tmp_path / name, flags={**flags, "partition_seed": seed}))
    if name != "a":
      (tmp_path / name / "partition.png").write_bytes(name.encode())
  splits = _describe(*folders)["groups"][0]["splits"]
  assert [(split["text"], split["runs"]) for split in splits] == [
    ("iid, 10 clients, seed 0", [0, 1]),
    ("iid, 10 clients, seed 1", [2]),
  ]
  start = "data:image/png;base64,"
  pictures = [start + base64.b64encode(name).decode() for name in (b"b", b"c")]
  assert [split["picture"] for split in splits] == pictures


# --- The page ------------------------------------------------------------------------


class _Elements(html.parser.HTMLParser):
  """What a browser finds: the names of all elements, and the text of the data's."""

  def __init__(self, text: str):
    super().__init__()
    self.names: list[str] = []
    self.data = ""
    self._in_data = False
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.names.append(tag)
    self._in_data = ("id", "data") in attrs

  def handle_endtag(self, tag):
    self._in_data = False

  def handle_data(self, data):
    self.data += data if self._in_data else ""


def test_what_files_say_stays_data(write_run, tmp_path):
  folder = write_run(
    tmp_path / _NASTY.replace("/", "\N{DIVISION SLASH}"),
    _NASTY,
    flags={"task": _NASTY, "partition": _NASTY, "data_dir": _NASTY},
    hparams={_NASTY: _NASTY},
    git_commit=_NASTY,
  )
  harmless = _Elements(page.render(read_runs([write_run(tmp_path / "a")])))
  found = _Elements(page.render(read_runs([folder]), title=_NASTY))
  assert found.names == harmless.names
  data = json.loads(found.data)
  assert data["title"] == data["groups"][0]["title"] == _NASTY


def test_page_names_nothing_outside_it(write_run, tmp_path):
  text = page.render(read_runs([write_run(tmp_path / "a")]))
  assert not re.search(r"https?://|\burl\(|\bimport\b", text.replace("!important", ""))
  assert "default-src 'none'" in text


# --- In a browser --------------------------------------------------------------------

# Uses the page as a reader does, and writes what is there. A console that says more than
# one line had an error: a wrong line of script, or something that was to be loaded.
_PROBE = """
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const names = () => all("#table tbody tr").map(row => row.cells[0].textContent);
const points = () => all("section").map(task => all(".chart", task).map(
  chart => all("path", chart).map(path => path.getAttribute("d").replace(/[^ML]/g, ""))));
const head = name => all("#table th button").find(b => b.textContent === name);
const legend = name => all(".legend button").find(b => b.textContent === name);
const found = {
  title: document.title,
  names: names(),
  headings: all("h2").map(node => node.textContent),
  points: points(),
  pictures: all("img").map(image => image.naturalWidth),
  details: all("details").length,
  legend: all("section").map(task => all(".legend button:not(.command)", task).length),
  colors: all("path", all(".chart")[0]).map(path => path.getAttribute("stroke")),
  requests: performance.getEntriesByType("resource").map(entry => entry.name),
};
head("best accuracy").click();
found.upwards = names();
head("best accuracy").click();
found.downwards = names();
legend("fedgg (2 seeds)").click();
found.setting_hidden = points();
legend("none").click();
found.none_left = points();
legend("all").click();
found.all_again = points();
const chart = all(".chart svg")[0], box = chart.getBoundingClientRect();
const last = {clientX: box.right - 14, clientY: box.top + 60};
chart.dispatchEvent(new PointerEvent("pointermove", last));
found.read_out = document.getElementById("tip").textContent;
all("#table a")[0].click(); // The one of 75 %.
found.open = all("details").map(node => node.open);
console.info("probe done");
document.body.replaceChildren(JSON.stringify(found));
"""


def _browse(path: pathlib.Path, profile: pathlib.Path) -> tuple[str, list[str]]:
  """The page as Chromium has made it, and what its console says."""
  browser = shutil.which("chromium")
  if browser is None:
    pytest.skip("no chromium: `apt-get install chromium`")
  switches = [
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    *("disable-dev-shm-usage", "enable-logging=stderr", f"user-data-dir={profile}"),
    "dump-dom",
  ]
  command = [browser, *(f"--{switch}" for switch in switches), path.as_uri()]
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
  return done.stdout, re.findall(r":CONSOLE.*?\] (.*)", done.stderr)


def _png() -> bytes:
  """A white PNG of two by one pixels."""

  def chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return len(content).to_bytes(4, "big") + kind + content + check.to_bytes(4, "big")

  size = (2).to_bytes(4, "big") + (1).to_bytes(4, "big")
  content = zlib.compress(b"\0\xff\xff")
  head = chunk(b"IHDR", size + bytes([8, 0, 0, 0, 0]))
  return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def test_page_works_in_a_browser(write_run, tmp_path):
  rounds = ["1,2,0.5,1,0,5,5", "2,nan,,1,0,5,5", "3,1,0.6,1,0,5,5", "4,0,0.7,1,0,5,5"]
  nasty = _NASTY.replace("/", "\N{DIVISION SLASH}")
  folders = [
    write_run(tmp_path / "b", "fedgg", rounds=rounds, flags={"seed": 0}),
    write_run(tmp_path / "c", "fedgg", rounds=rounds, flags={"seed": 1}),
    write_run(tmp_path / nasty, _NASTY, flags={"partition": _NASTY}),
    write_run(tmp_path / "a", rounds=[], flags={"task": "another"}),
  ]
  (tmp_path / "b/partition.png").write_bytes(_png())
  text = page.render(read_runs(folders), title="A & B")
  path = tmp_path / "report.html"
  path.write_text(text.replace("</body>", f"<script>{_PROBE}</script></body>"))
  text, console = _browse(path, tmp_path / "profile")
  assert len(console) == 1 and "probe done" in console[0], console
  body = re.search(r"<body[^>]*>(.*)</body>", text, re.DOTALL)
  found = json.loads(html.unescape(body[1]))
  assert found["title"] == "A & B"
  assert found["names"] == ["b", "c", nasty, "a"]
  assert found["headings"] == ["digits_cnn", "another"]
  # Accuracy twice, then the loss, whose NaN divides the curves of the first two runs.
  shown = [["MLL"] * 3, ["MLL"] * 3, ["MML", "MML", "MLLL"]]
  assert found["points"] == [shown, [[], [], []]]
  # These are seeds of one setting.
  first, second, other = found["colors"]
  assert first == second != other and found["legend"] == [2, 1]
  assert found["pictures"] == [2]
  assert found["details"] == 4 and found["open"] == [False, False, True, False]
  assert found["requests"] == []
  # 70 % and 75 %; a run that has none is last either way.
  assert found["upwards"] == ["b", "c", nasty, "a"]
  assert found["downwards"] == [nasty, "b", "c", "a"]
  assert found["setting_hidden"][0] == [["MLL"], ["MLL"], ["MLLL"]]
  assert found["none_left"][0] == [[], [], []]
  assert found["all_again"] == found["points"]
  assert re.fullmatch(r".*: round 4, \d+\.00 %, .* MB", found["read_out"])


def test_a_run_was_made_by_its_last_session(write_run, tmp_path):
  sessions = [dict(command=[name], git_commit=name) for name in ("first", "last")]
  found = _details(_describe(write_run(tmp_path / "a", sessions=sessions)))["Made by"]
  assert (found["command"], found["commit"]) == ("python last", "last")
