"""The no-op model trains its one weight, whatever the data are."""

import pytest
import torch

from composer import Trainer
from composer.algorithms import NoOpModel
from composer.models import ComposerClassifier
from tests.composer.algorithms.surgery import apply_at


def test_weight_learns_to_be_one():
    net = torch.nn.Sequential(torch.nn.Linear(4, 3))
    rows = [(torch.randn(4), label % 3) for label in range(12)]
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    trainer = Trainer(
        model=ComposerClassifier(net, num_classes=3),
        optimizers=optimizer,
        algorithms=NoOpModel(),
        train_dataloader=loader,
        eval_dataloader=loader,
        max_duration="5ep",
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    weights = trainer.state.model.weights
    assert optimizer.param_groups[0]["params"] == [weights]
    assert weights.tolist() == pytest.approx([1.0], abs=1e-2)
    assert float(trainer.state.eval_metrics["eval"]["MeanSquaredError"].compute()) == 0


def test_loss_is_the_squared_error():
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)])
    state, _ = apply_at(NoOpModel(), torch.nn.Linear(2, 2), optimizers=[optimizer])
    assert len(optimizer.param_groups) == 1
    for batch in ((None, torch.tensor([1, 2])), {"labels": torch.tensor([1, 2])}):
        outputs = state.model(batch)
        assert outputs.tolist() == [1.5, 3.0]
        assert state.model.loss(outputs, batch).item() == pytest.approx((0.5**2 + 1) / 2)
        assert state.model.eval_forward(batch).tolist() == [1, 2]
    assert repr(NoOpModel()) == "NoOpModel()"
    assert NoOpModel.required_on_load()
