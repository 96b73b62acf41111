"""`binaries/import_data.py`: what it says and imports."""

from __future__ import annotations

import pytest

from tasks.datasets import tfds_images

_MNIST_FILES = [
  f"{split}-{part}-ubyte.gz"
  for split in ("t10k", "train")
  for part in ("images-idx3", "labels-idx1")
]


def test_program_names_missing_and_wrong_files(fork_program, tmp_path):
  folder = tmp_path / "mine"
  folder.mkdir()
  (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"?" * 4542)  # The right size.
  data_dir = tmp_path / "tfds"
  flags = ["--dataset=mnist", f"--from={folder}", f"--data_dir={data_dir}"]
  done = fork_program("import_data.py", *flags, cwd=tmp_path)
  assert (done.status, done.out) == (2, "")
  lines = done.err.splitlines()
  assert [line.split()[0] for line in lines] == _MNIST_FILES
  assert "SHA-256" in lines[1]
  assert not data_dir.exists()


def test_program_refuses_an_unknown_set_in_one_sentence(fork_program, tmp_path):
  flags = ["--dataset=mnits", "--from=."]
  done = fork_program("import_data.py", *flags, cwd=tmp_path)
  assert (done.status, done.out) == (2, "")
  [line] = done.err.splitlines()
  assert "did you mean mnist?" in line


@pytest.mark.real_data
def test_program_imports_and_prepares_real_mnist(fork_program, shared_data_dir, tmp_path):
  archives = shared_data_dir / "mnist"
  if not archives.is_dir():
    pytest.skip(f"no real MNIST: {archives} is missing")
  flags = ["--dataset=mnist", f"--from={archives}", f"--data_dir={tmp_path}"]
  done = fork_program("import_data.py", *flags, cwd=tmp_path)
  assert done.status == 0, done.err
  assert "Traceback" not in done.err
  *imported, last = done.out.splitlines()
  assert [line.split()[0] for line in imported] == _MNIST_FILES
  assert last == f"mnist is ready in {tmp_path / 'mnist/3.0.1'}"
  splits = tfds_images.find_builder("mnist", str(tmp_path)).info.splits
  assert {name: info.num_examples for name, info in splits.items()} == {
    "train": 60000,
    "test": 10000,
  }
