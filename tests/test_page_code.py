"""The Python of the README and of docs/ runs, a page's blocks one after another.

A block that begins with "```python no-run: REASON" does not. What the others use and do
not make is in `page_names`.
"""

from __future__ import annotations

import csv
import json
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(?ms)^```python *([^\n]*)\n(.*?)^```$")
_PAGES = {
  page.relative_to(_ROOT).as_posix(): _BLOCK.findall(page.read_text(encoding="utf-8"))
  for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md")))
}
# These make all that they use, as whoever copies them has to.
_WHOLE = ("docs/from_python.md", "docs/model_and_data.md", "docs/python.md")
_FROM_PYTHON = _WHOLE[0]  # Run twice, below.
# What takes long, and as much of it as shows that it runs.
_LONG = {"train_total_rounds=100": "train_total_rounds=2"}


def _code(page: str) -> str:
  """The blocks of a page that run, each where it stands on the page."""
  lines = (_ROOT / page).read_text(encoding="utf-8").split("\n")
  code = [""] * len(lines)
  inside = False
  for place, line in enumerate(lines):
    if line.startswith("```"):
      inside = line == "```python"
    elif inside:
      code[place] = line
  text = "\n".join(code)
  for long, short in _LONG.items():
    text = text.replace(long, short)
  return text


_RUN = [page for page in _PAGES if _code(page).strip() and page != _FROM_PYTHON]


@pytest.mark.parametrize("page", [page for page, blocks in _PAGES.items() if blocks])
def test_blocks_that_do_not_run_say_why(page):
  for mark, _ in _PAGES[page]:
    assert not mark or re.fullmatch(r"no-run: \w.{10,}", mark), f"{page}: {mark}"


@pytest.mark.parametrize("page", _RUN)
def test_code_runs(page, fork_program, tmp_path):
  program = tmp_path / "page.py"
  # In one line, so that a traceback has the page's numbers.
  given = "" if page in _WHOLE else "from page_names import *; "
  program.write_text(given + _code(page), encoding="utf-8")
  tests = pathlib.Path(__file__).parent
  done = fork_program(str(program), cwd=tmp_path, paths=[str(tests)])
  assert done.status == 0, done.err


@pytest.mark.parametrize(
  "module, task, said",
  [
    ("my_module", "my_task", r"\n2 rounds: best test accuracy \d\d"),
    # In the mean the labels are 0.71 off the mean.
    (
      "diabetes",
      "progression",
      r"test off has reached 0.5\n1?\d rounds: best test loss 0",
    ),
  ],
)
def test_task_of_the_page_is_trained_as_the_page_says(
  fork_program, tmp_path, module, task, said
):
  page = "docs/model_and_data.md"
  [code] = [code for _, code in _PAGES[page] if f"\n{task} = Task(" in code]
  (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
  text = (_ROOT / page).read_text(encoding="utf-8")
  [flags] = re.findall(rf"^python binaries/train.py (--task={module}:.*)$", text, re.M)
  flags = [*flags.split(), f"--cache_dir={tmp_path / 'cache'}"]
  done = fork_program("train.py", *flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert re.search(said, done.out), done.out


def test_run_without_accuracy_goes_by_its_loss(fork_program, tmp_path):
  """The regression of the page, ended by the loss, and taken at its best round."""
  [code] = [
    c for _, c in _PAGES["docs/model_and_data.md"] if "\nprogression = Task(" in c
  ]
  (tmp_path / "diabetes.py").write_text(code, encoding="utf-8")
  task = ("--task=diabetes:progression", f"--cache_dir={tmp_path / 'cache'}")
  # A step that is too long: the loss goes up after a few rounds.
  flags = ("--rounds=12", "--patience=2", "--learning_rate=0.15", "--run_dir=run")
  done = fork_program("train.py", *task, *flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  with open(tmp_path / "run/metrics.csv", newline="") as f:
    losses = [float(row["test_loss"]) for row in csv.DictReader(f)]
  summary = json.loads((tmp_path / "run/summary.json").read_text())
  best = losses.index(min(losses)) + 1
  assert (summary["best_loss"], summary["best_loss_round"]) == (min(losses), best)
  assert summary["ended_by"] == "patience" and len(losses) == best + 2
  there = {path.name for path in (tmp_path / "run").iterdir()}
  assert {"loss.png", "traffic.png", "best_model.keras"} <= there
  assert not {"accuracy.png", "partition.png"} & there
  for flag, loss in (("--best", min(losses)), ("--nobest", losses[-1])):
    done = fork_program("evaluate.py", "--run=run", flag, cwd=tmp_path)
    assert done.status == 0, done.err
    assert f"test set, 92 examples: loss {loss:.4f}, off" in done.out
  args = (task[0], f"--out={tmp_path / 'split'}")
  done = fork_program("heterogeneity.py", *args, cwd=tmp_path)
  assert done.status == 2 and "labels of diabetes are no classes" in done.err
  assert not (tmp_path / "split").exists()


def test_code_of_from_python_prints_the_same_again(fork_program, tmp_path):
  """Loss and accuracy of the loop, and three losses of the rounds without it."""
  printed = []
  for again in ("once", "again"):
    folder = tmp_path / again
    folder.mkdir()
    program = folder / "page.py"
    program.write_text(_code(_FROM_PYTHON), encoding="utf-8")
    done = fork_program(str(program), cwd=folder)
    assert done.status == 0, done.err
    printed.append(done.out.split())
  # The labels are a linear function of the inputs: guessing costs ln 2 = 0.69.
  assert len(printed[0]) == 5
  assert float(printed[0][0]) < 0.4 and float(printed[0][1]) > 0.8
  assert printed[1] == printed[0]
