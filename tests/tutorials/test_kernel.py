"""docs/tutorials/kernel.py: cells that another kernel runs look as if this one had.

Both kernels are of this environment here; test_notebooks.py has one of a newer Python.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys

import nbformat
import pytest
import rerun

pytestmark = pytest.mark.notebooks

_FILE = rerun.FOLDER / "kernel.py"


def _load():
  spec = importlib.util.spec_from_file_location("kernel", _FILE)
  kernel = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(kernel)
  return kernel


# In the place of uv, which would make an environment.
_START = f"""
import subprocess, sys
sys.path.insert(0, {str(_FILE.parent)!r})
import kernel

def install(folder, environment):
  command = [sys.executable, "-m", "ipykernel", "install", "--name=tff_algos"]
  subprocess.run([*command, f"--prefix={{folder}}"], check=True, capture_output=True)

kernel._install = install
only_here = 1
kernel.start()
"""
_CELLS = {
  "start": _START,
  "names": "print('only_here' in globals(), 'kernel' in globals()); there = 7",
  "streams": "import sys\nprint('out')\nprint('err', file=sys.stderr)\nthere",
  "empty": "",
  "comment": "# nothing but this",
  "magic": "%%writefile written.txt\nof a magic",
  "shell": "!cat written.txt",
  "picture": "import matplotlib.pyplot as plt\nplt.plot([1, 2]);",
  "update": (
    "from IPython.display import HTML, clear_output, display\n"
    "print('cleared')\n"
    "clear_output()\n"
    "handle = display(HTML('first'), display_id=True)\n"
    "handle.update(HTML('second'))"
  ),
  "error": "def fail():\n  raise KeyError('deliberate')\nprint('before')\nfail()",
  # By what the notebook's own kernel gets where somebody presses "interrupt".
  "interrupted": (
    "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)"
  ),
  # As where a signal comes between Python's last look for one and the sleep.
  "interrupted once in vain": (
    "def pass_over(number, frame):\n"
    "  signal.signal(number, signal.default_int_handler)\n"
    "signal.signal(signal.SIGINT, pass_over)\n"
    "os.kill(os.getppid(), signal.SIGINT)\n"
    "time.sleep(600)"
  ),
  "after": "print(there + 1)",
  "end": "import os\nos._exit(3)",
}
_SECONDS = 300


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> dict[str, list]:
  """The outputs of each of `_CELLS`."""
  notebook = rerun.run(
    nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, _CELLS.values()))),
    tmp_path_factory.mktemp("cells"),
    allow_errors=True,
    timeout=_SECONDS,
  )
  return {name: cell.outputs for name, cell in zip(_CELLS, notebook.cells)}


def _text(outputs: list, stream: str = "stdout") -> str:
  return "".join(
    o.text for o in outputs if o.output_type == "stream" and o.name == stream
  )


def test_cells_know_nothing_of_the_first_kernel(outputs):
  assert _text(outputs["names"]) == "False False\n"


def test_what_is_printed_comes_by_its_stream(outputs):
  assert _text(outputs["streams"]) == "out\n"
  assert _text(outputs["streams"], "stderr") == "err\n"


def test_the_value_of_the_last_line_is_shown(outputs):
  [value] = [o for o in outputs["streams"] if o.output_type != "stream"]
  assert value.data == {"text/plain": "7"}


@pytest.mark.parametrize("name", ["empty", "comment"])
def test_cell_that_does_nothing_shows_nothing(outputs, name):
  assert outputs[name] == []


def test_magics_and_shell_are_those_of_the_other_kernel(outputs):
  assert _text(outputs["magic"]) == "Writing written.txt\n"
  assert _text(outputs["shell"]).strip() == "of a magic"


def test_picture_is_shown_in_place(outputs):
  [picture] = outputs["picture"]
  assert picture.data["image/png"]


def test_output_is_cleared_and_updated(outputs):
  [shown] = outputs["update"]
  assert shown.data["text/html"] == "second"


def test_error_ends_the_cell_and_is_shown_as_raised(outputs):
  assert _text(outputs["error"]) == "before\n"
  [error] = [o for o in outputs["error"] if o.output_type == "error"]
  shown = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))  # Without colours.
  assert "KeyError: 'deliberate'" in shown
  assert "raise KeyError('deliberate')" in shown
  assert "kernel.py" not in shown


@pytest.mark.parametrize("name", ["interrupted", "interrupted once in vain"])
def test_interrupt_reaches_the_cell_and_the_kernel_goes_on(outputs, name):
  [error] = [o for o in outputs[name] if o.output_type == "error"]
  assert "KeyboardInterrupt" in error.evalue
  assert _text(outputs["after"]) == "8\n"


class _InterruptedAtOnce:
  """A client and manager of a cell by which the notebook is interrupted as it is sent."""

  is_interrupted = False

  def execute(self, code, allow_stdin):
    del code, allow_stdin
    os.kill(os.getpid(), signal.SIGINT)
    return "cell"

  def interrupt_kernel(self):
    self.is_interrupted = True

  def get_iopub_msg(self, timeout):
    del timeout
    assert self.is_interrupted
    content = {"execution_state": "idle"}
    return dict(parent_header={"msg_id": "cell"}, msg_type="status", content=content)


def test_interrupt_that_comes_as_a_cell_is_sent_reaches_it():
  """Else the cell would run on, and the next wait for it."""
  both = _InterruptedAtOnce()
  _load()._run("time.sleep(600)", both, both)
  assert both.is_interrupted


def test_end_of_the_other_kernel_is_said(outputs):
  [error] = [o for o in outputs["end"] if o.output_type == "error"]
  assert error.ename == "RuntimeError"
  assert "restart the notebook's kernel" in error.evalue


def test_it_imports_nothing_that_a_notebook_of_another_python_lacks():
  """Of what is not Python's own, a Jupyter kernel has these."""
  code = f"import sys; sys.path.insert(0, {str(_FILE.parent)!r}); import kernel\n"
  code += "print(*{name.partition('.')[0] for name in sys.modules})"
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert not {"numpy", "tensorflow", "tff_algos"} & set(done.stdout.split())


def test_environment_that_cannot_be_made_is_an_error_with_the_words_of_uv(
  monkeypatch, tmp_path
):
  kernel = _load()
  (tmp_path / "pyproject.toml").write_text("[project]\nname = 'empty'\nversion = '1'\n")
  monkeypatch.setattr(kernel, "_CHECKOUT", tmp_path)
  with pytest.raises(RuntimeError, match=r"(?s)not make an environment.*uv\.lock"):
    kernel.start()
