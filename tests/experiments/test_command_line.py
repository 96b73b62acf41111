"""How programs end: their exit statuses, and what they say of what."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from concurrent import futures

import pytest
from absl import flags

from experiments import command_line
from tff_algos import durable_files
from tff_algos.errors import InputError

_REPORT_IT = command_line._REPORT_IT

_PROGRAM = """
  import errno, os, signal, sys, time
  from absl import flags
  from experiments import command_line
  from tff_algos.errors import *

  flags.DEFINE_integer("number", 0, "A number.", 0)
  flags.DEFINE_boolean("switch", False, "A switch.")

  def parse(argv):
    rest = command_line.parse_flags(argv)
    if flags.FLAGS.number == 7:
      raise InputError("number must not be 7.")
    if flags.FLAGS.number == 8:
      raise TypeError("in the parser")
    if flags.FLAGS.number == 9:
      sys.exit("no GPU here")
    return rest

  def main():
    print("started", flush=True)
    {code}

  command_line.start(main, parse)
"""


def _run(code: str, *flags: str, **options) -> subprocess.CompletedProcess:
  program = textwrap.dedent(_PROGRAM).format(code=code)
  return subprocess.run(
    [sys.executable, "-c", program, *flags],
    stdin=subprocess.DEVNULL,
    # So that Python 3.9 does not fork, of which gRPC may tell on the copy's stderr.
    close_fds=False,
    **{"capture_output": True, **options},
    text=True,
    timeout=300,
  )


def _status_and_sentence(code: str, *flags: str) -> tuple[int, str]:
  done = _run(code, *flags)
  assert done.stdout == "started\n"
  return done.returncode, done.stderr


def test_warning_of_what_was_given_is_not_silenced():
  """As libraries' are, by what a program calls first; it is a sentence of one line."""
  code = "import warnings; warnings.warn('said', InputWarning); warnings.warn('not')"
  program = textwrap.dedent(_PROGRAM).format(code=code)
  quiet = "from tff_algos import preflight; preflight.quiet([])\n"
  done = subprocess.run(
    [sys.executable, "-c", quiet + program], capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 0
  assert done.stderr == "Warning: said\n"


@pytest.mark.parametrize(
  "environment",
  [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
  ],
  ids=["", "locale"],
)
def test_what_a_terminal_cannot_show_ends_no_program(environment):
  done = _run("print('1 \\u00b1 2')", env={**os.environ, **environment})
  assert (done.returncode, done.stdout) == (0, "started\n1 \\xb1 2\n"), done.stderr


# --- Statuses -----------------------------------------------------------------------


@pytest.mark.parametrize(
  "code, status", [("pass", 0), ("return 0", 0), ("return 1", 1), ("return 75", 75)]
)
def test_what_main_returns_is_the_status(code, status):
  assert _status_and_sentence(code) == (status, "")


def test_status_of_a_run_that_was_stopped_is_that_of_sysexits():
  assert command_line.STOPPED_EARLY == os.EX_TEMPFAIL == 75


@pytest.mark.parametrize("kind", ["InputError", "DamagedError"])
def test_mistake_is_its_sentence_and_status_2(kind):
  assert _status_and_sentence(f'raise {kind}("Do that.")') == (2, "Do that.\n")


@pytest.mark.parametrize("kind", ["UnsupportedComputationError", "WorkerLostError"])
def test_failed_run_is_its_sentence_and_status_1(kind):
  assert _status_and_sentence(f'raise {kind}("It is lost.")') == (1, "It is lost.\n")


@pytest.mark.parametrize(
  "kind", ["MemoryError", "type('ResourceExhaustedError', (E,), {})"]
)
def test_memory_that_is_too_small_is_nobodys_defect(kind):
  """TensorFlow's is told by its name: what ends a program must not import it."""
  code = f"E = Exception; raise {kind}('OOM when allocating')"
  status, said = _status_and_sentence(code)
  assert status == 1 and said.count("\n") == 1
  assert said.startswith("The memory is too small (OOM when allocating); what was ")
  _, said = _status_and_sentence("raise MemoryError")
  assert said.startswith("The memory is too small (no more is there); what was ")


@pytest.mark.parametrize("length, is_taken", [(244, True), (245, False), (300, False)])
def test_a_file_whose_name_is_too_long_is_refused(tmp_path, length, is_taken):
  path = str(tmp_path / ("a" * length))
  refused = pytest.raises(InputError, match="--out: a file's name may have 244 bytes")
  with contextlib.nullcontext() if is_taken else refused:
    command_line.check_out_file(path, b"")
    with durable_files.new_file(path, "w") as f:
      f.write("whole")


@pytest.mark.parametrize("kind", ["ValueError", "TypeError", "KeyError", "OSError"])
def test_defect_has_a_traceback_and_asks_for_a_report(kind):
  status, said = _status_and_sentence(f'raise {kind}("inside")')
  assert status == 1
  assert said.startswith("Traceback (most recent call last):")
  *_, error, last = said.splitlines()
  assert error.startswith(kind) and "inside" in error
  assert last == _REPORT_IT


@pytest.mark.parametrize(
  "name, remedy",
  [
    ("ENOSPC", "make room"),
    ("EDQUOT", "make room"),
    ("EROFS", "set that right"),
    ("EACCES", "set that right"),
    ("EIO", "set that right"),
  ],
)
def test_trouble_of_the_disk_is_nobodys_mistake_and_no_defect(name, remedy):
  code = f'raise OSError(errno.{name}, os.strerror(errno.{name}), "/results/a.csv")'
  status, said = _status_and_sentence(code)
  assert status == 1
  assert said.count("\n") == 1 and said.startswith("/results/a.csv: ")
  assert said.endswith(
    f"; what was written before stays: {remedy} and give the same command again, which "
    "train.py takes with --resume.\n"
  )


def test_file_that_is_missing_inside_is_a_defect():
  status, said = _status_and_sentence('open("/absent/file")')
  assert status == 1 and said.endswith(f"{_REPORT_IT}\n")


@pytest.mark.parametrize(
  "code",
  ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"],
)
def test_ctrl_c_has_no_traceback(code):
  assert _status_and_sentence(code) == (130, "")


def test_reader_that_has_gone_ends_a_program_as_any_other():
  """Not with 0: a run that its reader ended is not done."""
  read, write = os.pipe()
  os.close(read)
  try:
    done = _run("pass", capture_output=False, stdout=write, stderr=subprocess.PIPE)
  finally:
    os.close(write)
  assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_traceback_of_a_mistake_is_shown_when_asked_for():
  status, said = _status_and_sentence('raise InputError("Do that.")', "--verbosity=1")
  assert status == 2
  assert "Traceback" in said and said.endswith("\nDo that.\n")


# --- Flags --------------------------------------------------------------------------


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--nmber=1", "Unknown command line flag 'nmber'"),
    ("--number=x", "number"),
    ("--number=-1", "number"),
    ("--number=7", "number must not be 7."),
    ("--switch=a b", "--switch is a switch: write --switch or --noswitch."),
    ("--noswitch=3", "--noswitch=3 does not take an argument"),
    (f"--flagfile={sys.executable}", "The --flagfile cannot be read: it is no text."),
    ("--flagfile=no'ne", "The --flagfile cannot be read: No such file or dir"),
    (
      "--flagfile=none",
      "The --flagfile cannot be read: No such file or directory, none.",
    ),
    ("word", "found 'word': write --flag=value."),
  ],
)
def test_wrong_flag_is_one_sentence_and_nothing_is_started(flag, said):
  done = _run("pass", flag)
  assert (done.returncode, done.stdout) == (2, "")
  assert said in done.stderr and done.stderr.count("\n") == 1


def test_flags_that_must_be_given_are_asked_for():
  values = flags.FlagValues()
  for name in ("place", "other"):
    flags.DEFINE_string(name, None, "Any.", flag_values=values, required=True)
  with pytest.raises(flags.Error) as caught:
    values(["program"])
  assert str(command_line.wrong_flag(caught.value)) == "Give --place. Give --other."


def test_defect_before_main_is_one_too():
  done = _run("pass", "--number=8")
  assert (done.returncode, done.stdout) == (1, "")
  assert "Traceback" in done.stderr
  assert done.stderr.splitlines()[-1] == _REPORT_IT


def test_what_ends_the_program_before_main_keeps_its_sentence_and_status():
  done = _run("pass", "--number=9")
  assert (done.returncode, done.stdout, done.stderr) == (1, "", "no GPU here\n")


def test_help_is_no_failure():
  done = _run("pass", "--help")
  assert (done.returncode, done.stderr) == (0, "")


# --- Signals ------------------------------------------------------------------------


def test_outside_of_the_main_thread_no_signal_is_handled():
  """Where a search runs several trials at once."""

  def work() -> str:
    with command_line.handling_stops(lambda number, frame: None):
      return "done"

  before = signal.getsignal(signal.SIGTERM)
  with futures.ThreadPoolExecutor(1) as pool:
    assert pool.submit(work).result() == "done"
  assert signal.getsignal(signal.SIGTERM) is before


def test_closed_terminal_is_one_signal_and_nothing_is_written_to_it(tmp_path):
  """Which would be an error in the midst of a round."""
  code = f"""
    import fcntl, pathlib, sys, termios, time
    from experiments import command_line

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    told = []

    def handle(number, frame):
      print("stopping", file=sys.stderr, flush=True)
      told.append(int(number))

    with command_line.handling_stops(handle):
      print("ready", flush=True)
      while not told:
        time.sleep(0.01)
      print("the last lines", flush=True)
    pathlib.Path({str(tmp_path / "told")!r}).write_text(str(told))
  """
  ours, terminal = os.openpty()
  with subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(code)],
    **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
    close_fds=False,
    start_new_session=True,
  ) as program:
    os.close(terminal)
    assert os.read(ours, 100).startswith(b"ready")
    os.close(ours)
    assert program.wait(timeout=60) == 0
  assert (tmp_path / "told").read_text() == f"[{int(signal.SIGHUP)}]"


# --- Folders ------------------------------------------------------------------------


def test_folder_that_is_there_or_can_be_made_is_taken(tmp_path):
  for name in (".", "a", "a/b/c"):
    command_line.check_folder("out", str(tmp_path / name))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  "folder, said",
  [
    ("", "out is empty: name a folder."),
    ("gs://bucket/a", "gs://bucket/a cannot be the out: it must be a local folder."),
    ("{tmp}/file", "{tmp}/file is not a folder."),
    ("{tmp}/file/a/b", "{tmp}/file is not a folder."),
  ],
)
def test_folder_that_cannot_be_one_is_refused(tmp_path, folder, said):
  (tmp_path / "file").write_text("")
  with pytest.raises(InputError) as caught:
    command_line.check_folder("out", folder.format(tmp=tmp_path))
  assert said.format(tmp=tmp_path) in str(caught.value)


def test_place_that_is_only_read_need_not_be_written_to(monkeypatch, tmp_path):
  monkeypatch.setattr(os, "access", lambda path, mode: False)
  assert command_line.check_place("cache_dir", str(tmp_path / "a/b")) == str(tmp_path)
  with pytest.raises(InputError, match="is not a folder that can be written to"):
    command_line.check_folder("cache_dir", str(tmp_path / "a/b"))


def test_place_whose_name_is_no_text_is_refused(tmp_path):
  """TensorFlow's summaries, and JSON, do not take it, after the run has begun."""
  name = os.path.join(str(tmp_path), os.fsdecode(b"d\xe4"))
  for check in (command_line.check_folder, command_line.check_place):
    with pytest.raises(InputError, match=r"d\\xe4' cannot be the run_dir: .* UTF-8\.$"):
      check("run_dir", name)


@pytest.mark.parametrize(
  "file, said",
  [
    ("ram://a/b.csv", "ram://a/b.csv cannot be the --out: it must be a local file."),
    ("{tmp}/file/b.csv", "{tmp}/file cannot be the folder of --out"),
  ],
)
def test_file_that_cannot_be_written_is_refused(tmp_path, file, said):
  (tmp_path / "file").write_text("")
  command_line.check_folder_of("--out", str(tmp_path / "a" / "b.csv"))
  with pytest.raises(InputError) as caught:
    command_line.check_folder_of("--out", file.format(tmp=tmp_path))
  assert said.format(tmp=tmp_path) in str(caught.value)


def test_what_is_imported_is_not_looked_through_for_garbage():
  """Neither in imports, nor while the program runs, nor at its end."""
  code = (
    "import atexit, gc; print(gc.isenabled(), gc.get_freeze_count() > 10_000); "
    "atexit.register(lambda: print(len(gc.get_objects()) < 1000))"
  )
  done = _run(code)
  assert (done.returncode, done.stdout) == (0, "started\nTrue True\nTrue\n"), done.stderr
