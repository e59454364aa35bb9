"""Seeds and random states."""

import os
import random

import numpy as np
import pytest
import torch

from composer.utils import reproducibility
from composer.utils.reproducibility import (
    MAX_SEED,
    configure_deterministic_mode,
    get_random_seed,
    get_rng_state,
    load_rng_state,
    seed_all,
    seed_context,
)
from tests.launch import run_ranks


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_same_seed_same_draws():
    seed_all(3)
    first = draws()
    seed_all(3)
    assert draws() == first
    seed_all(4)
    assert draws() != first


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_a_seed_out_of_range(seed):
    with pytest.raises(ValueError, match=str(seed)):
        seed_all(seed)


def test_a_random_seed_disturbs_nobody():
    seed_all(0)
    before = get_rng_state()
    seeds = {get_random_seed() for _ in range(10)}
    assert len(seeds) == 10 and all(0 <= seed <= MAX_SEED for seed in seeds)
    seed_all(max(seeds))
    load_rng_state(before)
    seed_all(0)
    first = draws()
    load_rng_state(before)
    assert draws() == first


def test_the_state_comes_back_even_from_lists():
    saved = get_rng_state()
    assert list(saved[0])[:3] == ["python", "numpy", "torch"]
    first = draws()
    saved[0]["python"] = [part if part is None else part for part in saved[0]["python"]]
    load_rng_state(saved)
    assert draws() == first


def test_another_number_of_ranks_is_warned_about():
    before = draws
    with pytest.warns(UserWarning, match="states of 2 ranks and this run has 1"):
        load_rng_state(get_rng_state() * 2)
    assert before is draws


def test_a_context_puts_everything_back():
    seed_all(0)
    expected = [draws(), draws()]
    seed_all(0)
    found = [draws()]
    with pytest.raises(KeyError), seed_context(5):
        inside = draws()
        raise KeyError
    found.append(draws())
    assert found == expected
    seed_all(5)
    assert draws() == inside


def test_deterministic_mode(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    cudnn = (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
    try:
        with pytest.warns(UserWarning, match="Deterministic mode is activated"):
            configure_deterministic_mode()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn


def states_of_ranks():
    rank = reproducibility.dist.get_global_rank()
    seed_all(rank)
    saved = get_rng_state()
    first = draws()
    load_rng_state(saved)
    return len(saved), first == draws(), first


def test_every_rank_has_its_own_state():
    results = run_ranks(states_of_ranks, 2)
    assert [(number, same) for number, same, _ in results] == [(2, True), (2, True)]
    assert results[0][2] != results[1][2]
