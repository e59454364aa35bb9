"""ActivationMonitor looks into every module of a due batch's first micro-batch."""

import pytest
import torch

from composer.callbacks.activation_monitor import ActivationMonitor, compute_kurtosis
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.callbacks.guarded import Line, batches, make_trainer, memory_of

STATISTICS = ("l2_norm", "average", "kurtosis", "max")


def activations(memory):
    return {key: value for key, value in memory.data.items() if key.startswith("activations/")}


@pytest.mark.filterwarnings("ignore:interval='1ba' is short")
def test_names_and_values_are_upstreams():
    seen = []

    class Watched(Line):
        def forward(self, batch):
            outputs = super().forward(batch)
            seen.append((batch.clone(), outputs.detach().clone()))
            return outputs

    trainer = make_trainer(ActivationMonitor("1ba"), data=batches(3), model=Watched(), microbatch=2)
    trainer.fit()
    logged = activations(memory_of(trainer))
    # The one input of the layer and of the model, and each row of their outputs.
    sides = ["input.0", "output.0", "output.1"]
    expected = {f"activations/{s}/{m}_{o}" for s in STATISTICS for m in ("", "net") for o in sides}
    assert set(logged) == expected
    assert all(len(values) == 3 for values in logged.values())
    batch, outputs = seen[0]
    first = {key: values[0][1] for key, values in logged.items()}
    assert first["activations/l2_norm/net_input.0"] == pytest.approx(
        batch.norm(dim=-1).mean().item()
    )
    assert first["activations/average/net_input.0"] == pytest.approx(batch.mean().item())
    assert first["activations/max/net_input.0"] == pytest.approx(batch.amax(-1).mean().item())
    assert first["activations/average/net_output.1"] == pytest.approx(outputs[1].item())
    assert not trainer.state.model.net._forward_hooks
    trainer.close()


def test_it_is_due_once_an_interval_and_leaves_out_what_it_is_told_to():
    monitor = ActivationMonitor("10ba", ignore_module_types=["net"])
    trainer = make_trainer(monitor, data=batches(11))
    trainer.fit()
    logged = activations(memory_of(trainer))
    assert not any("net" in key for key in logged)
    assert [len(values) for values in logged.values()] == [2] * len(logged)
    trainer.close()


class Draws(InMemoryLogger):
    def __init__(self):
        super().__init__()
        self.drawn = {}

    def log_distribution(self, name, values, step=None):
        self.drawn[name] = values


@pytest.mark.parametrize("only", [True, False])
def test_destinations_that_draw_are_preferred(only):
    draws, plain = Draws(), InMemoryLogger()
    monitor = ActivationMonitor(only_log_wandb=only, log_distributions=True)
    trainer = make_trainer(monitor, data=batches(1), loggers=[draws, plain])
    trainer.fit()
    assert activations(draws)
    assert bool(activations(plain)) is not only
    assert draws.drawn["activations/distribution/net_input.0"].shape == (16,)
    trainer.close()


def test_without_one_that_draws_all_are_told():
    trainer = make_trainer(ActivationMonitor(), data=batches(1))
    trainer.fit()
    assert activations(memory_of(trainer))
    trainer.close()


def test_a_compiled_model_is_looked_into_and_stays_compiled():
    trainer = make_trainer(
        ActivationMonitor("10ba"), data=batches(2), compile_config={"backend": "aot_eager"}
    )
    trainer.fit()
    assert "activations/l2_norm/net_input.0" in activations(memory_of(trainer))
    assert trainer.state.model._compiled_call_impl is not None
    trainer.close()


def test_what_has_no_numbers_is_passed_over():
    monitor, metrics = ActivationMonitor(), {}
    odd = [torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.long), None, "text", {"a": 1}]
    monitor.recursively_add_metrics(metrics, "m", "_output.0", odd)
    assert metrics == {}
    monitor.recursively_add_metrics(metrics, "m", "_output.0", [None, (torch.ones(2, 3),)])
    assert "activations/average/m_1_0_output.0" in metrics


def test_kurtosis():
    torch.manual_seed(0)
    assert compute_kurtosis(torch.randn(4, 100000)).mean() == pytest.approx(3, abs=0.1)
    assert compute_kurtosis(torch.tensor([1.0, -1.0])) == 1
    half = torch.full((2, 8), 300.0, dtype=torch.float16)
    half[:, 0] = 0
    metrics = {}
    ActivationMonitor().add_metrics(metrics, "m", "", half)
    assert all(torch.isfinite(value) for value in metrics.values())


def test_intervals():
    with pytest.warns(UserWarning, match="interval=5 is short"):
        assert ActivationMonitor(5).interval == "5ba"
    assert ActivationMonitor("1ep").interval == "1ep"
    for wrong in ("10sp", "0ba"):
        with pytest.raises(ValueError, match="interval="):
            ActivationMonitor(wrong)
