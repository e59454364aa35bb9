"""Lion and its kin against their definitions."""

import pytest
import torch

from llmfoundry.optim.adaptive_lion import DecoupledAdaLRLion, DecoupledClipLion
from llmfoundry.optim.lion import DecoupledLionW
from llmfoundry.optim.no_op import NoOp
from llmfoundry.optim.outlier_detection import OutlierDetector


def trained(optimizer_class: type, gradients: list[float], **settings: float) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = optimizer_class([parameter], **settings)
    for number, gradient in enumerate(gradients):
        parameter.grad = torch.tensor([gradient, -gradient])
        optimizer.param_groups[0]["lr"] = settings["lr"] / (number + 1)
        optimizer.step()
    parameter.optimizer = optimizer
    return parameter


def test_lion_follows_its_definition() -> None:
    lr, decay, gradients = 0.1, 0.01, [1.0, -3.0, 0.5]
    parameter = trained(DecoupledLionW, gradients, lr=lr, weight_decay=decay)
    p, m = torch.tensor([1.0, -2.0]), torch.zeros(2)
    for number, gradient in enumerate(gradients):
        g = torch.tensor([gradient, -gradient])
        now = lr / (number + 1)
        p = p * (1 - (now / lr) * decay)
        p = p - now * torch.sign(torch.lerp(m, g, 0.1))
        m = torch.lerp(m, g, 0.01)
    torch.testing.assert_close(parameter.detach(), p)
    torch.testing.assert_close(parameter.optimizer.state[parameter]["exp_avg"], m)


@pytest.mark.parametrize("lion", [DecoupledLionW, DecoupledAdaLRLion, DecoupledClipLion])
def test_b31_decay_follows_the_schedule_alone(lion: type) -> None:
    decayed = trained(lion, [0.0, 0.0], lr=0.1, weight_decay=0.01).detach()
    torch.testing.assert_close(decayed, torch.tensor([1.0, -2.0]) * 0.99 * 0.995)
    with pytest.raises(ValueError, match=r"LR: 0\.0\. LR must be > 0"):
        trained(lion, [0.0], lr=0.0, weight_decay=0.01)


@pytest.mark.parametrize("lion", [DecoupledAdaLRLion, DecoupledClipLion])
def test_without_outliers_all_lions_agree(lion: type) -> None:
    gradients = [1.0, -1.0, 0.5, 0.7]
    expected = trained(DecoupledLionW, gradients, lr=0.1, weight_decay=0.01).detach()
    torch.testing.assert_close(
        trained(lion, gradients, lr=0.1, weight_decay=0.01).detach(), expected
    )


def test_outliers_are_measured_against_older_observations() -> None:
    detector = OutlierDetector(threshold=2.0, delay_interval=3)
    assert not any(detector.insert_observation(1.0) for _ in range(3))
    assert detector.get_delayed_mva() is None
    assert not detector.insert_observation(1.0)
    assert detector.get_delayed_mva() == 1.0
    assert detector.insert_observation(2.1)
    for _ in range(100):
        detector.insert_observation(5.0)
    assert len(detector.history) == 6
    assert not detector.insert_observation(9.0)


def test_clip_lion_shortens_an_outlier_and_says_how_often() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = DecoupledClipLion([parameter], lr=0.1, outlier_threshold=2.0)
    for _ in range(501):
        parameter.grad = torch.ones(1)
        optimizer.step()
    parameter.grad = torch.full((1,), 100.0)
    before = optimizer.state[parameter]["exp_avg"].clone()
    optimizer.step()
    state = optimizer.state[parameter]
    torch.testing.assert_close(state["exp_avg"], torch.lerp(before, torch.tensor([2.0]), 0.01))
    assert state["clipped_batches"] == 1
    metrics = optimizer.report_per_parameter_metrics(parameter, "w", {})
    assert metrics["clipped_batches/w"] == 1


def test_adalr_lion_slows_down_after_an_outlier_until_its_timeout() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = DecoupledAdaLRLion([parameter], lr=0.1, timeout=2, lr_penalty=0.5)
    for _ in range(1200):  # The momentum itself has to settle, or all of it stands out.
        parameter.grad = torch.ones(1)
        optimizer.step()
    steps = []
    for gradient in (5000.0, 1.0, 1.0, 1.0, 1.0):
        parameter.grad = torch.full((1,), gradient)
        before = parameter.detach().clone()
        optimizer.step()
        steps.append(round(float((parameter.detach() - before).abs()), 4))
    assert steps[0] == 0.05
    assert optimizer.adjust_lr(0.1, 0.5, 100, 1e-4) == pytest.approx(1e-5)


def test_state_is_plain_so_that_a_checkpoint_can_hold_it(tmp_path) -> None:
    for lion in (DecoupledAdaLRLion, DecoupledClipLion):
        parameter = trained(lion, [1.0, 2.0], lr=0.1)
        torch.save(parameter.optimizer.state_dict(), tmp_path / "o.pt")
        loaded = torch.load(tmp_path / "o.pt", weights_only=True)
        again = lion([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        again.load_state_dict(loaded)


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"lr": -1.0}, {"betas": (1.1, 0.9)}])
def test_impossible_rates(settings: dict) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        DecoupledLionW([torch.nn.Parameter(torch.ones(1))], **settings)


def test_no_op_changes_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    assert NoOp([parameter]).step(lambda: 7) == 7
    assert torch.equal(parameter.detach(), torch.ones(3))


def test_norms_for_the_optimizer_monitor() -> None:
    parameter = trained(DecoupledLionW, [1.0], lr=0.1)
    metrics = parameter.optimizer.report_per_parameter_metrics(parameter, "w", {})
    assert set(metrics) == {f"l2_norm/{kind}/w" for kind in ("moment", "param", "update", "grad")}
