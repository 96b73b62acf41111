"""What train.py says of mistakes: one sentence, status 2, and nothing is written."""

from __future__ import annotations

import fcntl
import os
import re

import pytest
from training import SMALL, Process, assert_refused, place, tree

_MISTAKES = {
  "unknown algorithm": (["--algorithm=fedavgg"], ["fedavgg", "did you mean 'fedavg'"]),
  "no algorithm": (["--algorithm="], ["''"]),
  "unknown task": (["--task=digit_cnn"], ["digit_cnn", "did you mean 'digits_cnn'"]),
  "unknown flag": (["--runds=3"], ["runds", "rounds"]),
  "no flag": (["digits_cnn"], ["digits_cnn", "--flag=value"]),
  "flag of another algorithm": (
    ["--scaffold_option=I"],
    ["--scaffold_option", "scaffold", "fedavg"],
  ),
  "flag of another algorithm whose name begins alike": (
    ["--algorithm=fedreg", "--fedreg_mg_gamma=0.3"],
    ["--fedreg_mg_gamma is a flag of fedreg_mg"],
  ),
  "hyper-parameter in the place of its flag": (
    ["--algorithm=fedprox", "--mu=0.1"],
    ["no flag --mu: fedprox's is --fedprox_mu"],
  ),
  "flag that the last of two algorithms has not": (
    ["--algorithm=fedavg", "--algorithm=fedsgd", "--epochs=2"],
    ["fedsgd has no hyper-parameter epochs"],
  ),
  "flag the algorithm has not": (
    ["--algorithm=fedsgd", "--epochs=2"],
    ["fedsgd", "epochs"],
  ),
  "hyper-parameter it has not": (["--fedavg_mu=1"], ["fedavg_mu"]),
  "word for a number": (["--rounds=ten"], ["rounds", "ten"]),
  "fraction for a count": (["--rounds=1.5"], ["rounds", "1.5"]),
  "word for a rate": (["--learning_rate=fast"], ["learning_rate", "fast"]),
  "word for a batch size": (["--batch_size=all"], ["batch_size", "all", "inf"]),
  "no rounds": (["--rounds=0"], ["rounds", "at least 1"]),
  "negative rounds": (["--rounds=-1"], ["rounds", "-1"]),
  "no clients": (["--num_clients=0"], ["num_clients"]),
  "empty cohort": (["--clients_per_round=0"], ["clients_per_round"]),
  "more clients a round than clients": (
    ["--num_clients=5", "--clients_per_round=6"],
    ["clients_per_round is 6", "5 clients"],
  ),
  "more clients a round than the task has": (
    ["--clients_per_round=21"],
    ["clients_per_round is 21", "20 clients"],
  ),
  "no epochs": (["--epochs=0"], ["epochs", ">= 1"]),
  "empty batch": (["--batch_size=0"], ["batch_size", ">= 1", "or inf"]),
  "negative batch": (["--batch_size=-3"], ["batch_size", "-3"]),
  "rate of zero": (["--learning_rate=0"], ["learning_rate", "> 0"]),
  "negative rate": (["--learning_rate=-0.1"], ["learning_rate", "-0.1"]),
  "rate that is not a number": (["--learning_rate=nan"], ["learning_rate", "nan"]),
  "infinite rate": (["--learning_rate=inf"], ["learning_rate", "inf"]),
  "server's rate of zero": (
    ["--fedavg_server_learning_rate=0"],
    ["server_learning_rate", "> 0"],
  ),
  "momentum of one": (["--momentum=1"], ["momentum", "0.999"]),
  "no such option": (
    ["--algorithm=scaffold", "--scaffold_option=III"],
    ["option", "I, II", "III"],
  ),
  "negative mu": (["--algorithm=fedgg", "--fedgg_mu=-1"], ["mu", ">= 0"]),
  "batch size beyond int32": (["--batch_size=10000000000"], ["batch_size"]),
  "epochs beyond int32": (["--epochs=1000000000000"], ["epochs"]),
  "negative seed": (["--seed=-1"], ["seed"]),
  "negative seed of the split": (["--partition_seed=-1"], ["partition_seed"]),
  "no evaluation": (["--eval_every=0"], ["eval_every"]),
  "negative interval": (["--checkpoint_every=-1"], ["checkpoint_every"]),
  "no threads": (["--threads=0"], ["threads"]),
  "no such device": (["--devices=CPU:0,GPU:7"], ["GPU:7", "CPU:0"]),
  "a device twice": (["--devices=cpu:0,CPU:0"], ["twice", "CPU:0"]),
  "no device": (["--devices="], ["device"]),
  "target above one": (["--target_accuracy=97"], ["target_accuracy", "97"]),
  "unknown runtime": (["--runtime=remote"], ["remote", "in_process, local_worker"]),
  "no workers": (["--runtime=dask", "--workers=0"], ["workers must be at least 1"]),
  "no address of a scheduler": (
    ["--runtime=dask", "--scheduler=trainer"],
    ["tls://host:8786", "'trainer'"],
  ),
  "a scheduler on a network without TLS": (
    ["--runtime=dask", "--scheduler=tcp://trainer:8786"],
    ["tcp://trainer:8786", "TLS", "docs/several_machines.md"],
  ),
  "workers of another runtime": (["--workers=2"], ["workers", "in_process", "dask"]),
  "threads of another runtime": (
    ["--runtime=local_worker", "--threads=2"],
    ["threads is for the runtime in_process", "local_worker"],
  ),
  "a certificate without its key": (
    [
      *("--runtime=dask", "--scheduler=tls://trainer:8786"),
      *("--tls_cert=a.pem", "--tls_ca_file=ca.pem"),
    ],
    ["tls_key is missing"],
  ),
  "certificates that are not there": (
    [
      *("--runtime=dask", "--scheduler=tls://trainer:8786"),
      *("--tls_cert=a.pem", "--tls_key=a.key", "--tls_ca_file=c.pem"),
    ],
    ["There is no file c.pem"],
  ),
  "unknown aggregator": (["--aggregator=medain"], ["medain", "median"]),
  "aggregator without its parameter": (["--aggregator=dp"], ["noise_multiplier"]),
  "aggregator out of range": (["--aggregator=trimmed_mean:share=0.5"], ["share", "0.5"]),
  "noise beyond what TFF adds": (
    ["--aggregator=dp:noise_multiplier=1", "--clients_per_round=10"],
    ["noise_multiplier", "below a tenth of clients_per_round, here 1;", "found 1"],
  ),
  "infinite noise": (["--aggregator=dp:noise_multiplier=inf"], ["found inf"]),
  "noise whose square is zero": (
    ["--aggregator=dp:noise_multiplier=1e-200"],
    ["noise_multiplier", "found 1e-200"],
  ),
  "aggregator of an algorithm that takes none": (
    ["--algorithm=twafl", "--aggregator=robust"],
    ["twafl takes no aggregator"],
  ),
  "norm limit of less than the median": (["--norm_limit=1"], ["norm_limit", "above 1"]),
  "parts of no clients": (["--clients_per_part=0"], ["clients_per_part", "at least 1"]),
  "parts where TFF adds up": (
    ["--clients_per_part=2", "--runtime=local_worker"],
    ["clients_per_part is not for local_worker"],
  ),
  "files for a task without any": (["--data_dir=."], ["digits_cnn reads no data_dir"]),
  "unknown split": (["--partition=dirichle"], ["dirichle", "dirichlet"]),
  "split without its parameter": (["--partition=dirichlet"], ["beta"]),
  "word in a split": (["--partition=dirichlet:beta=x"], ["beta"]),
  "split out of range": (["--partition=dirichlet:beta=0"], ["beta"]),
  "unknown parameter of a split": (["--partition=iid:beta=1"], ["beta", "iid"]),
  "clients that may be empty": (
    ["--partition=dirichlet:beta=0.5,min_size=0"],
    ["min_size", "at least 1"],
  ),
  "more clients than examples": (
    ["--partition=iid", "--num_clients=1438", "--clients_per_round=1"],
    ["1438 clients", "1437"],
  ),
  "no such module": (["--task=no_such_module:task"], ["no_such_module"]),
  "no such attribute": (["--task=own_tasks:nothing"], ["own_tasks:nothing"]),
  "task whose module ends the program": (
    ["--task=quits:task"],
    ["'quits:task' cannot be imported: SystemExit: no GPU here."],
  ),
  "loader's error without a number": (
    ["--task=own_tasks:damaged"],
    ["the task own: the archive's checksum is wrong."],
  ),
  "no task": (["--task=own_tasks:not_a_task"], ["tasks.registry.Task"]),
  "batch normalization": (["--task=own_tasks:batch_norm"], ["GroupNormalization"]),
  "nested batch normalization": (
    ["--task=own_tasks:nested_batch_norm"],
    ["GroupNormalization"],
  ),
  "labels outside the classes": (
    ["--task=own_tasks:labels_outside"],
    ["label 2", "2 classes"],
  ),
  "negative labels": (["--task=own_tasks:negative_labels"], ["label -1"]),
  "fewer outputs than classes": (["--task=own_tasks:few_outputs"], ["2 classes"]),
  "one output, and accuracy of classes": (
    ["--task=own_tasks:one_output_by_classes"],
    ["one number for an example", "metrics="],
  ),
  "model of other inputs": (["--task=own_tasks:wrong_shape"], ["5"]),
  "predictions of another rank": (["--task=own_tasks:not_flat"], ["shape"]),
  "model that is not built": (["--task=own_tasks:not_built"], ["not built"]),
  "task with an impossible default": (["--task=own_tasks:no_hparam"], ["epochs"]),
  "task named like a path": (
    ["--task=own_tasks:name_of_a_path"],
    ["'../../outside'", "without separators"],
  ),
  "task that is a path": (["--task=../../outside"], ["no task '../../outside'"]),
  "loop of more rounds than a list can have": (
    ["--algorithm=afl", f"--afl_rounds_in_loop={10**30}"],
    ["rounds_in_loop must be >= 1 and <= 1000", "found 1000"],
  ),
  "rounds beyond the names of checkpoints": (
    ["--rounds=10000000"],
    ["rounds must be at most 9,999,999; found 10000000."],
  ),
  "steps beyond int32": (
    ["--eval_clients_every=1", f"--personalize_steps={10**30}"],
    ["personalize_steps must be at most 1,000,000"],
  ),
  "task of a path": (["--task=../../outside:task"], ["cannot be imported"]),
  "task of a module that is a path": (["--task=/outside:task"], ["cannot be imported"]),
  "task without a module": (["--task=:"], ["':'", "cannot be imported"]),
  "cache that is not local": (["--cache_dir=gs://a/b"], ["gs://a/b", "local folder"]),
  "data that are not local": (
    ["--task=mnist_linear", "--data_dir=ram://a/b"],
    ["ram://a/b cannot be the data_dir", "local folder"],
  ),
  "results that are not local": (
    ["--run_dir=ram://a/b"],
    ["ram://a/b cannot be the run_dir", "local folder"],
  ),
  "missing file of flags": (["--flagfile=no_such_file"], ["no_such_file"]),
}


@pytest.mark.parametrize("kind", _MISTAKES)
def test_mistake_is_one_sentence_and_nothing_is_written(run_forked, tmp_path, kind):
  flags, words = _MISTAKES[kind]
  cwd = tmp_path / "cwd"
  cwd.mkdir()
  _, where = place(tmp_path)
  done = run_forked(*where, *flags, cwd=cwd)
  assert_refused(done, *words)
  assert tree(tmp_path) == {"cwd"}


_MISFITS = {
  "no layer of that name": (
    ["--algorithm=twafl", "--twafl_deep_from=absent"],
    ["deep_from is 'absent'", "the names are"],
  ),
  "a model without shallow layers": (
    ["--algorithm=twafl", "--twafl_deep_from=conv2d"],
    ["shallow and deep"],
  ),
  "model without soft targets": (
    ["--algorithm=fedreg", "--task=own_tasks:own_loss"],
    ["give the model soft_targets"],
  ),
}


@pytest.mark.parametrize("kind", _MISFITS)
def test_algorithm_that_does_not_fit_the_model_is_refused(run_forked, tmp_path, kind):
  """By then the client files are in the cache, where another run finds them."""
  flags, words = _MISFITS[kind]
  run_dir, where = place(tmp_path)
  assert_refused(run_forked(*where, *flags, cwd=tmp_path), *words)
  assert not run_dir.exists()


@pytest.mark.parametrize("task", ["mnist_2nn", "cifar10_lenet"])
def test_missing_data_are_named_and_how_to_get_them(run_forked, tmp_path, task):
  cwd = tmp_path / "cwd"
  cwd.mkdir()
  _, where = place(tmp_path)
  flags = [f"--task={task}", f"--data_dir={tmp_path / 'nothing'}"]
  done = run_forked(*where, *flags, cwd=cwd)
  assert_refused(done, "binaries/import_data.py", str(tmp_path / "nothing"))
  assert tree(tmp_path) == {"cwd"}


def test_archives_where_prepared_data_should_be_are_found(run_forked, tmp_path):
  """As by `--data_dir` of the folder that a browser downloaded them to."""
  folder = tmp_path / "mine"
  folder.mkdir()
  for part in ("train-images-idx3", "train-labels-idx1"):
    (folder / f"{part}-ubyte.gz").touch()
  flags = ["--task=mnist_2nn", f"--data_dir={folder}"]
  run_dir, where = place(tmp_path)
  assert_refused(run_forked(*where, *flags, cwd=tmp_path), "--from=DIR")
  for part in ("t10k-images-idx3", "t10k-labels-idx1"):
    (folder / f"{part}-ubyte.gz").touch()
  assert_refused(run_forked(*where, *flags, cwd=tmp_path), f"--from={folder}")
  assert not run_dir.exists()


@pytest.mark.parametrize(
  "run_dir", ["notes", "notes/file.txt", "notes/file.txt/below", ""]
)
def test_folder_that_cannot_be_the_runs_is_refused(run_forked, tmp_path, run_dir):
  """A folder with other files, a file, below a file, none."""
  cwd = tmp_path / "cwd"
  (cwd / "notes").mkdir(parents=True)
  (cwd / "notes/file.txt").write_text("mine")
  before = tree(tmp_path)
  flags = [f"--run_dir={run_dir}", f"--cache_dir={tmp_path / 'cache'}"]
  assert_refused(run_forked(*SMALL, *flags, cwd=cwd), run_dir, "run_dir")
  assert tree(tmp_path) == before


def test_resuming_needs_the_folder_of_a_run(run_forked, tmp_path):
  assert_refused(run_forked("--resume", cwd=tmp_path), "--resume needs --run_dir")
  assert tree(tmp_path) == set()


def test_cache_that_is_a_file_is_refused(run_forked, tmp_path):
  (tmp_path / "file.txt").write_text("mine")
  flags = [f"--run_dir={tmp_path / 'run'}", f"--cache_dir={tmp_path / 'file.txt'}"]
  assert_refused(run_forked(*SMALL, *flags, cwd=tmp_path), "file.txt")
  assert tree(tmp_path) == {"file.txt"}


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"flags": 3}'])
@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_config_of_another_program_is_refused(run_forked, tmp_path, content, resume):
  run_dir, where = place(tmp_path)
  run_dir.mkdir()
  (run_dir / "config.json").write_text(content)
  done = run_forked(*SMALL, *where, *resume, cwd=tmp_path)
  assert_refused(done, str(run_dir))
  assert tree(tmp_path) == {"run", "run/config.json"}


def test_folder_that_another_process_writes_is_refused(run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  run_dir.mkdir()
  handle = os.open(run_dir, os.O_RDONLY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX)
    done = run_forked(*SMALL, *where, cwd=tmp_path)
  finally:
    os.close(handle)
  assert_refused(done, "is being written by another run")
  assert not list(run_dir.iterdir())


def test_only_with_verbosity_a_mistake_has_a_traceback(run_forked, tmp_path):
  _, where = place(tmp_path)
  done = run_forked(*where, "--rounds=0", "--verbosity=1", cwd=tmp_path)
  assert done.status == 2
  assert "Traceback" in done.err
  assert "rounds must be at least 1" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--algorithm=fedavgg"], ["did you mean 'fedavg'"]),
    # Found after TFF was imported, which does things, and may print, when Python ends.
    (["--partition=nonsense", "--devices=CPU:0"], ["nonsense", "iid"]),
  ],
)
def test_mistake_in_a_process_of_its_own(tmp_path, tmp_path_factory, flags, words):
  """Nothing of TensorFlow's, TFF's or Python's is on standard error either."""
  home = tmp_path_factory.mktemp("home")  # Keras and Matplotlib keep settings there.
  _, where = place(tmp_path)
  done = Process(*where, *flags, cwd=tmp_path, home=home).end()
  assert_refused(done, *words)
  assert tree(tmp_path) == set()


# --- Not the user's -----------------------------------------------------------------


@pytest.mark.parametrize(
  "flags, before, said",
  [
    (
      ["--task=own_tasks:good"],
      "def build(*_): raise ValueError('inside')\n"
      "from experiments import preparation; preparation.build = build",
      "ValueError: inside",
    ),
    (
      ["--task=own_tasks:good"],
      "def prepare(*_): raise ValueError('operands could not be broadcast')\n"
      "from tff_algos.runtimes import in_process; in_process.prepare = prepare",
      "ValueError: operands could not be broadcast",
    ),
  ],
  ids=["builder", "devices"],
)
def test_defect_has_a_traceback_and_asks_for_a_report(
  run_forked, tmp_path, flags, before, said
):
  run_dir, where = place(tmp_path)
  done = run_forked(*flags, *where, cwd=tmp_path, before=before)
  assert done.status == 1
  first, *_, error, last = done.err.splitlines()
  assert first == "Traceback (most recent call last):"
  assert error.startswith(said)
  assert "please report it" in last
  assert not run_dir.exists()


def test_error_in_a_loader_of_ones_own_names_its_place(run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  done = run_forked("--task=own_tasks:broken_loader", *where, cwd=tmp_path)
  assert done.status == 1
  first, *_, error, last = done.err.splitlines()
  assert first == "Traceback (most recent call last):"
  assert error.startswith("TypeError: object of type 'NoneType'")
  assert re.fullmatch(r"Look at /.*/own_tasks\.py, line \d+ first, .*\.", last)
  assert not run_dir.exists()
