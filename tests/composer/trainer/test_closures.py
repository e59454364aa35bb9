"""Optimizers that run the passes themselves, and the scaler of fp16 around a step."""

from typing import Any

import pytest
import torch

from composer import Callback, Trainer
from composer.optim.grad_scaler import ClosureGradScaler
from composer.trainer._scaling import GradScaling, make_scaler
from tests.composer.trainer.models import Classifier, rows_loader


class TwoPasses(torch.optim.SGD):
    """Needs its closure, though its signature does not say so, and calls it twice."""

    synced: list[bool]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is not None
        closure(ddp_sync=False)
        loss = closure()
        super().step()
        return loss


class SkipAtPass(Callback):
    def __init__(self, number: int) -> None:
        self.number, self.passes = number, 0

    def after_train_batch(self, state: Any, logger: Any) -> None:
        self.passes += 1
        if self.passes == self.number:
            state.skip_step()


def train(
    optimizer: type[torch.optim.Optimizer], *callbacks: Callback, **kwargs: Any
) -> Classifier:
    model = Classifier()
    trainer = Trainer(
        model=model,
        optimizers=optimizer(model.parameters(), lr=0.1),  # type: ignore[call-arg]
        train_dataloader=rows_loader(4, batch_size=4),
        device_train_microbatch_size=2,
        max_duration="1ep",
        callbacks=list(callbacks),
        progress_bar=False,
        **kwargs,
    )
    try:
        trainer.fit()
    finally:
        trainer.close()
    return model


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_users_optimizer_gets_the_closure_that_it_names() -> None:
    passes = SkipAtPass(0)
    assert torch.equal(flat(train(TwoPasses, passes)), flat(train(torch.optim.SGD)))
    assert passes.passes == 2


def test_a_step_can_be_left_out_before_the_weights_move() -> None:
    assert torch.equal(flat(train(TwoPasses, SkipAtPass(1))), flat(Classifier()))
    with pytest.raises(RuntimeError, match="has begun to move the weights"):
        train(TwoPasses, SkipAtPass(2))


@pytest.mark.parametrize(
    ("optimizer", "scaler"),
    [(torch.optim.SGD, torch.amp.GradScaler), (TwoPasses, ClosureGradScaler)],
)
def test_scaled_steps_equal_plain_ones(
    optimizer: Any, scaler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = flat(train(optimizer))
    monkeypatch.setattr("composer.trainer._run.scaling_of", GradScaling)
    monkeypatch.setattr(TwoPasses, "_step_supports_amp_closure", True, raising=False)
    made = scaler("cpu", init_scale=1024.0)
    monkeypatch.setattr("composer.trainer._assemble.make_scaler", lambda state: made)
    assert torch.allclose(flat(train(optimizer)), plain, atol=1e-7)
    before = made.get_scale()

    class Overflow(Callback):
        def after_backward(self, state: Any, logger: Any) -> None:
            next(state.model.parameters()).grad.fill_(float("inf"))

    if optimizer is torch.optim.SGD:
        assert torch.equal(flat(train(optimizer, Overflow())), flat(Classifier()))
        assert made.get_scale() == before / 2


def test_fp16_refuses_an_optimizer_that_cannot_unscale(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Classifier()
    trainer = Trainer(
        model=model, optimizers=torch.optim.LBFGS(model.parameters()), progress_bar=False
    )
    trainer.state.precision = "amp_fp16"
    with pytest.raises(ValueError, match="LBFGS runs the forward and backward passes itself"):
        make_scaler(trainer.state)
    trainer.close()
