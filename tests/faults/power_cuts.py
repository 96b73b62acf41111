"""Cuts the power of a run's disk at random moments, and goes on with what is left.

  uv run python tests/faults/power_cuts.py [--every=1] [--cuts=20] [--rounds=150]
    [--gap=SECONDS] [--seed=0] [--mount=OPTIONS] [--work=FOLDER]

A run writes to an ext4 file system in an image file. At a cut the image is copied without
being synced: what the system still holds in memory is not in the copy, as after a power
cut. The run stands still meanwhile, and the image is copied until two copies are the
same, so that each is of one moment. Then each copy is mounted, which replays its journal,
and the run in it is resumed: it must end with the numbers of the run that was not cut, a
finished one must be whole, and at most the rounds since the last checkpoint may be lost.

Prints a row of a table for each cut. Exit status: 0 if nothing was lost, 1 if something
was, 2 where there may be no loop devices. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import filecmp
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple, Optional

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(_ROOT / "tests"))

import programs  # noqa: E402

_MEGABYTES = 64
# After the run has ended; ext4 writes out what was not synced after up to 30 s.
_SECONDS_AFTER = 12.0
# Starting takes about this long, until something is written.
_SECONDS_BEFORE = 8.0
_TIMES = ("seconds", "evaluation_seconds")


class Cut(NamedTuple):
  """A copy of the image.

  Attributes:
    image: The file.
    when: In words.
    rounds: The rounds done then.
    checkpoint: That of the newest checkpoint then; 0: there was none.
    is_over: Whether the run had ended.
  """

  image: pathlib.Path
  when: str
  rounds: int
  checkpoint: int
  is_over: bool


def _call(*command: object) -> None:
  subprocess.run([str(word) for word in command], check=True, capture_output=True)


@contextlib.contextmanager
def _mounted(image: pathlib.Path, options: str = "") -> Iterator[pathlib.Path]:
  """The file system in an image; its journal is replayed."""
  folder = image.parent / f"{image.name}.mounted"
  folder.mkdir()
  _call("mount", "-o", ",".join(filter(None, ("loop", options))), image, folder)
  try:
    yield folder
  finally:
    _call("umount", folder)
    folder.rmdir()


def _may_mount(folder: pathlib.Path) -> Optional[str]:
  """Why no image can be mounted; None: one can."""
  image = folder / "probe"
  try:
    _make_image(image)
    with _mounted(image):
      return None
  except FileNotFoundError as error:
    return f"there is no {error.filename}"
  except subprocess.CalledProcessError as error:
    return error.stderr.decode().strip().splitlines()[0]


def _make_image(image: pathlib.Path) -> None:
  with open(image, "wb") as file:
    file.truncate(_MEGABYTES << 20)
  _call("mkfs.ext4", "-q", image)


def _flags(folder: pathlib.Path, rounds: int, every: int, *flags: str) -> list[str]:
  return [
    *("--quiet", "--algorithm=scaffold", "--task=digits_cnn", f"--rounds={rounds}"),
    *(f"--run_dir={folder}/run", f"--cache_dir={folder}/cache"),
    *(f"--checkpoint_every={every}", *flags),
  ]


def _newest(run: pathlib.Path) -> int:
  names = [path.name for path in (run / "checkpoints").glob("round_*")]
  return max((int(n[6:]) for n in names if re.fullmatch(r"round_\d{7}", n)), default=0)


def _metrics(run: pathlib.Path) -> list[dict[str, str]]:
  """The rounds of metrics.csv, without what the clock says."""
  path = run / "metrics.csv"
  if not path.exists():
    return []
  with open(path, newline="") as file:
    rows = list(csv.DictReader(file))
  return [{k: v for k, v in row.items() if k not in _TIMES} for row in rows]


def _copy(image: pathlib.Path, target: pathlib.Path) -> None:
  """Copies the image as it is at one moment."""
  again = target.with_suffix(".again")
  _call("cp", "--sparse=always", image, target)
  while True:
    _call("cp", "--sparse=always", image, again)
    if filecmp.cmp(target, again, shallow=False):
      again.unlink()
      return
    again.replace(target)


@contextlib.contextmanager
def _running(flags: list[str], work: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
  """A run, which does not outlive the block."""
  with open(work / "run.log", "wb") as log:
    run = subprocess.Popen(
      [sys.executable, str(_ROOT / "binaries/train.py"), *flags],
      stdout=log,
      stderr=log,
      cwd=work,
      start_new_session=True,
    )
  try:
    yield run
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def _run_and_cut(
  work: pathlib.Path, args: argparse.Namespace
) -> tuple[list[Cut], list[dict[str, str]]]:
  """Runs to the end and after; the cuts, and the rounds of the whole run."""
  draw = random.Random(args.seed)
  image = work / "disk"
  _make_image(image)
  cuts: list[Cut] = []
  with (
    _mounted(image, args.mount) as disk,
    _running(_flags(disk, args.rounds, args.every), work) as run,
  ):
    start, ended = time.monotonic(), 0.0
    wait = _SECONDS_BEFORE
    while not ended or time.monotonic() - ended < _SECONDS_AFTER:
      time.sleep(wait)
      now = time.monotonic()
      if run.poll() is None:
        os.killpg(run.pid, signal.SIGSTOP)
        when = f"{now - start:.1f} s after the start"
      else:
        ended = ended or now
        when = f"{now - ended:.1f} s after the end"
      rounds, newest = len(_metrics(disk / "run")), _newest(disk / "run")
      copy = work / f"cut_{len(cuts):02d}"
      _copy(image, copy)
      cuts.append(Cut(copy, when, rounds, newest, bool(ended)))
      if not ended:
        os.killpg(run.pid, signal.SIGCONT)
      wait = draw.expovariate(1 / (_SECONDS_AFTER / 3 if ended else args.gap))
    whole = _metrics(disk / "run")
  if run.returncode or len(whole) != args.rounds:
    raise RuntimeError((work / "run.log").read_text())
  return cuts, whole


class Outcome(NamedTuple):
  """What a cut left, and what became of it."""

  found: str
  lost: int
  cache: str
  is_right: bool
  said: str


def _go_on(
  cut: Cut,
  whole: list[dict[str, str]],
  args: argparse.Namespace,
  fork: programs.ForkServer,
) -> Outcome:
  """Mounts a copy and resumes the run in it."""
  with _mounted(cut.image) as disk:
    run, cache = disk / "run", disk / "cache"
    before = _newest(run)
    files = [path for path in disk.rglob("*") if path.is_file()]
    names = [str(path.relative_to(disk)) for path in files]
    empty = [n for n, path in zip(names, files) if not path.stat().st_size]
    unfinished = [n for n in names if "unfinished" in n]
    had_cache = any(cache.glob("clients/digits_cnn*/clients.json"))
    is_whole = (run / "summary.json").exists() and _metrics(run) == whole
    flags = _flags(disk, args.rounds, args.every, "--resume")
    done = fork("train.py", *flags, cwd=cut.image.parent)
    is_right = done.status == 0 and _metrics(run) == whole
    left = [str(p.relative_to(disk)) for p in disk.rglob("*unfinished*")]
  damaged = re.findall(r"round_(\d+)[^ ]* is damaged", done.err)
  from_round = before if not damaged else "an older one"
  found = f"checkpoint {from_round}" if before else "no checkpoint"
  if cut.is_over:
    found += ", finished run whole" if is_whole else ", FINISHED RUN NOT WHOLE"
    is_right = is_right and is_whole and before == cut.checkpoint
  anew = "written anew" in done.err
  state = "damaged, made anew" if anew else "whole" if had_cache else "none yet"
  notes = []
  if done.status:
    notes.append(f"status {done.status}")
  if done.err.strip():
    notes.append(done.err.strip().splitlines()[-1].replace(str(disk), "DISK"))
  for what, paths in (("empty", empty), ("unfinished", unfinished), ("left", left)):
    if paths:
      notes.append(f"{what}: {', '.join(sorted(paths)[:4])} ({len(paths)})")
  # Whole, or none where there was none; and no more lost than the newest checkpoint then.
  is_right = is_right and not damaged and before >= cut.checkpoint - args.every
  return Outcome(found, cut.rounds - before, state, is_right, "; ".join(notes))


def _options() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--every", type=int, default=1, help="checkpoint_every of the run")
  parser.add_argument("--rounds", type=int, default=150, help="of the run")
  parser.add_argument("--cuts", type=int, default=20, help="that are gone on with")
  parser.add_argument("--gap", type=float, default=1.5, help="mean seconds between cuts")
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  parser.add_argument("--mount", default="", help="mount options, such as commit=1")
  parser.add_argument("--work", help="where the images are; default: the system's")
  return parser.parse_args()


def main() -> int:
  """Cuts, goes on, and says what was lost."""
  args = _options()
  work = pathlib.Path(tempfile.mkdtemp(prefix="power_cuts_", dir=args.work))
  with contextlib.ExitStack() as stack:
    stack.callback(shutil.rmtree, work, ignore_errors=True)
    reason = _may_mount(work)
    if reason is not None:
      print(
        f"No image can be mounted here ({reason}): run this as root.", file=sys.stderr
      )
      return 2
    cuts, whole = _run_and_cut(work, args)
    fork = stack.enter_context(contextlib.closing(programs.ForkServer(work)))
    print("| cut | found | rounds lost | client files | ends the same | said |")
    print("|---|---|---|---|---|---|")
    wrong = 0
    chosen = random.Random(args.seed).sample(range(len(cuts)), min(args.cuts, len(cuts)))
    for cut in [cuts[place] for place in sorted(chosen)]:
      outcome = _go_on(cut, whole, args, fork)
      wrong += not outcome.is_right
      right = "yes" if outcome.is_right else "NO"
      print(
        f"| {cut.when}, {cut.rounds} rounds | {outcome.found} | {outcome.lost} | "
        f"{outcome.cache} | {right} | {outcome.said} |",
        flush=True,
      )
    print(f"\n{len(chosen)} cuts, {wrong} of which lost something", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
  sys.exit(main())
