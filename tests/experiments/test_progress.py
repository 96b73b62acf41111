"""What a run shows of its rounds, and signals to it.

The first lets it end its round, one that comes later ends it.
"""

from __future__ import annotations

import math
import os
import signal

import pytest

from experiments import progress

_SAID = (
  "\nstopping after this round; once more to stop now, which may lose the rounds since "
  "the last checkpoint\n"
)


@pytest.fixture
def clock(monkeypatch):
  """A list whose last entry is the time, in seconds."""
  times = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: times[-1])
  return times


def _send(number: signal.Signals) -> None:
  os.kill(os.getpid(), number)


def _send_and_go_on(number: signal.Signals) -> None:
  try:
    _send(number)
  except KeyboardInterrupt:  # Which would end all tests.
    pytest.fail("the signal has ended the run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_asks_to_stop(clock, capsys, number):
  with progress.stopping_on_signal() as should_stop:
    assert not should_stop()
    _send(number)
    assert should_stop()
  assert capsys.readouterr().err == _SAID


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_comes_twice_at_once_is_one(clock, capsys, again):
  with progress.stopping_on_signal() as should_stop:
    _send_and_go_on(signal.SIGTERM)
    clock.append(100.9)
    _send_and_go_on(again)
    _send_and_go_on(again)
    assert should_stop()
  assert capsys.readouterr().err == _SAID


def test_second_signal_after_more_than_a_second_ends_it(clock):
  with progress.stopping_on_signal():
    _send_and_go_on(signal.SIGINT)
    clock.append(100.9)
    _send_and_go_on(signal.SIGINT)
    # It is the first that counts, whatever came in between.
    clock.append(101.1)
    with pytest.raises(KeyboardInterrupt):
      _send(signal.SIGINT)


def test_signal_in_one_of_several_runs_ends_them_all(clock, capsys):
  """A second one in the next of them is the second."""
  with progress.stopping_on_signal() as should_stop:
    with progress.stopping_on_signal() as should_this_stop:
      _send_and_go_on(signal.SIGTERM)
      assert should_this_stop()
    assert should_stop()
    clock.append(101.1)
    with (
      progress.stopping_on_signal() as should_next_stop,
      pytest.raises(KeyboardInterrupt),
    ):
      assert should_next_stop()
      _send(signal.SIGTERM)
  assert capsys.readouterr().err == _SAID


def test_a_terminal_that_closes_ends_nothing_under_nohup(capsys):
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with progress.stopping_on_signal() as should_stop:
      _send(signal.SIGHUP)
      assert not should_stop()
  finally:
    signal.signal(signal.SIGHUP, before)
  assert capsys.readouterr().err == ""


def test_handlers_are_as_before():
  before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  with pytest.raises(RuntimeError), progress.stopping_on_signal():
    assert signal.getsignal(signal.SIGTERM) not in before
    raise RuntimeError
  assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


# --- Rounds in words ----------------------------------------------------------------


def test_each_number_has_its_name():
  record = {"round": 7, "train_loss": 0.5, "seconds": 1.234, "num_dropped": 0}
  assert progress.describe(record) == "train loss 0.5000, 1.23 s/round"
  record.update(
    test_accuracy=0.75,
    client_accuracy_p10=0.25,
    client_accuracy_p50=0.5,
    learning_rate=0.05,
    num_dropped=1,
    num_dropped_out=2,
    num_late=0,
  )
  assert progress.describe(record) == (
    "train loss 0.5000, test accuracy 75.00 %, clients' accuracy: median 50.00 %, 10th "
    "percentile 25.00 %, learning rate 0.05, 1.23 s/round, 1 client dropped as not "
    "finite, 2 clients dropped out"
  )

  regression = dict(seconds=1.0, held_out_loss_p50=0.25, held_out_loss_p90=1.5)
  assert progress.describe(regression) == (
    "held-out clients' loss: median 0.2500, 90th percentile 1.5000, 1.00 s/round"
  )

  # Of a model without accuracy all that evaluation gives.
  tested = dict(seconds=1.0, test_loss=0.5, test_off=0.25)
  assert progress.describe(tested) == "test loss 0.5000, test off 0.2500, 1.00 s/round"
  assert progress.describe({**tested, "test_accuracy": 0.75}) == (
    "test accuracy 75.00 %, 1.00 s/round"
  )

  # What is dropped for its norm is among what is dropped.
  long = {"seconds": 1.0, "num_dropped": 3, "num_too_long": 2}
  assert progress.describe(long) == (
    "1.00 s/round, 1 client dropped as not finite, 2 clients dropped for their norm"
  )

  empty = {**record, "train_loss": math.nan, "num_accepted": 0}
  assert progress.describe(empty).startswith("no client's result, test accuracy")
  diverged = {**empty, "num_accepted": 3}
  assert progress.describe(diverged).startswith("train loss nan, test accuracy")


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_terminal_a_round_is_a_line_or_nothing(capsys, quiet):
  shown = progress.Progress(3, quiet=quiet)
  shown.start(0)
  shown.update({"round": 1, "train_loss": 0.5, "seconds": 2.0, "num_dropped": 0})
  shown.close()
  out, err = capsys.readouterr()
  assert out == ("" if quiet else "round 1: train loss 0.5000, 2.00 s/round\n")
  assert err == ""


def test_a_bar_begins_with_the_rounds_that_are_done(monkeypatch, capsys):
  monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
  shown = progress.Progress(5)
  shown.start(3)
  shown.close()
  assert "round 3/5 |" in capsys.readouterr().err
