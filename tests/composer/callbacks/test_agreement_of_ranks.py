"""Callbacks on two ranks do together what one rank sees; all in one launch, which takes seconds."""

import os

import pytest

from tests.composer.callbacks import (
    test_best_checkpoints,
    test_checkpoint_now,
    test_generate,
    test_stability_monitor,
    test_system_metrics_monitor,
)
from tests.launch import run_ranks

MODULES = (
    test_best_checkpoints,
    test_checkpoint_now,
    test_generate,
    test_stability_monitor,
    test_system_metrics_monitor,
)


def _train_all(folder: str) -> dict:
    results = {}
    for module in MODULES:
        name = module.__name__.rpartition(".test_")[2]
        results[name] = module.train_on_two(os.path.join(folder, name))
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return folder, *run_ranks(_train_all, 2, str(folder))


def test_a_spike_of_one_rank_is_skipped_by_both(ranks):
    _, first, second = ranks
    assert first["stability_monitor"] == second["stability_monitor"]
    assert first["stability_monitor"]["same"]
    assert first["stability_monitor"]["skipped"] == 1


def test_one_rank_that_hears_a_signal_is_enough(ranks):
    folder, first, second = ranks
    assert first["checkpoint_now"] == second["checkpoint_now"] == (143, 3)
    names = sorted(path.name for path in (folder / "checkpoint_now").iterdir())
    assert names == ["ep0-ba3-rank0.pt", "latest-rank0.pt"]


def test_rank_zero_decides_what_is_best(ranks):
    folder, first, second = ranks
    assert first["best_checkpoints"] == second["best_checkpoints"] == [3]
    names = sorted(path.name for path in (folder / "best_checkpoints").iterdir())
    assert names == ["best-ep0-ba2-rank0.pt", "best-rank0.pt"]


def test_rank_zero_logs_what_was_generated(ranks):
    _, first, second = ranks
    assert [step for step, _ in first["generate"]] == [1, 2]
    assert second["generate"] == []


def test_ranks_with_unequal_evaluations_do_not_wait_for_each_other(ranks):
    _, first, second = ranks
    of_first, of_second = first["system_metrics_monitor"], second["system_metrics_monitor"]
    assert set(of_first) == set(test_system_metrics_monitor.KEYS)
    assert set(of_first.values()) == {6}  # two of training, two of each evaluation
    assert set(of_second.values()) == {4}
