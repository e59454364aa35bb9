"""A checkpoint written by Composer 0.32 loads, and training goes on as recorded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from composer import Callback, Trainer
from composer.algorithms import GradientClipping
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW
from llmfoundry.models.mpt import ComposerMPTCausalLM

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"
RECORD = json.loads((GOLDEN / "record.json").read_text())
CHECKPOINT = GOLDEN / "mpt-mid-run-ep1-ba5-rank0.pt"


class Note(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.lrs: list[float] = []
        self.norms: list[float] = []
        self.times: list[list[int]] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.lrs.append(state.optimizers[0].param_groups[0]["lr"])

    def after_train_batch(self, state: Any, logger: Any) -> None:
        gradients = [p.grad.flatten() for p in state.model.parameters() if p.grad is not None]
        self.norms.append(float(torch.cat(gradients).norm()))

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(state.total_loss_dict["loss/train/total"])
        t = state.timestamp
        self.times.append([int(t.epoch), int(t.batch), int(t.sample), int(t.token)])


class Rows(torch.utils.data.Dataset):
    def __init__(self, ids: np.ndarray):
        self.ids = torch.from_numpy(ids).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index].clone()}


def train(max_duration: str, **loading: Any) -> tuple[Trainer, ComposerMPTCausalLM, Note]:
    model = ComposerMPTCausalLM(**RECORD["model_kwargs"])
    if not loading:
        model.load_state_dict(load_file(GOLDEN / "initial_weights.safetensors"))
    data, note = np.load(GOLDEN / "data.npz"), Note()
    rows = Rows(data[next(k for k in data.files if "train" in k)])
    trainer = Trainer(
        model=model,
        optimizers=DecoupledAdamW(
            model.parameters(), lr=5e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-4
        ),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="3ba", alpha_f=0.1),
        algorithms=GradientClipping(clipping_type="norm", clipping_threshold=0.5),
        train_dataloader=torch.utils.data.DataLoader(rows, batch_size=4),
        device_train_microbatch_size=2,
        max_duration=max_duration,
        seed=17,
        callbacks=note,
        progress_bar=False,
        **loading,
    )
    trainer.fit()
    trainer.close()
    return trainer, model, note


def assert_recorded(note: Note, name: str) -> None:
    record = RECORD[name]
    assert note.losses == pytest.approx(record["loss"], rel=1e-4)
    assert note.lrs == pytest.approx(record["lr_used_for_step"], abs=1e-9)
    assert note.norms == pytest.approx(record["grad_norm_after_clipping"], rel=1e-3)
    assert note.times == record["timestamp_epoch_batch_sample_token_at_batch_end"]


def assert_final_weights(model: torch.nn.Module) -> None:
    expected = load_file(GOLDEN / "weights_after_10ba.safetensors")
    actual = model.state_dict()
    assert expected.keys() <= actual.keys()
    for name, value in expected.items():
        mine = actual[name].clone()
        if name.endswith("Wqkv.bias"):
            # A bias of the keys shifts all scores of a query alike: its true gradient is zero, and
            # what Adam makes of the rounding noise is no result.
            keys = slice(RECORD["model_kwargs"]["d_model"], 2 * RECORD["model_kwargs"]["d_model"])
            mine[keys] = value[keys]
        torch.testing.assert_close(mine, value, atol=2e-4, rtol=0, msg=name)


def test_fresh_run_equals_the_record() -> None:
    _, model, note = train("10ba")
    assert_recorded(note, "full_run_10ba")
    assert_final_weights(model)


@pytest.mark.parametrize("end", [8, 10])
@pytest.mark.filterwarnings("ignore:.*is not in the state_dict")
@pytest.mark.filterwarnings("ignore:required_on_load algorithm")
def test_training_continues_from_an_upstream_checkpoint(end: int) -> None:
    trainer, model, note = train(f"{end}ba", load_path=str(CHECKPOINT))
    assert_recorded(note, f"continued_5_to_{end}")
    if end == 10:
        assert_final_weights(model)


def test_our_checkpoint_has_the_layout_of_upstream(tmp_path: Path) -> None:
    trainer, _, _ = train("5ba", save_folder=str(tmp_path), save_interval="5ba")
    ours = torch.load(tmp_path / "ep1-ba5-rank0.pt", weights_only=False)
    theirs = torch.load(CHECKPOINT, weights_only=False)
    assert list(ours) == list(theirs) == ["state", "rng"]
    assert list(ours["state"]) == list(theirs["state"])
    for key in ("model", "integrations", "timestamp", "schedulers", "dataset_state"):
        assert ours["state"][key].keys() == theirs["state"][key].keys(), key
    for name, tensor in theirs["state"]["model"].items():
        assert ours["state"]["model"][name].shape == tensor.shape
    (adam,) = ours["state"]["optimizers"]
    assert [adam] == list(theirs["state"]["optimizers"])
    for part in ("state", "param_groups"):
        mine, their = (c["state"]["optimizers"][adam][part] for c in (ours, theirs))
        assert type(mine) is type(their)
        if part == "state":
            assert mine.keys() == their.keys()
            for name in their:
                assert mine[name].keys() == their[name].keys()
    assert ours["state"]["algorithms"][0][0] == "GradientClipping"
    assert ours["rng"][0].keys() == theirs["rng"][0].keys()
