"""Runs the notebooks of docs/tutorials from top to bottom and keeps what they show.

  uv run python tests/tutorials/rerun.py first_run your_algorithm

Without names all of them. What a run says of when and where it was is not kept.
"""

from __future__ import annotations

import pathlib
import sys

import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/tutorials"
_SECONDS = 900  # Of one cell, on a machine that may be busy.


def run(
  notebook: nbformat.NotebookNode,
  folder: pathlib.Path,
  kernel: str = "python3",
  **options,
) -> nbformat.NotebookNode:
  """Runs all cells anew.

  Args:
    notebook: Changed in place.
    folder: Where its kernel starts.
    kernel: The kernel's name.
    options: Others of `NotebookClient`.

  Returns:
    The notebook.

  Raises:
    nbclient.exceptions.CellExecutionError: A cell raised something, if `options` do not
      allow errors.
  """
  metadata = notebook.metadata.copy()
  for cell in notebook.cells:
    if cell.cell_type == "code":
      cell.outputs, cell.execution_count = [], None
  NotebookClient(
    notebook,
    kernel_name=kernel,
    resources={"metadata": {"path": str(folder)}},
    record_timing=False,
    coalesce_streams=True,
    **{"timeout": _SECONDS, **options},
  ).execute()
  notebook.metadata = metadata
  return notebook


if __name__ == "__main__":
  for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(
    FOLDER.glob("*.ipynb")
  ):
    nbformat.write(run(nbformat.read(path, as_version=4), FOLDER), path)
    print(path.name)
