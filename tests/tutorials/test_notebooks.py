"""The notebooks: what is kept of them, and that they run as they are kept.

One of them is run as on Colab too: by a kernel of a newer Python, without a checkout.
"""

from __future__ import annotations

import ast
import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess

import nbformat
import pytest
import rerun

import tff_algos

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NAMES = (
  "first_run",
  "your_model_and_data",
  "your_algorithm",
  "comparing_algorithms",
  "what_an_upload_gives_away",
  "run_to_served_model",
)
_CELL_OF_ALGORITHM = "class FedNovaHparams"
_REPOSITORY = "https://github.com/OWNER/tff_algos"


def _read(name: str) -> nbformat.NotebookNode:
  notebook = nbformat.read(rerun.FOLDER / f"{name}.ipynb", as_version=4)
  nbformat.validate(notebook)
  return notebook


def _codes(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


# --- As they are kept -------------------------------------------------------------------


def test_notebooks_are_those_that_are_known():
  assert {path.stem for path in rerun.FOLDER.glob("*.ipynb")} == set(_NAMES)


@pytest.mark.parametrize("name", _NAMES)
def test_notebook_was_run_from_top_to_bottom_without_noise(name):
  cells = _codes(_read(name))
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  outputs = [output for cell in cells for output in cell.outputs]
  assert {output.output_type for output in outputs} <= {"stream", "display_data"}
  assert {o.name for o in outputs if o.output_type == "stream"} == {"stdout"}
  assert any("image/png" in o.get("data", ()) for o in outputs)


@pytest.mark.parametrize("name", _NAMES)
def test_notebook_keeps_nothing_of_where_it_was_run(name):
  notebook = _read(name)
  assert dict(notebook.metadata) == {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
  }
  assert [cell.id for cell in notebook.cells] == [
    f"cell-{i}" for i in range(len(notebook.cells))
  ]
  assert not [cell.metadata for cell in notebook.cells if cell.metadata]
  assert (rerun.FOLDER / f"{name}.ipynb").stat().st_size < 250_000


def test_all_begin_with_a_title_and_the_same_first_code():
  notebooks = list(map(_read, _NAMES))
  for notebook in notebooks:
    assert re.match(r"# \w", notebook.cells[0].source)
    assert notebook.cells[1].source == notebooks[0].cells[1].source
    assert notebook.cells[1].source.count(_REPOSITORY) == 1


def test_the_algorithm_is_of_public_names_and_of_some_forty_lines():
  cells = _codes(_read("your_algorithm"))
  [algorithm] = [cell.source for cell in cells if _CELL_OF_ALGORITHM in cell.source]
  assert len(algorithm.splitlines()) <= 45
  used = set()
  for cell in cells[1:]:
    for node in ast.walk(ast.parse(cell.source)):
      if isinstance(node, ast.ImportFrom) and node.module.startswith("tff_algos"):
        assert node.module == "tff_algos"
        used |= {alias.name for alias in node.names}
      elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tff_algos":
        used.add(node.attr)
  assert {"compose_process", "train_client"} <= used
  assert used <= {*tff_algos.__all__, "partitions"}


# --- Run again --------------------------------------------------------------------------


_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?")


def _shown(cell: nbformat.NotebookNode) -> tuple[list, list[float]]:
  """What a cell shows, with # for numbers, and these."""
  shown, numbers = [], []
  for output in cell.outputs:
    if output.output_type == "stream":
      masked = _NUMBER.sub("#", output.text)
      shown.append((output.name, re.sub(r"\s+", " ", masked)))
      numbers += [float(n.replace(",", "")) for n in _NUMBER.findall(output.text)]
    else:
      shown.append((output.output_type, *sorted(output.data)))
  return shown, numbers


def _assert_shows_the_same(cells: list, kept: list) -> None:
  assert len(cells) == len(kept)
  for cell, old in zip(cells, kept):
    assert cell.source == old.source
    (shown, numbers), (kept_shown, kept_numbers) = _shown(cell), _shown(old)
    assert shown == kept_shown
    # A processor's rounding is of 3 % at most: without oneDNN, on the same one.
    assert numbers == pytest.approx(kept_numbers, rel=0.05, abs=0.02)


@pytest.mark.notebooks
@pytest.mark.parametrize("name", _NAMES)
def test_notebook_shows_again_what_is_kept(name):
  notebook = _read(name)
  # Where another kernel runs the cells, nothing is left of what the first one did.
  notebook.cells.insert(2, nbformat.v4.new_code_cell("%reset -f"))
  cells = _codes(rerun.run(notebook, rerun.FOLDER))
  del cells[1]
  _assert_shows_the_same(cells, _codes(_read(name)))


def _newer_python(uv: str) -> str:
  """A Python that TFF has no wheel for, of uv's, of the system's or of pyenv's."""
  root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
  path = os.pathsep.join([*glob.glob(f"{root}/versions/*/bin"), os.environ["PATH"]])
  done = subprocess.run(
    [uv, "python", "find", "--no-project", "--no-python-downloads", ">=3.12"],
    env={**os.environ, "PATH": path},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    pytest.skip("no Python 3.12 or newer, as Colab has: `uv python install 3.12`")
  return done.stdout.strip()


@pytest.fixture
def newer_kernel(uv, pypi, tmp_path, monkeypatch) -> str:
  """A kernel of a newer Python, of the versions that Colab has [recalled, 2025]."""
  python = tmp_path / "newer/bin/python"
  packages = ["ipykernel==6.17.1", "ipython==7.34.0", "jupyter-client==7.4.9"]
  for command in (
    ["venv", "--no-project", f"--python={_newer_python(uv)}", tmp_path / "newer"],
    ["pip", "install", f"--python={python}", *packages, "setuptools"],
  ):
    subprocess.run([uv, *command], check=True, capture_output=True)
  folder = tmp_path / "jupyter/kernels/newer"
  folder.mkdir(parents=True)
  argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
  described = {"argv": argv, "display_name": "newer", "language": "python"}
  (folder / "kernel.json").write_text(json.dumps(described))
  monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
  return "newer"


@pytest.fixture
def repository(tmp_path) -> str:
  """The address of a repository that holds these files as they are now."""
  git = ("git", "-c", "user.name=tests", "-c", "user.email=tests@localhost")
  listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
  done = subprocess.run([*git, *listed], cwd=_ROOT, capture_output=True, text=True)
  if done.returncode:
    pytest.skip("this is no checkout of git")
  folder = tmp_path / "repository"
  for name in filter(None, done.stdout.split("\0")):
    if not name.startswith("results/"):
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      with contextlib.suppress(FileNotFoundError):  # Removed, and not committed yet.
        shutil.copy(_ROOT / name, folder / name)
  for command in (["init"], ["add", "--all"], ["commit", "--message=all"]):
    subprocess.run([*git, *command], cwd=folder, check=True, capture_output=True)
  return folder.as_uri()


@pytest.mark.notebooks
def test_first_notebook_runs_to_its_end_as_on_colab(newer_kernel, repository, tmp_path):
  """Nothing but the notebook is there, and its kernel's Python is too new for TFF."""
  kept, notebook = _read("first_run"), _read("first_run")
  first = notebook.cells[1]
  first.source = first.source.replace(_REPOSITORY, repository)
  version = nbformat.v4.new_code_cell("import sys; print(*sys.version_info[:2])")
  notebook.cells.insert(0, version.copy())
  notebook.cells.append(version)
  alone = tmp_path / "alone"
  alone.mkdir()
  try:
    newer, made, *cells, older = _codes(rerun.run(notebook, alone, newer_kernel))
    _assert_shows_the_same(cells, _codes(kept)[1:])
    versions = [tuple(map(int, cell.outputs[0].text.split())) for cell in (newer, older)]
    assert versions[0] >= (3, 12) > versions[1]
    assert made.outputs[0].name == "stdout"
    assert "an environment with an older Python" in made.outputs[0].text
  finally:
    shutil.rmtree(alone)  # pytest would keep its environment of 2.4 GB.
