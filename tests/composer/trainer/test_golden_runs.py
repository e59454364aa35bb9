"""Training runs equal those recorded with Composer 0.32 (those without a speed-up algorithm)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Trainer
from composer import algorithms as composer_algorithms
from composer import optim as composer_optim
from composer.models import ComposerClassifier

GOLDEN = Path(__file__).parents[2] / "golden" / "trainer"
PLAIN = {
    "adamw_cosine_warmup": (
        "CosineAnnealingWithWarmupScheduler",
        {"t_warmup": "2ba", "alpha_f": 0.1},
    ),
    "adamw_no_scheduler": None,
    "adamw_wd1e-5_default": None,
    "sgdw_multistep": ("MultiStepScheduler", {"milestones": ["3ba", "6ba"], "gamma": 0.5}),
    "sgdw_nesterov_dampening": ("CosineAnnealingScheduler", {}),
    "adamw_mb2": ("CosineAnnealingWithWarmupScheduler", {"t_warmup": "2ba", "alpha_f": 0.1}),
    "adamw_mb3": ("CosineAnnealingWithWarmupScheduler", {"t_warmup": "2ba", "alpha_f": 0.1}),
    "adamw_mb4": ("CosineAnnealingWithWarmupScheduler", {"t_warmup": "2ba", "alpha_f": 0.1}),
    "clip_norm": None,
    "clip_value": None,
    "clip_adaptive": None,
    "dict_loss_no_total": None,
}
CLIPPING = {
    "clip_norm": ("norm", 0.1),
    "clip_value": ("value", 0.02),
    "clip_adaptive": ("adaptive", 0.01),
}
RECORDS = {r["name"]: r for r in json.loads((GOLDEN / "runs.json").read_text())}


class TwoLosses(ComposerClassifier):
    """The recorded run whose loss is a dict without a total."""

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return {"ce": super().loss(outputs, batch), "size": 0.1 * outputs.pow(2).mean()}


class Note(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.lrs: list[float] = []
        self.norms: list[float] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.lrs.append(state.optimizers[0].param_groups[0]["lr"])

    def after_train_batch(self, state: Any, logger: Any) -> None:
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        self.norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(state.total_loss_dict["loss/train/total"])


def optimizer_of(record: dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = getattr(composer_optim, record["optimizer"])
    known = {
        "DecoupledAdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
        "DecoupledSGDW": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    }[record["optimizer"]]
    kwargs = {k: v for k, v in record["optimizer_defaults"].items() if k in known}
    return optimizer(model.parameters(), **kwargs)


@pytest.mark.parametrize("name", PLAIN)
def test_run_equals_the_record(name: str) -> None:
    record, data = RECORDS[name], np.load(GOLDEN / "data.npz")
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 4),
    )
    start = {
        k[len("mlp.") :]: torch.from_numpy(data[k]) for k in data.files if k.startswith("mlp.")
    }
    wrapper = TwoLosses if name == "dict_loss_no_total" else ComposerClassifier
    model = wrapper(net, num_classes=4)
    net.load_state_dict(start)
    note = Note()
    scheduler = None
    if PLAIN[name] is not None:
        kind, kwargs = PLAIN[name]
        scheduler = getattr(composer_optim, kind)(**kwargs)
    clipping = []
    if name in CLIPPING:
        kind, threshold = CLIPPING[name]
        clipping = [
            composer_algorithms.GradientClipping(clipping_type=kind, clipping_threshold=threshold)
        ]
    rows = TensorDataset(torch.from_numpy(data["X"]), torch.from_numpy(data["Y"]))
    trainer = Trainer(
        model=model,
        optimizers=optimizer_of(record, model),
        schedulers=scheduler,
        algorithms=clipping,
        train_dataloader=DataLoader(rows, batch_size=record["batch_size"]),
        max_duration=record["max_duration"],
        device_train_microbatch_size=record["microbatch"],
        seed=17,
        callbacks=note,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    assert note.losses == pytest.approx(record["loss"], abs=1e-5)
    assert note.lrs == pytest.approx([lr for (lr,) in record["lr_used"]], abs=1e-9)
    assert note.norms == pytest.approx(record["grad_norm_before_step"], rel=1e-4)
    final = np.load(GOLDEN / "final_weights.npz")
    recorded = [key for key in final.files if key.startswith(f"{name}|")]
    assert len(recorded) == 6
    weights = model.state_dict()
    for key in recorded:
        value = weights["module." + key.split(".", 1)[1]].numpy()
        np.testing.assert_allclose(value, final[key], atol=1e-5, rtol=0)
