"""A recipe from the file to the trained model, and again."""

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from composer.trainer.trainer import Trainer
from llmfoundry import registry
from llmfoundry.command_utils import train as train_as_a_name
from llmfoundry.command_utils import train_from_yaml, validate_from_yaml
from llmfoundry.command_utils.train import train
from llmfoundry.config.problems import ConfigError
from llmfoundry.utils.registry_utils import save_registry
from streaming.base.format.mds.writer import MDSWriter
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "yamls" / "mpt-tiny-cpu.yaml"


def write_rows(folder: Path, rows: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(folder)) as out:
        for _ in range(rows):
            start = generator.integers(0, 250)
            out.write({"tokens": ((np.arange(16) + start) % 300).astype(np.int32)})


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A recipe sets up logging for its process; a test must not leave that behind."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    root.handlers[:] = handlers


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "tokens" / "train", 64, 0)
    write_rows(folder / "tokens" / "val", 10, 1)
    train_tokenizer().save_pretrained(folder / "tokenizer")
    return folder


def overrides(data: Path, save: Path, **more: Any) -> list[str]:
    settings = {
        "variables.data_local": data / "tokens",
        "variables.tokenizer": data / "tokenizer",
        "variables.max_seq_len": 16,
        "model.d_model": 16,
        "model.n_heads": 2,
        "model.n_layers": 1,
        "model.vocab_size": 304,
        "scheduler.t_warmup": "2ba",
        "max_duration": "6ba",
        "eval_interval": "3ba",
        "save_interval": "2ba",
        "save_folder": f"{save}/{{run_name}}",
        "precision": "fp32",
        "log_to_console": "false",
        "loggers": "{inmemory: {}}",
    }
    return [f"{key}={value}" for key, value in (settings | more).items()]


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in trainer.state.model.parameters()])


def test_from_the_recipe_to_checkpoints(data: Path, tmp_path: Path) -> None:
    trainer = train_from_yaml(str(RECIPE), overrides(data, tmp_path, log_config="true"))
    assert trainer.state.timestamp.batch.value == 6
    metrics = {name: float(v) for name, v in trainer.state.eval_metric_values.items()}
    assert {"LanguageCrossEntropy", "LanguagePerplexity", "TokenAccuracy"} <= metrics.keys()
    assert list(trainer.state.eval_metrics) == ["eval"]
    folder = tmp_path / "mpt-tiny-cpu"
    assert (folder / "latest-rank0.pt").exists() and (folder / "ep0-ba6-rank0.pt").exists()
    logger = next(each for each in trainer.logger.destinations if hasattr(each, "data"))
    assert logger.hyperparameters["n_params"] == weights(trainer).numel()
    assert logger.hyperparameters["global_train_batch_size"] == 8
    trainer.close()


def test_b25_a_finished_run_ends_well_and_can_be_prolonged_from_its_own_recipe(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = overrides(data, tmp_path)
    first = train_from_yaml(str(RECIPE), arguments)
    first.close()
    again = train_from_yaml(str(RECIPE), arguments)
    assert "already reached max_duration=6ba" in capsys.readouterr().err
    assert torch.equal(weights(again), weights(first))
    again.close()
    saved = tmp_path / "mpt-tiny-cpu" / "config.yaml"
    longer = train_from_yaml(str(saved), ["max_duration=8ba"])
    assert longer.state.timestamp.batch.value == 8
    longer.close()
    assert yaml.safe_load(saved.read_text())["max_duration"] == "8ba"


def test_a_stopped_run_goes_on_to_the_same_weights(data: Path, tmp_path: Path) -> None:
    whole = train_from_yaml(str(RECIPE), overrides(data, tmp_path / "whole"))
    split = overrides(data, tmp_path / "split")
    recipe = OmegaConf.load(RECIPE)
    assert recipe.autoresume

    class Stop(Exception):
        pass

    from composer.core.callback import Callback

    class StopAt(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch.value == 5:
                raise Stop

    with save_registry():
        registry.callbacks.register("stop_at", func=StopAt)
        with pytest.raises(Stop):
            train_from_yaml(str(RECIPE), [*split, "callbacks={stop_at: {}}"])
    resumed = train_from_yaml(str(RECIPE), split)
    assert resumed.state.timestamp.batch.value == 6
    assert torch.equal(weights(resumed), weights(whole))


def test_microbatches_and_token_weights_do_not_change_the_result(
    data: Path, tmp_path: Path
) -> None:
    results = [
        weights(
            train_from_yaml(
                str(RECIPE),
                overrides(
                    data, tmp_path / str(size), device_train_microbatch_size=size, eval_interval=0
                ),
            )
        )
        for size in (8, 3)
    ]
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)


def test_only_a_checkpoint(data: Path, tmp_path: Path) -> None:
    arguments = overrides(data, tmp_path, only_composer_checkpoint="true", autoresume="false")
    trainer = train_from_yaml(str(RECIPE), arguments)
    assert trainer.state.timestamp.batch.value == 0
    assert (tmp_path / "mpt-tiny-cpu" / "ep0-ba0-rank0.pt").exists()


def test_code_paths_and_metadata(data: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(
        "from llmfoundry.registry import callbacks\n"
        "from composer.core.callback import Callback\n"
        "@callbacks.register_class('mine')\n"
        "class Mine(Callback):\n"
        "    def __init__(self, factor): self.factor = factor\n"
    )
    with save_registry():
        trainer = train_from_yaml(
            str(RECIPE),
            [
                *overrides(data, tmp_path, max_duration="3ba"),
                f"code_paths=[{tmp_path / 'code'}]",
                "callbacks={mine: {factor: 3}}",
                "metadata={team: blue}",
                "log_config=true",
            ],
        )
        mine = next(each for each in trainer.state.callbacks if type(each).__name__ == "Mine")
        assert mine.factor == 3
        logger = next(each for each in trainer.logger.destinations if hasattr(each, "data"))
        assert logger.hyperparameters["team"] == "blue"
        with pytest.raises(ValueError, match="already present in the config"):
            train_from_yaml(str(RECIPE), [*overrides(data, tmp_path), "metadata={seed: 3}"])


def test_sharding_on_one_process_is_left_out_with_a_warning(data: Path, tmp_path: Path) -> None:
    arguments = overrides(
        data,
        tmp_path,
        max_duration="3ba",
        save_folder="null",
        autoresume="false",
        **{"model.init_device": "meta"},
    )
    with pytest.warns(UserWarning) as caught:
        train_from_yaml(str(RECIPE), [*arguments, "fsdp_config={sharding_strategy: FULL_SHARD}"])
    texts = " ".join(str(each.message) for each in caught)
    assert "fsdp_config has no meaning with one process" in texts
    assert "built on the CPU" in texts


def test_recipes_that_cannot_run_build_nothing(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'd_model'"):
        train_from_yaml(str(RECIPE), [*overrides(data, tmp_path), "model.d_modle=3"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="`label`"):
        recipe = OmegaConf.load(RECIPE)
        recipe.eval_loader = [recipe.eval_loader]
        train(OmegaConf.merge(recipe, OmegaConf.from_dotlist(overrides(data, tmp_path))))


def test_the_file_and_the_function_of_one_name() -> None:
    assert callable(train_as_a_name) and train_as_a_name.train_from_yaml is train_from_yaml


def test_validate_tells_what_a_recipe_comes_to(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = validate_from_yaml(str(RECIPE), overrides(data, tmp_path, max_duration="2ep"))
    assert summary.parameters == 304 * 16 + 12 * 16 * 16 + 3 * 16
    assert summary.state_bytes >= 16 * summary.parameters
    assert (summary.tokens_per_step, summary.samples_per_epoch, summary.steps) == (128, 64, 16)
    assert "is valid" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    for duration, steps in (("3ba", 3), ("1000tok", 8), ("20sp", 3)):
        arguments = overrides(data, tmp_path, max_duration=duration)
        assert validate_from_yaml(str(RECIPE), arguments).steps == steps


def test_a_mixture_of_experts(data: Path, tmp_path: Path) -> None:
    recipe = str(ROOT / "yamls" / "mpt-tiny-moe-cpu.yaml")
    callback = {"callbacks.mbmoe_tok_per_expert.log_interval": 2}
    arguments = overrides(data, tmp_path, log_config="true", **callback)
    experts = 4 * 2 * 16 * 32
    expected = 304 * 16 + 4 * 16 * 16 + 4 * 16 + experts + 3 * 16
    assert validate_from_yaml(recipe, arguments).parameters == expected
    trainer = train_from_yaml(recipe, arguments)
    logger: Any = next(each for each in trainer.logger.destinations if hasattr(each, "data"))
    assert logger.hyperparameters["n_params"] == expected
    assert logger.hyperparameters["n_active_params"] == expected - experts // 2
    parts = [float(logger.data[f"loss/train/{name}"][-1][1]) for name in ("loss", "lbl")]
    assert float(logger.data["loss/train/total"][-1][1]) == pytest.approx(sum(parts))
    assert 0.01 <= parts[1] < 0.02
    assert len(logger.data["mb_moe/all_layers_max_tpe"]) == 3
    trainer.close()
    shared = {"model.ffn_config.moe_world_size": 2}
    with pytest.raises(ValueError, match="moe_world_size=2 ranks share experts, which needs fsdp"):
        train_from_yaml(recipe, overrides(data, tmp_path, **callback, **shared))


@pytest.mark.parametrize(
    "recipe", sorted((ROOT / "yamls").glob("mpt-*.yaml")), ids=lambda p: p.stem
)
def test_every_recipe_parses(recipe: Path) -> None:
    from llmfoundry.config.loading import load_recipe
    from llmfoundry.config.parse import parse_train_config

    assert parse_train_config(load_recipe(recipe)).model["name"] == "mpt_causal_lm"


def test_under_the_launcher(data: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "composer",
        "-n",
        "1",
        "scripts/train/train.py",
        str(RECIPE),
        *overrides(data, tmp_path, max_duration="2ba", eval_interval=0),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = functools.partial(
        subprocess.run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mpt-tiny-cpu" / "ep0-ba2-rank0.pt").exists()
    wrong = run([*command, "sede=3"])
    assert wrong.returncode != 0
    assert "sede: unknown key. Did you mean 'seed'?" in wrong.stderr + wrong.stdout
