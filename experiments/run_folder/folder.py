"""A folder of results that belongs to one set of settings, and to one process at a time.

Its config.json is the manifest: what the results depend on, each part under a heading of
its own, and the list of the sessions that made them. Whoever goes on with the folder is
compared with it first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional

from experiments.run_folder import provenance
from tff_algos import durable_files
from tff_algos.errors import InputError, UnsupportedComputationError, WorkerLostError

CONFIG = "config.json"
#: The folder of a run's checkpoints in its own.
CHECKPOINTS = "checkpoints"
_SESSIONS = "sessions"
# Older folders have one session, which is not in a list, and the model's size by itself.
_OF_A_SESSION = ("command", "versions", "machine", "git_commit")
_OLDER = (*_OF_A_SESSION, "num_weights")

Manifest = dict[str, Any]

# With what a runtime works; another one has its own.
OF_A_RUNTIME = frozenset(
  ("threads", "devices", "workers", "scheduler", "tls_ca_file", "tls_cert", "tls_key")
)

#: Where a manifest has the digests of a user's own modules, by name.
OWN_CODE = ("algorithm", "task")

#: What of a manifest may differ where a run is resumed: it does not change the numbers;
#: and hyper-parameters are compared as they are in the end, with all defaults.
FREE_SETTINGS = frozenset(
  f"flags.{name}"
  for name in (
    *("rounds", "run_dir", "data_dir", "cache_dir", "checkpoint_every"),
    *("runtime", *OF_A_RUNTIME),
    *("target_accuracy", "stop_at", "patience", "hparams", "tracker"),
  )
)

# What a folder that does not name it was made with: an older version wrote it.
_BEFORE: Mapping[str, Mapping[str, Any]] = {
  "flags": {
    **dict.fromkeys(("aggregator", "norm_limit", "learning_rate_schedule")),
    **dict.fromkeys(("client_duration", "round_deadline", "clients_per_part")),
    **dict.fromkeys(("held_out_clients", "eval_clients_every", "personalize_steps"), 0),
    **dict.fromkeys(("dropout", "loss_epsilon"), 0.0),
    "mixed_precision": False,
  },
  "hparams": {"server_dual": "mean"},
}


class RunFolder:
  """One folder, whether or not it is there yet.

  Attributes:
    path: The folder.
    flag: What a user names another one by.
  """

  def __init__(self, path: str, *, flag: str = "--run_dir"):
    """Names the folder.

    Args:
      path: The folder.
      flag: What a user names another one by.
    """
    self.path, self.flag = os.path.expanduser(path), flag

  def file(self, name: str) -> str:
    """The path of a file in it."""
    return os.path.join(self.path, name)

  def read(self) -> Optional[Manifest]:
    """What config.json holds; None for a folder that is new or empty.

    Raises:
      InputError: The folder holds something else.
    """
    if not os.path.exists(self.file(CONFIG)):
      # One that was killed before it had a config.json holds nothing yet.
      begun = {CONFIG + durable_files.UNFINISHED}
      if os.path.isdir(self.path) and {*os.listdir(self.path)} - begun:
        raise InputError(
          f"{self.path} is not empty and holds no results of this program: choose "
          f"another {self.flag}."
        )
      return None
    return read_manifest(self.path, f"choose another {self.flag}")

  def check_begun_with(
    self, own: str, settings: Mapping[str, Any], *, heading: str = "settings"
  ) -> None:
    """Looks, before anything that takes long, whether to go on with the folder.

    Args:
      own: A setting that no other program has.
      settings: Those of the heading that are known already.
      heading: What the program has its settings under.

    Raises:
      InputError: The folder holds something else: of another program, whose headings
        `check` would not compare, or of other settings.
    """
    held = self.read()
    if held is None:
      return
    if not isinstance(held.get(heading), dict) or own not in held[heading]:
      raise InputError(
        f"{self.path} holds results of another program: choose another {self.flag}."
      )
    self.check({heading: settings})

  def check(self, manifest: Mapping[str, Any], *, free: Collection[str] = ()) -> bool:
    """Whether the folder was begun with these very settings.

    Args:
      manifest: Headings to settings; what the folder does not have of them, because an
        older version wrote it, is not compared, unless that can have been one thing only.
      free: Settings, as heading.name, that may differ.

    Raises:
      InputError: It was begun with others; the message has their names and both values.
    """
    held = self.read()
    if held is None:
      return False
    found = differences(held, manifest, free)
    files = [v for heading in OWN_CODE for v in manifest.get(heading, {})]
    edited = [name for name, *_ in found if name in files]
    found = [each for each in found if each[0] not in edited]
    what = [f"{name}={old!r}, not {new!r}" for name, old, new in found[:4]]
    if len(found) > 4:
      what.append(f"and {len(found) - 4} more")
    advice = "go on with the settings that it was begun with"
    if edited:  # A digest is nothing that one could give.
      what.append(f"another version of {', '.join(edited)}")
      advice = "put that back as it was"
    if what:
      raise InputError(
        f"{self.path} holds results with {'; '.join(what)}: {advice}, or choose another "
        f"{self.flag}."
      )
    return True

  def check_rounds(self, done: int, rounds: int) -> None:
    """Raises `InputError` if fewer rounds are asked for than were done."""
    if rounds < done:
      raise InputError(
        f"{self.path} has {done} rounds already: ask for as many or more by --rounds, "
        f"not {rounds}."
      )

  def alone(self) -> contextlib.AbstractContextManager[None]:
    """`durable_files.alone` of the folder."""
    return durable_files.alone(self.path, self.flag)

  def begin(self, manifest: Mapping[str, Any]) -> None:
    """Writes the settings and adds a session; earlier ones and other headings stay.

    Says on standard error what of the software is not as it was in the last session.

    Args:
      manifest: Headings to settings.
    """
    held = self.read() or {}
    earlier = sessions_of(held)
    session = provenance.session()
    changed = _changed_software(earlier[-1], session) if earlier else []
    if changed:
      print(
        f"{self.path} was made with {', '.join(changed)}: its numbers may differ from "
        "those of an unbroken run.",
        file=sys.stderr,
      )
    kept = {k: v for k, v in held.items() if k not in (*_OLDER, _SESSIONS)}
    self._write({**kept, **manifest, _SESSIONS: [*earlier, session]})

  @contextlib.contextmanager
  def begun(self, manifest: Mapping[str, Any], files: Sequence[str]) -> Iterator[None]:
    """`begin` of a new folder, emptied where no round can begin with what is given.

    What others have put there stays, and so does a folder with the log of a worker that
    does not start, as that is read next.

    Args:
      manifest: Headings to settings.
      files: What else may be written before the first round, but for checkpoints.
    """
    path = os.path.abspath(self.path)  # Whatever the process does to its own folder.
    self.begin(manifest)
    written = self.read()
    try:
      yield
    except (InputError, UnsupportedComputationError, WorkerLostError) as error:
      if _held(path) != written:  # A session with a round has that noted there.
        raise
      if isinstance(error, WorkerLostError) and os.listdir(path) != [CONFIG]:
        raise
      with contextlib.suppress(OSError):  # The mistake is what is to be said.
        for name in (*files, CHECKPOINTS, CONFIG):
          place = os.path.join(path, name)
          if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
          elif os.path.lexists(place):
            os.remove(place)
      raise

  def note(self, **facts: Any) -> None:
    """Adds facts to the session that goes on, such as its first round."""
    held = self.read() or {}
    held[_SESSIONS][-1].update(facts)
    self._write(held)

  def _write(self, manifest: Manifest) -> None:
    from tff_algos.simulation import records  # Which imports Matplotlib.

    records.write_json(self.file(CONFIG), manifest)


def read_manifest(path: str, advice: str) -> Manifest:
  """What the config.json of a folder holds.

  Args:
    path: The folder.
    advice: The end of the sentence where it cannot be read.

  Raises:
    InputError: It is not there, or not of this program.
  """
  try:
    with open(os.path.join(path, CONFIG), encoding="utf-8") as f:
      content = dict(json.load(f))
    for heading in ("flags", "hparams", "data"):
      if not isinstance(content.get(heading, {}), dict):
        raise TypeError
    for session in content.get(_SESSIONS, []):
      command, versions = session.get("command") or [], session.get("versions") or {}
      if not isinstance(command, list) or not isinstance(versions, dict):
        raise TypeError
  except (ValueError, TypeError, AttributeError) as error:
    raise InputError(
      f"{path} holds a {CONFIG} that is not of this program: {advice}."
    ) from error
  except OSError as error:
    raise InputError(
      f"{path or 'The empty name'} is no folder of a run: {error.strerror}, {CONFIG}."
    ) from error
  return content


def _held(path: str) -> Optional[Manifest]:
  """What the config.json of a folder holds, None where it cannot be read."""
  try:
    return read_manifest(path, "")
  except InputError:
    return None


def sessions_of(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
  """The sessions, also of a manifest from before there was a list of them."""
  if _SESSIONS in manifest or not manifest:
    return list(manifest.get(_SESSIONS, []))
  return [{name: manifest.get(name) for name in _OF_A_SESSION}]


def differences(
  held: Mapping[str, Any], now: Mapping[str, Any], free: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
  """Names, old and new values of the settings that differ.

  Args:
    held: Headings to settings, as they were.
    now: As they are; only headings of both are compared.
    free: Names that may differ, as heading.name.
  """
  found = []
  for heading, settings in _as_held(now).items():
    before = held.get(heading)
    if not isinstance(settings, dict) or not isinstance(before, dict):
      continue
    before = completed(heading, before)
    for name, value in settings.items():
      old = before.get(name, value)
      if f"{heading}.{name}" not in free and old != value:
        found += _narrowed(name, old, value)
  return found


def completed(heading: str, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Settings under a heading with those that an older version did not write."""
  return {**_BEFORE.get(heading, {}), **settings}


def _as_held(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """As config.json has it: lists of tuples, Python's numbers of NumPy's."""
  held: dict[str, Any] = json.loads(
    json.dumps(dict(manifest), default=lambda v: v.item())
  )
  return held


def _narrowed(name: str, before: Any, value: Any) -> list[tuple[str, Any, Any]]:
  """A difference, or of two lists or mappings of the same size those of their parts."""
  if isinstance(before, list) and isinstance(value, list) and len(before) == len(value):
    pairs = [(f"{name}[{k}]", *pair) for k, pair in enumerate(zip(before, value))]
  elif isinstance(before, dict) and isinstance(value, dict):
    names = dict.fromkeys([*before, *value])
    pairs = [(f"{name}.{k}", before.get(k), value.get(k)) for k in names]
  else:
    return [(name, before, value)]
  return [d for key, old, new in pairs if old != new for d in _narrowed(key, old, new)]


def _changed_software(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  old, new = dict(before.get("versions") or {}), dict(now["versions"])
  old["commit"], new["commit"] = before.get("git_commit"), now["git_commit"]
  return [
    f"{name} {old[name]} (now {new[name]})"
    for name in new
    if old.get(name) and new[name] != old[name]
  ]
