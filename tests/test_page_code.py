"""The Python of the README and of docs/ runs, a page's blocks one after another.

A block that begins with "```python no-run: REASON" does not. What the others use and do
not make is in `page_names`.
"""

from __future__ import annotations

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


def test_task_of_the_page_is_trained_as_the_page_says(fork_program, tmp_path):
  page = "docs/model_and_data.md"
  [module] = [code for _, code in _PAGES[page] if "my_task = Task(" in code]
  (tmp_path / "my_module.py").write_text(module, encoding="utf-8")
  text = (_ROOT / page).read_text(encoding="utf-8")
  [flags] = re.findall(r"^python binaries/train.py (--task=my_module:.*)$", text, re.M)
  flags = [*flags.split(), f"--cache_dir={tmp_path / 'cache'}"]
  done = fork_program("train.py", *flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert "\n2 rounds: best test accuracy " in done.out


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
