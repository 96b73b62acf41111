"""Attacks many pictures and algorithms by gradient inversion; writes their folder."""

from __future__ import annotations

import csv
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from experiments import command_line
from experiments.attacks import inversion_report
from experiments.attacks.lies import check_names
from experiments.config import make_hparams
from experiments.preparation import RunWeights, check_model, newest_weights
from experiments.run_folder import fingerprints
from experiments.run_folder.folder import RunFolder, read_manifest
from tasks import registry as tasks_registry
from tff_algos import client_arrays, durable_files
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.client_data import Examples
from tff_algos.errors import InputError
from tff_algos.models import functional
from tff_algos.privacy import gradient_inversion
from tff_algos.privacy.gradient_inversion import InversionHparams, Inverted
from tff_algos.runtimes import in_process
from tff_algos.runtimes import runtime as runtimes
from tff_algos.simulation import seeds

_ROWS = "inversion.csv"
_COLUMNS = ("algorithm", "example", "label", "psnr", "ssim", "objective", "seconds")


class Request(NamedTuple):
  """What the flags ask for.

  Attributes:
    task: A name of `tasks.registry`.
    algorithms: Names of `algorithms.registry`.
    num_examples: How many pictures.
    seed: Of weights, pictures, noise and starts.
    run: The folder of a run whose model is attacked; None: the initial weights.
    data_dir: Where the data set is; None: where its loader looks by itself.
    cache_dir: Where prepared client data are kept.
    out: Where the results go.
    hparams: Algorithm to its hyper-parameters that differ from the task's and its own
      defaults.
    search: How the attack searches.
  """

  task: str
  algorithms: Sequence[str]
  num_examples: int
  seed: int
  run: Optional[str]
  data_dir: Optional[str]
  cache_dir: str
  out: str
  hparams: Mapping[str, Mapping[str, Any]]
  search: InversionHparams


class Victim(NamedTuple):
  """An algorithm under attack.

  Attributes:
    hparams: Its hyper-parameters.
    send: `(Examples, seed) -> Weights`, compiled: what a client uploads.
    invert: The attack.
  """

  hparams: Any
  send: Callable[..., tuple]
  invert: Callable[..., Inverted]


class Prepared(NamedTuple):
  """Everything checked, and nothing written.

  Attributes:
    note: What to say beside the numbers, "" for nothing.
    made_of: Data, model and own code, as `fingerprints` has them.
    rounds: Of the attacked model's training.
    examples: Places of the pictures in the test set.
    x: The pictures, float32 (n, H, W, C) in 0..1.
    y: Their labels, int32 (n,).
    victims: By algorithm.
  """

  note: str
  made_of: dict[str, Any]
  rounds: int
  examples: np.ndarray
  x: np.ndarray
  y: np.ndarray
  victims: dict[str, Victim]


def prepare(request: Request) -> Prepared:
  """Loads the task and makes the attacks; a TFF context must be installed.

  Raises:
    InputError: Something cannot be attacked; the message says what and why.
  """
  if not request.algorithms:
    raise InputError("--algorithms is empty: name at least one.")
  task = tasks_registry.get(request.task)
  rows = [algorithms_registry.get(name) for name in request.algorithms]
  check_names(rows)
  given = [request.hparams.get(name, {}) for name in request.algorithms]
  all_hparams = [_hparams(row, task, own) for row, own in zip(rows, given)]
  manifest = {}
  if request.run is not None:
    manifest = _manifest_of(request.run, request.task)
  loaded = tasks_registry.load(
    task,
    data_dir=request.data_dir,
    cache_dir=os.path.expanduser(request.cache_dir),
    partition=task.partition,
    num_clients=task.num_clients,
    partition_seed=0,
    model_seed=request.seed,
    # So the clients of the run train.
    loss_epsilon=manifest.get("flags", {}).get("loss_epsilon", 0.0),
    mixed_precision=manifest.get("flags", {}).get("mixed_precision", False),
  )
  if loaded.test_x.dtype != np.uint8:
    raise InputError(f"{request.task} is no task of pictures: choose another.")
  if not 1 <= request.num_examples <= len(loaded.test_y):
    raise InputError(
      f"num_examples must be in 1..{len(loaded.test_y)}, the examples of the test "
      f"set; found {request.num_examples}."
    )
  model = loaded.model
  weights, rounds = RunWeights(model.initial_weights, 0)
  if request.run is not None:
    check_model(request.run, manifest, loaded)
    weights, rounds = newest_weights(request.run, manifest, model)
  # As all of them, so that more pictures are those of before and others.
  order = seeds.generator(request.seed, "inverted pictures").permutation(
    len(loaded.test_y)
  )
  examples = order[: request.num_examples]
  x, y = loaded.test_x[examples].astype(np.float32) / 255, loaded.test_y[examples]
  spec = model.example_spec
  as_float = tf.TensorSpec(spec.x.shape, tf.float32)
  attacked = dataclasses.replace(
    model,
    example_spec=spec._replace(x=as_float),
    augment=None,  # What is found is compared with the pictures as they are.
    preprocess=_of_brightness(model.preprocess, loaded.test_x[examples], x),
  )
  population = dict(
    num_clients=len(loaded.clients),
    num_examples=int(loaded.clients.num_examples.sum()),
  )

  def upload_of(row, hparams):
    process = row.build(attacked, hparams, **population)
    if not process.composed_of:
      raise InputError(
        f"What a client of {row.name} sends is not known, as compose_process has not "
        "made its process: leave it out."
      )
    state = process.initialize()
    given = process.get_model_weights(state)._replace(trainable=list(weights))
    state = process.set_model_weights(state, given)
    upload = gradient_inversion.upload_of(
      process, state.variables, process.initialize_client()
    )
    one = Examples(tf.TensorSpec([1, *spec.x.shape]), tf.TensorSpec([1], tf.int32))
    seed = tf.TensorSpec([2], tf.int32)
    send = tf.function(upload, autograph=False).get_concrete_function(one, seed)
    return process.privacy is not None, upload, send

  victims = {}
  for row, hparams in zip(rows, all_hparams):
    is_private, upload, send = upload_of(row, hparams)
    if is_private:
      without_noise = dataclasses.replace(hparams, noise_multiplier=0.0)
      _, upload, _ = upload_of(row, without_noise)
    invert = gradient_inversion.build_inversion(upload, x.shape[1:], request.search)
    victims[row.name] = Victim(hparams, send, invert)
  made_of = fingerprints.of_all(loaded, request.task, request.algorithms)
  if request.run is not None:  # Another model may be there under the same name.
    arrays = map(np.asarray, weights)
    made_of["attacked"] = {"weights": client_arrays.fingerprint(*arrays)}
  return Prepared(loaded.note, made_of, rounds, examples, x, y, victims)


def _of_brightness(
  preprocess: Callable[..., tf.Tensor], stored: np.ndarray, x: np.ndarray
) -> Callable[..., tf.Tensor]:
  """The task's preprocess, of pictures in 0..1, which is what is searched for."""
  if preprocess is functional.scale_pictures:
    return preprocess  # It leaves them as they are.

  def made(pictures: tf.Tensor) -> tf.Tensor:
    return preprocess(255 * pictures)

  pictures = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch(pictures)
    found = made(pictures)
  is_same = np.allclose(found, preprocess(stored), rtol=1e-5, atol=1e-5)
  if not is_same or tape.gradient(found, pictures) is None:
    raise InputError(
      "The task's preprocess must be a differentiable function of the pixels 0..255, of "
      "floats too, for the attack goes back through it: write it without casts to "
      "integers, or attack a task without it."
    )
  return made


def _manifest_of(run: str, task: str) -> dict[str, Any]:
  manifest = read_manifest(run, "give a run's folder")
  found = manifest.get("flags", {}).get("task")
  if found != task:
    raise InputError(
      f"{run} holds a run of the task {found}, not of {task}: name its own task."
    )
  return manifest


def _hparams(row, task, given: Mapping[str, Any]):
  """The algorithm's, for one local step."""
  cls = row.hparams_class
  one_step = {k: 1 for k in ("epochs", "batch_size") if hasattr(cls, k)}
  for name in one_step.keys() & given.keys():
    raise InputError(f"{name} is 1 here, for one step on one picture: leave it out.")
  return make_hparams(row, task, {**given, **one_step})


def describe(request: Request, prepared: Prepared) -> dict[str, Any]:
  """What config.json holds; other settings, data or code are other results."""
  return {
    "settings": {
      "task": request.task,
      "seed": request.seed,
      "run": request.run,
      "rounds": prepared.rounds,
      **dataclasses.asdict(request.search),
    },
    "hparams": {k: dataclasses.asdict(v.hparams) for k, v in prepared.victims.items()},
    "note": prepared.note,
    **prepared.made_of,
  }


def read_done(folder: RunFolder, config: dict[str, Any]) -> list[dict[str, str]]:
  """The rows of results that the folder holds, of these settings; [] in a new one.

  The hyper-parameters and the code of algorithms which stand in its config.json alone are
  added to `config`.

  Raises:
    InputError: It holds something else.
  """
  if not folder.check(config):
    return []
  held = folder.read() or {}
  for heading in ("hparams", "algorithm"):
    if heading in config:
      config[heading] = {**held.get(heading, {}), **config[heading]}
  if not os.path.exists(folder.file(_ROWS)):
    return []
  try:
    with open(folder.file(_ROWS), encoding="utf-8", newline="") as f:
      rows = list(csv.DictReader(f))
    # The picture of a row is drawn again: a copy of the folder may lack it.
    return [row for row in rows if _has_pictures(folder.path, row)]
  except (KeyError, ValueError, TypeError) as error:
    raise InputError(
      f"{folder.path} holds a {_ROWS} that is not of this program: choose another --out."
    ) from error


def _has_pictures(out: str, row: Mapping[str, str]) -> bool:
  try:
    for what in ("original", row["algorithm"]):
      np.load(inversion_report.picture_path(out, what, int(row["example"])))
  except (OSError, ValueError, EOFError):
    return False
  return True


def attack(request: Request, prepared: Prepared, rows: list[dict[str, str]]) -> None:
  """Attacks what is not done, and writes each result as it comes."""
  done = {(row["algorithm"], int(row["example"])) for row in rows}
  todo = [
    (name, place)
    for place in range(len(prepared.examples))
    for name in prepared.victims
    if (name, prepared.examples[place]) not in done
  ]
  if done:
    print(f"{len(done)} results are there already, {len(todo)} are to be made")
  for count, (name, place) in enumerate(todo, start=1):
    example, y = int(prepared.examples[place]), prepared.y[place : place + 1]
    original, victim = prepared.x[place], prepared.victims[name]
    seed = tf.constant(seeds.client_seed(request.seed, 0, example))
    start = time.monotonic()
    sent = victim.send(Examples(tf.constant(original[None]), tf.constant(y)), seed)
    found = victim.invert(sent, y[0], seed)
    row = dict(
      algorithm=name,
      example=example,
      label=int(y[0]),
      psnr=gradient_inversion.psnr(found.picture, original),
      ssim=gradient_inversion.ssim(found.picture, original),
      objective=found.objective,
      seconds=time.monotonic() - start,
    )
    for what, picture in (("original", original), (name, found.picture)):
      with durable_files.new_file(
        inversion_report.picture_path(request.out, what, example)
      ) as file:
        np.save(file, picture)
    rows.append({k: str(v) for k, v in row.items()})
    _write_rows(request.out, rows)
    print(
      f"{count}/{len(todo)} {name}, picture {example}: PSNR {row['psnr']:.2f} dB, SSIM "
      f"{row['ssim']:.3f}, {row['seconds']:.1f} s",
      flush=True,
    )


def _write_rows(out: str, rows: Sequence[Mapping[str, str]]) -> None:
  path = os.path.join(out, _ROWS)
  with durable_files.new_file(path, "w", newline="") as f:
    writer = csv.DictWriter(f, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def run(request: Request) -> None:
  """Attacks, and writes the folder.

  Raises:
    InputError: The request cannot be fulfilled; nothing was written.
  """
  folder = RunFolder(request.out, flag="--out")
  command_line.check_folder("out", folder.path)
  command_line.check_folder("cache_dir", os.path.expanduser(request.cache_dir))
  known = dict(task=request.task, seed=request.seed, run=request.run)
  folder.check_begun_with("distance", {**known, **dataclasses.asdict(request.search)})
  in_process.prepare()
  with runtimes.create_runtime("in_process"):
    prepared = prepare(request)
  config = describe(request, prepared)
  rows = read_done(folder, config)
  with folder.alone():
    folder.begin(config)
    attack(request, prepared, rows)
    _show(request, prepared, rows)


def _show(request: Request, prepared: Prepared, rows: list[dict[str, str]]) -> None:
  """Writes the table and the picture, and prints the table."""
  wanted = set(prepared.examples)
  shown = [row for row in rows if int(row["example"]) in wanted]
  note = f" ({prepared.note})" if prepared.note else ""
  search, names = request.search, list(prepared.victims)
  what = (
    f"{request.task}{note}, the model after {prepared.rounds} rounds: "
    f"{search.iterations:,} iterations, {search.distance}, TV weight "
    f"{search.tv_weight:g}, seed {request.seed}"
  )
  text = inversion_report.table(shown, names)
  inversion_report.draw(request.out, shown, names, what.replace(": ", "\n", 1))
  # Last, as fedreg_tables.py takes it for the sign that all is there.
  with durable_files.new_file(os.path.join(request.out, "inversion.md"), "w") as f:
    f.write(f"Pictures recovered from one local step on one picture; {what}.\n\n{text}\n")
  print(f"{text}\nresults in {request.out}")
