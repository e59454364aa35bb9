"""Which modules become units, and which models are refused for what they share."""

import pytest
import torch
from torch import nn

from composer.distributed.wrapping import (
    check_param_tying,
    check_units,
    generate_composer_model_policy,
    generate_default_policy,
    get_standalone_and_tied_modules,
    legalize_param_sharing_between_modules,
    modules_to_shard,
)
from tests.composer.distributed.sharded_models import Blocks, classifier


def _names(model: nn.Module, policy: object) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[unit] for unit in modules_to_shard(model, policy)]


def test_a_model_says_which_of_its_modules_are_units() -> None:
    model = Blocks()
    assert _names(model, generate_default_policy(model)) == ["blocks.0", "blocks.1"]


def test_children_of_a_composer_model_are_units_and_its_metrics_are_not() -> None:
    model = classifier()
    expected = ["module", "module.blocks.0", "module.blocks.1"]
    assert _names(model, generate_composer_model_policy(model)) == expected


def test_the_old_attribute_decides_and_is_warned_about() -> None:
    model = classifier()
    model.module.first._fsdp_wrap = True  # type: ignore[union-attr, assignment]
    model.module.blocks[0]._fsdp_wrap = False  # type: ignore[index, union-attr]
    with pytest.warns(DeprecationWarning, match="_fsdp_wrap attribute will be removed"):
        policy = generate_composer_model_policy(model)
    assert _names(model, policy) == ["module", "module.first", "module.blocks.1"]


def test_own_settings_of_a_unit_are_kept_and_unknown_ones_refused() -> None:
    model = Blocks()
    model.fsdp_wrap_fn = lambda module: (  # type: ignore[method-assign]
        {"reshard_after_forward": False} if isinstance(module, nn.Linear) else False
    )
    units = modules_to_shard(model, generate_default_policy(model))
    assert all(own == {"reshard_after_forward": False} for own in units.values())
    assert len(units) == 4
    model.fsdp_wrap_fn = lambda module: {"sharding": "FULL"}  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="Invalid FSDP2 config keys in wrap_fn return value"):
        generate_default_policy(model)


def test_tied_siblings_are_refused() -> None:
    model = Blocks(tied=True)
    units = modules_to_shard(model, generate_default_policy(model))
    with pytest.raises(ValueError, match=r"Detected tied parameters.*'blocks.0', 'blocks.1'"):
        check_units(model, units)


def test_a_parameter_shared_with_a_module_outside_is_refused() -> None:
    model = Blocks()
    model.extra = nn.Linear(16, 16)  # type: ignore[assignment]
    model.extra.weight = model.blocks[0][0].weight  # type: ignore[index, union-attr]
    units = modules_to_shard(model, generate_default_policy(model))
    with pytest.raises(ValueError, match="Parameter sharing detected.*'extra'"):
        check_units(model, units)


def test_tied_parameters_inside_one_unit_are_fine() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    check_units(nn.ModuleList([model]), [model])
    legalize_param_sharing_between_modules(model, [])


def test_modules_are_parted_by_what_they_share() -> None:
    first, second, third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    third.weight = first.weight
    standalone, tied = get_standalone_and_tied_modules([first, second, third])
    assert standalone == [second]
    assert tied == {first, third}


def test_ties_must_stay_as_they_are() -> None:
    model = Blocks(tied=True)
    with (
        pytest.raises(RuntimeError, match="Parameter tying relationship changed"),
        check_param_tying(model),
    ):
        model.blocks[0][0].weight = nn.Parameter(torch.zeros(16, 16))  # type: ignore[index, union-attr]
    with check_param_tying(model):
        pass
