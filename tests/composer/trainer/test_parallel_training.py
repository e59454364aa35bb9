"""The Trainer on two and four ranks, replicated and sharded, does what it does on one."""

import itertools
import shutil
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Trainer
from composer.algorithms import GradientClipping
from composer.core import DataSpec, Evaluator
from composer.utils import dist
from composer.utils.gradients import total_norm
from tests.composer.distributed.sharded_models import batch, classifier
from tests.launch import run_ranks

STEPS = 20
CLIPPING = {"norm": 0.05, "value": 0.004, "adaptive": 0.01}
SHARDINGS: dict[str, Any] = {
    "ddp": None,
    "fsdp": {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}},
    "fsdp2": {"fsdp2": {"activation_checkpointing": True}},
    "hsdp": {"fsdp2": {"data_parallel_replicate_degree": 2}},
}


class Records(Callback):
    """Keeps losses and the norms of the accumulated gradients."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def after_train_batch(self, state: Any, logger: Any) -> None:
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        self.norms.append(total_norm(gradients).item())

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.total_loss_dict["loss/train/total"]))


def loader(rows: int = 64, batch_size: int = 16, drop_last: bool = True) -> DataLoader[Any]:
    data = TensorDataset(*batch(rows, seed=1))
    return DataLoader(
        data,
        batch_size=batch_size // dist.get_world_size(),
        sampler=dist.get_sampler(data, drop_last=drop_last),
    )


def trainer_of(parallelism: Any, model: Any = None, **settings: Any) -> Trainer:
    model = classifier() if model is None else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    settings = {
        "train_dataloader": loader(),
        "max_duration": f"{STEPS}ba",
        "optimizers": torch.optim.AdamW(trained, lr=1e-2),
        "seed": 3,
        "progress_bar": False,
        **settings,
    }
    return Trainer(model=model, parallelism_config=parallelism, device="cpu", **settings)


def curves(parallelism: Any, clipping: str, microbatch: int | None) -> list[list[float]]:
    records = Records()
    trainer = trainer_of(
        parallelism,
        callbacks=records,
        algorithms=GradientClipping(clipping, CLIPPING[clipping]),
        device_train_microbatch_size=microbatch,
    )
    trainer.fit()
    assert trainer.state.fsdp_enabled == (parallelism is not None and dist.get_world_size() > 1), (
        "sharded if that was asked for"
    )
    assert int(trainer.state.timestamp.sample) == STEPS * 16
    return [records.losses, records.norms]


def every_curve(
    shardings: list[str], clippings: list[str], microbatches: list[int | None]
) -> dict[tuple[str, str, int | None], list[list[float]]]:
    return {
        each: curves(SHARDINGS[each[0]], *each[1:])
        for each in itertools.product(shardings, clippings, microbatches)
    }


@pytest.fixture(scope="module")
def one_process() -> dict[str, torch.Tensor]:
    return {clipping: torch.tensor(curves(None, clipping, None)) for clipping in CLIPPING}


# Of every sharding some here, and all of it in the slow tests.
@pytest.mark.parametrize(
    "ranks, asked",
    [
        (2, (["ddp", "fsdp2"], ["norm"], [None, 2])),
        (4, (["hsdp"], ["norm"], [None])),
        pytest.param(
            2, (["ddp", "fsdp", "fsdp2"], list(CLIPPING), [None, 2]), marks=pytest.mark.slow
        ),
        pytest.param(4, (["hsdp"], list(CLIPPING), [None, 2]), marks=pytest.mark.slow),
    ],
    ids=["some of two", "some of four", "all of two", "all of four"],
)
def test_B102_B103_losses_and_norms_are_those_of_one_process(
    one_process: dict[str, torch.Tensor], ranks: int, asked: Any
) -> None:
    found = run_ranks(every_curve, ranks, *asked)
    for each in found:
        assert each == found[0], "all ranks log the same"
    for (name, clipping, microbatch), pair in found[0].items():
        worst = (torch.tensor(pair) - one_process[clipping]).abs().max().item()
        assert worst < 1e-5, (name, clipping, microbatch)


def test_one_process_shards_nothing_but_recomputes() -> None:
    trainer = trainer_of({"fsdp": {"activation_checkpointing": True}})
    assert not trainer.state.fsdp_enabled
    names = {type(module).__name__ for module in trainer.state.model.modules()}
    assert "CheckpointWrapper" in names
    trainer.fit()


def batches(rows: slice, size: int) -> list[Any]:
    inputs, targets = batch(24, seed=2)
    return list(zip(inputs[rows].split(size), targets[rows].split(size), strict=True))


def _uneven(parallelism: Any, own: list[slice]) -> tuple[float, float, int, int]:
    """Ranks with different numbers of micro-batches, and of evaluation batches."""
    rows, eval_rows = own[2 * dist.get_global_rank() :][:2]
    records = Records()
    trainer = trainer_of(
        parallelism,
        train_dataloader=DataSpec(batches(rows, 24)),
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=DataSpec(batches(eval_rows, 4)),
            device_eval_microbatch_size=2,
        ),
        device_train_microbatch_size=2,
        max_duration="4ba",
        callbacks=records,
    )
    trainer.fit()
    trainer.eval()
    accuracy = trainer.state.eval_metrics["eval"]["MulticlassAccuracy"].compute().item()
    outputs = trainer.predict(batches(eval_rows, 4))
    return records.losses[-1], accuracy, int(trainer.state.eval_timestamp.sample), len(outputs)


def test_ranks_may_have_different_numbers_of_batches() -> None:
    own = [slice(0, 6), slice(8, 18), slice(6, 8), slice(18, 20)]
    (loss, accuracy, samples, predicted), other = run_ranks(_uneven, 2, {"fsdp2": {}}, own)
    assert other == (loss, accuracy, samples, 1)
    assert (samples, predicted) == (12, 3)
    expected = _uneven(None, [slice(0, 8), slice(8, 20)])
    assert abs(loss - expected[0]) < 1e-5
    assert abs(accuracy - expected[1]) < 1e-6


class LowRank(torch.nn.Module):
    """A frozen layer with a trained correction of low rank beside it."""

    def __init__(self, around: torch.nn.Linear) -> None:
        super().__init__()
        self.base = around.requires_grad_(False)
        self.lora_A = torch.nn.Linear(around.in_features, 2, bias=False)
        self.lora_B = torch.nn.Linear(2, around.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def special(kind: str) -> Any:
    model = classifier()
    module: Any = model.module
    if kind == "frozen":
        module.blocks[0].requires_grad_(False)
    elif kind == "lora":
        torch.manual_seed(5)
        model.requires_grad_(False)
        for block in module.blocks:
            block[0] = LowRank(block[0])
    return model


def _special(kind: str) -> tuple[list[float], list[float]]:
    records = Records()
    trainer = trainer_of(
        {"fsdp2": {"mixed_precision": "FULL"}},
        special(kind),
        callbacks=records,
        algorithms=GradientClipping("norm", 0.05),
    )
    trainer.fit()
    return records.losses, records.norms


def _every_special() -> dict[str, Any]:
    return {kind: _special(kind) for kind in ("frozen", "lora")}


def test_frozen_parameters_and_adapters() -> None:
    for kind, pair in run_ranks(_every_special, 2)[0].items():
        worst = (torch.tensor(pair) - torch.tensor(_special(kind))).abs().max().item()
        assert worst < 1e-5, kind


def _saved_and_resumed(folder: str) -> dict[str, Any]:
    """Trains 6 batches at once, and 3 and 3 with a file in between, by several loads."""
    sharding: dict[str, Any] = {"state_dict_type": "full", "activation_checkpointing": True}
    whole = trainer_of({"fsdp2": sharding}, max_duration="6ba")
    whole.fit()
    expected = whole.state.state_dict()
    first = trainer_of(
        {"fsdp2": sharding},
        max_duration="3ba",
        save_folder=folder,
        save_filename="{batch}.pt",
        save_interval="3ba",
        run_name="run",
    )
    first.fit()
    found = {}
    for name, parallelism in {
        "sharded": {"fsdp2": sharding},
        "sharded, rank 0 reads": {"fsdp2": {**sharding, "load_monolith_rank0_only": True}},
        "replicas": None,
    }.items():
        trainer = trainer_of(parallelism, max_duration="6ba", load_path=f"{folder}/3.pt")
        trainer.fit()
        found[name] = _worst(trainer.state.state_dict(), expected)
    return found


def _worst(state: dict[str, Any], expected: dict[str, Any]) -> float:
    if dist.get_global_rank():
        return 0.0
    assert state["model"].keys() == expected["model"].keys()
    pairs = [(state["model"][name], value) for name, value in expected["model"].items()]
    ours, theirs = (each["optimizers"]["AdamW"]["state"] for each in (state, expected))
    assert ours.keys() == theirs.keys()
    pairs += [(ours[name][key], value) for name in theirs for key, value in theirs[name].items()]
    return max((one - other).abs().max().item() for one, other in pairs)


def test_one_file_holds_a_sharded_run(tmp_path: Any) -> None:
    found = run_ranks(_saved_and_resumed, 2, str(tmp_path))[0]
    assert found["sharded"] == found["sharded, rank 0 reads"] == 0.0
    assert found["replicas"] < 1e-6
    trainer = trainer_of(None, max_duration="6ba", load_path=f"{tmp_path}/3.pt")
    with pytest.warns(UserWarning, match="random states of 2 ranks"):
        trainer.fit()
    assert int(trainer.state.timestamp.sample) == 6 * 16


# Inductor needs a compiler of C++; the graphs are the same without.
BACKEND = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
VARIANTS: dict[str, dict[str, Any]] = {
    "prefetching": {"parallelism_config": {"fsdp2": {"num_units_to_prefetch": 1}}},
    "compiled": {"compile_config": {"backend": "aot_eager"}},
}
COMPILED: dict[str, dict[str, Any]] = {
    "whole": {"compile_config": {"backend": BACKEND}},
    "blocks": {"compile_config": {"backend": BACKEND, "per_block": True}},
    "blocks that are kept whole": {
        "parallelism_config": {"fsdp2": {"reshard_after_forward": False}},
        "compile_config": {"backend": BACKEND},
    },
    "replicas": {"parallelism_config": None, "compile_config": {"backend": BACKEND}},
    "blocks of replicas": {
        "parallelism_config": None,
        "compile_config": {"backend": BACKEND, "per_block": True},
    },
}


def _variants(asked: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Trains on two ranks with one more feature each."""
    found = {}
    for name, settings in asked.items():
        records = Records()
        parallelism = settings.pop("parallelism_config", {"fsdp2": {"activation_checkpointing": 1}})
        trainer = trainer_of(
            parallelism,
            callbacks=records,
            algorithms=GradientClipping("norm", CLIPPING["norm"]),
            **settings,
        )
        trainer.fit()
        if "compile_config" in settings:
            modules = trainer.state.model.modules()
            assert any(module._compiled_call_impl is not None for module in modules)
        found[name] = [records.losses, records.norms]
    return found


@pytest.mark.parametrize(
    "asked", [VARIANTS, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["few", "compiled"]
)
def test_features_beside_sharding(asked: Any, one_process: dict[str, torch.Tensor]) -> None:
    for name, pair in run_ranks(_variants, 2, asked)[0].items():
        assert (torch.tensor(pair) - one_process["norm"]).abs().max().item() < 1e-5, name


def _disagreeing() -> list[list[float]]:
    """Ranks that build different weights train with rank 0's."""
    found = []
    for parallelism in ({"fsdp2": {}}, None):
        records = Records()
        model = classifier(seed=3 + dist.get_global_rank())
        trainer_of(parallelism, model, callbacks=records).fit()
        found.append(records.losses)
    return found


def test_ranks_with_different_weights_take_rank_zeros() -> None:
    sharded, replicated = run_ranks(_disagreeing, 2)[0]
    expected = Records()
    trainer_of(None, callbacks=expected).fit()
    for losses in (sharded, replicated):
        worst = (torch.tensor(losses) - torch.tensor(expected.losses)).abs().max().item()
        assert worst < 1e-5


def _overflowed() -> tuple[bool, float, bool]:
    """Scales sharded gradients; one rank's overflow must leave out the step on all."""
    trainer = trainer_of({"fsdp2": {}})
    model, optimizer = trainer.state.model, trainer.state.optimizers[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [parameter.to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    part = batch(8)
    scaler.scale(model.loss(model(part), part)).backward()
    if dist.get_global_rank() == 1:
        next(model.parameters()).grad.to_local()[0] = float("inf")  # type: ignore[union-attr]
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    after = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
    kept = all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    scale = scaler.get_scale()
    optimizer.zero_grad()
    scaler.scale(model.loss(model(part), part)).backward()
    scaler.step(optimizer)
    after = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
    moved = any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return kept, scale, moved


def test_an_overflow_on_one_rank_leaves_out_the_step_on_all() -> None:
    assert run_ranks(_overflowed, 2) == [(True, 2.0, True)] * 2
