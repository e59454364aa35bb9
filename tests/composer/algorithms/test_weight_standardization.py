"""Weight standardization equals that of the last upstream releases."""

import pytest
import torch
from torch import nn

from composer.algorithms import NoMatchError, WeightStandardization
from composer.algorithms.weight_standardization import apply_weight_standardization
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact


def test_equals_the_record():
    golden = Golden("weight_std")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    model.load_state_dict(golden.weights())
    assert apply_weight_standardization(model, n_last_layers_ignore=1) == 1
    torch.testing.assert_close(model(golden["x"]), golden["out"], atol=1e-5, rtol=0)
    assert sorted(model.state_dict()) == golden_fact("weight_std_keys")


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_channels_have_mean_0_and_variance_1(kind):
    model = nn.Sequential(kind(3, 5, 3))
    apply_weight_standardization(model)
    weight = model[0].weight.flatten(1)
    torch.testing.assert_close(weight.mean(dim=1), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.var(dim=1, correction=0), torch.ones(5))


class Backwards(nn.Module):
    """Runs its layers in another order than they are defined in."""

    def __init__(self, traceable: bool = True) -> None:
        super().__init__()
        self.last = nn.Conv2d(4, 4, 1)
        self.first = nn.Conv2d(4, 4, 1)
        self.traceable = traceable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.traceable and x.sum() > 0:
            x = x + 1
        return self.last(self.first(x))


def test_last_layers_are_those_that_run_last():
    model = Backwards()
    apply_weight_standardization(model, 1)
    assert nn.utils.parametrize.is_parametrized(model.first)
    assert not nn.utils.parametrize.is_parametrized(model.last)
    model = Backwards(traceable=False)
    with pytest.warns(UserWarning, match="cannot be traced"):
        apply_weight_standardization(model, 1)
    assert nn.utils.parametrize.is_parametrized(model.last)


def test_algorithm():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, logger = apply_at(WeightStandardization(), model, optimizers=[optimizer])
    assert logger.hparams == {"WeightStandardization/num_weights_standardized": 2}
    assert set(optimizer.param_groups[0]["params"]) == set(model.parameters())
    assert not WeightStandardization.required_on_load()
    with pytest.raises(NoMatchError, match="Conv1d"):
        apply_at(WeightStandardization(), nn.Linear(2, 2))
    with pytest.raises(NoMatchError, match="n_last_layers_ignore=1"):
        apply_at(WeightStandardization(1), nn.Sequential(nn.Conv2d(3, 3, 1)))
    with pytest.raises(ValueError, match="negative"):
        WeightStandardization(-1)
