"""What tests of attacks share."""

from __future__ import annotations

import os

import pytest

from experiments.run_folder.folder import RunFolder
from tff_algos.errors import InputError


@pytest.fixture
def check_own_code(in_process, monkeypatch, tmp_path):
  """`(attack, request_of)`: own code has its flags, and its folder knows the files."""

  def check(attack, request_of):
    start = attack.__name__.rpartition(".")[2]
    monkeypatch.syspath_prepend(tmp_path)
    algorithm = "from tff_algos.algorithms.fed_avg import ALGORITHMS as own\n"
    task = "from tasks import registry\nown = registry.get('digits_cnn')\n"
    for name, source in (("one", algorithm), ("other", algorithm), ("task", task)):
      (tmp_path / f"{start}_{name}.py").write_text(source)
    folder = RunFolder(str(tmp_path / "out"), flag="--out")

    def config_of(algorithm):
      request = request_of(
        tmp_path,
        task=f"{start}_task:own",
        algorithms=[algorithm],
        hparams={algorithm: {"learning_rate": 0.25}},
      )
      return attack.describe(request, attack.prepare(request))

    os.mkdir(folder.path)
    one, other = (config_of(f"{start}_{name}:own") for name in ("one", "other"))
    assert one["algorithm"].keys() == {f"{start}_one"}
    assert [own["learning_rate"] for own in one["hparams"].values()] == [0.25]
    folder.begin(one)
    # Another algorithm goes into the same folder, which then knows both.
    attack.read_done(folder, other)
    assert other["algorithm"].keys() == {f"{start}_one", f"{start}_other"}
    for name in (f"{start}_one", f"{start}_task"):
      path = tmp_path / f"{name}.py"
      before = path.read_text()
      path.write_text(f"{before}# Changed.\n")
      with pytest.raises(InputError, match=f"another version of {name}: put"):
        attack.read_done(folder, config_of(f"{start}_one:own"))
      path.write_text(before)

  return check
