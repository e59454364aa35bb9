"""Copies that training cannot change any more, in memory that is used again."""

import numpy as np
import torch

from composer.checkpoint.staging import Staging


def test_a_copy_stays_as_it_was_and_shares_what_was_shared() -> None:
    weight = torch.arange(6.0).reshape(2, 3).t()
    state = {"a": weight, "tied": weight, "rest": [(np.zeros(2), {"n": [1]}), None]}
    copied = Staging().copy_nested(state)
    weight.zero_()
    state["rest"][0][1]["n"].append(2)
    state["rest"][0][0][:] = 1
    assert torch.equal(copied["a"], torch.arange(6.0).reshape(2, 3).t())
    assert copied["a"] is copied["tied"] and copied["a"].stride() == weight.stride()
    assert copied["rest"][0][1] == {"n": [1]} and not copied["rest"][0][0].any()


def test_memory_is_used_again() -> None:
    staging, tensors = Staging(), [torch.ones(10), torch.ones(10), torch.ones(2, 3)]
    staging.reserve(tensors)
    assert staging.size_bytes == 4 * 26
    addresses = set()
    for _ in range(2):
        addresses |= {staging.copy(tensor).data_ptr() for tensor in tensors}
        staging.release()
    assert len(addresses) == 3 and staging.size_bytes == 4 * 26
    staging.forget()
    assert staging.size_bytes == 0


def test_only_some_storages_are_copied() -> None:
    live, gathered = torch.ones(3), torch.ones(3)
    copied = Staging().copy_nested([live, gathered], {live.untyped_storage().data_ptr()})
    assert copied[0] is not live and copied[1] is gathered
