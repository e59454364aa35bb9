"""DataSpec: defaults, counting, and what it refuses."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.utils import dist


def a_loader(length=6, **kwargs):
    return DataLoader(TensorDataset(torch.zeros(length, 2)), batch_size=2, **kwargs)


def test_defaults():
    spec = DataSpec(a_loader())
    assert spec.num_samples == 6 and spec.num_tokens is None
    assert spec.batch_transforms(1) == spec.microbatch_transforms(1) == 1
    assert len(spec.split_batch(torch.zeros(4), 2)) == 2
    assert spec.get_num_samples_in_batch(torch.zeros(4)) == 4
    assert spec._default_get_num_samples_in_batch(torch.zeros(4)) == 4
    assert spec.count_targets(torch.zeros(4)) is None


def test_length_is_unknown_without_a_sized_dataset():
    class Endless(IterableDataset):
        def __iter__(self):
            yield torch.zeros(1)

    assert DataSpec(DataLoader(Endless())).num_samples is None
    assert DataSpec([1, 2]).num_samples is None
    assert DataSpec(a_loader(), num_samples=3).num_samples == 3


def test_tokens_by_shape():
    spec = DataSpec(a_loader())
    assert spec.get_num_tokens_in_batch({"input_ids": torch.zeros(3, 5)}) == 15
    assert spec._default_get_num_tokens_in_batch({"input_ids": torch.zeros(3, 5)}) == 15
    assert spec.get_num_tokens_in_batch(torch.zeros(3)) == 0
    loader = a_loader()
    loader.dataset.max_seq_len = 7
    assert DataSpec(loader).get_num_tokens_in_batch(torch.zeros(3)) == 21


def test_tokens_as_told():
    spec = DataSpec(a_loader(), get_num_tokens_in_batch=lambda batch: 4)
    assert spec.get_num_tokens_in_batch(None) == 4
    assert spec.count_targets(None) is None
    counts = {"total": 10, "loss_generating": 8}
    spec = DataSpec(a_loader(), get_num_tokens_in_batch=lambda batch: counts)
    assert spec.get_num_tokens_in_batch(None) == 10
    assert spec.get_num_tokens_in_batch(None, token_type="loss_generating") == 8
    assert spec.count_targets(None) == 8
    with pytest.raises(ValueError, match="'masked'"):
        spec.get_num_tokens_in_batch(None, token_type="masked")


def test_a_started_loader_is_refused():
    loader = a_loader(num_workers=1, persistent_workers=True)
    iter(loader)
    with pytest.raises(ValueError, match="active iterator"):
        DataSpec(loader)
    loader._iterator._shutdown_workers()


def test_ranks_must_not_read_the_same_samples(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_global_rank", lambda group=None: 0)
    with pytest.raises(ValueError, match="get_sampler"):
        DataSpec(a_loader())
    dataset = TensorDataset(torch.zeros(4, 2))
    DataSpec(DataLoader(dataset, batch_size=2, sampler=dist.get_sampler(dataset)))


def test_ensure():
    loader = a_loader()
    spec = ensure_data_spec({"dataloader": loader, "num_samples": 2})
    assert spec.dataloader is loader and spec.num_samples == 2
    assert ensure_data_spec(spec) is spec
    assert ensure_data_spec(loader).dataloader is loader
