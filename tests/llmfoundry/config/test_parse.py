"""Recipes: what is accepted, and that all faults are told at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from llmfoundry import registry
from llmfoundry.config.loading import apply_overrides, load_recipe
from llmfoundry.config.parse import parse_train_config
from llmfoundry.config.problems import ConfigError
from llmfoundry.config.schema import TrainConfig
from llmfoundry.utils.registry_utils import save_registry
from llmfoundry.utils.warnings import VersionedDeprecationWarning
from tests.llmfoundry.config.recipes import RECIPE, TinyModel


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with save_registry():
        registry.models.register("tiny_test_model", func=TinyModel)
        yield


def parse(*overrides: str, text: str = RECIPE) -> TrainConfig:
    return parse_train_config(apply_overrides(OmegaConf.create(text), overrides))


def faults(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*overrides)
    return str(caught.value)


def test_a_right_recipe() -> None:
    config = parse()
    assert config.max_seq_len == 32
    assert config.device_train_batch_size == 8
    assert config.device_train_grad_accum == 2
    assert config.device_eval_batch_size == 4
    assert config.accumulate_train_batch_on_tokens
    assert config.seed == 17
    assert config.variables == {"seq": 32}


def test_all_unknown_keys_at_once_with_suggestions() -> None:
    text = faults(
        "sede=3",
        "model.d_modle=4",
        "optimizer.learning_rte=1",
        "train_loader.drop_lst=true",
        "train_loader.dataset.shufle=true",
        "callbacks={speed_monitor: {window_sizes: 3}}",
        "fsdp_config={sharding_stratgy: FULL_SHARD}",
        "tokenizer.kwargs.model_max_lenght=3",
        "whatever.else=1",
    )
    for path, meant in {
        "sede": "seed",
        "model.d_modle": "d_model",
        "train_loader.drop_lst": "drop_last",
        "train_loader.dataset.shufle": "shuffle",
        "callbacks.speed_monitor.window_sizes": "window_size",
        "fsdp_config.sharding_stratgy": "sharding_strategy",
        "tokenizer.kwargs.model_max_lenght": "model_max_length",
    }.items():
        assert f"{path}: unknown key. Did you mean {meant!r}?" in text
    assert "optimizer.learning_rte: unknown key. Known: amsgrad, betas" in text
    assert text.startswith("Unused parameters [")
    assert "whatever" in text and "`variables`" in text


def test_unknown_names_and_missing_arguments() -> None:
    text = faults(
        "callbacks={speed_monitr: {}}",
        "optimizer.name=adamw_decoupled",
        "scheduler.name=inv_sqrt_with_warmup",
        "loggers={nowhere: null}",
        "precision=bf16",
    )
    assert "there is no callback 'speed_monitr'. Did you mean 'speed_monitor'?" in text
    assert "optimizer: there is no optimizer 'adamw_decoupled'" in text
    assert "scheduler.t_scale: missing; inv_sqrt_with_warmup needs it." in text
    assert "loggers.nowhere: there is no logger" in text
    assert "precision: there is no precision 'bf16'. Did you mean 'amp_bf16'?" in text


def test_missing_and_wrong_kinds() -> None:
    recipe: Any = OmegaConf.create(RECIPE)
    del recipe["max_duration"]
    recipe.seed = "seventeen"
    recipe.eval_first = 3
    recipe.callbacks = ["speed_monitor"]
    with pytest.raises(ConfigError) as caught:
        parse_train_config(recipe)
    text = str(caught.value)
    assert "max_duration: missing" in text
    assert "seed: must be a whole number, got 'seventeen' (str)" in text
    assert "eval_first: must be true or false, got 3 (int)" in text
    assert "callbacks: must be a mapping or null, got" in text


@pytest.mark.parametrize("number", ["1e-5", "1E-5", "0.00001", "1.0e-05"])
def test_b113_numbers_in_the_file_and_on_the_command_line(number: str) -> None:
    assert parse(f"optimizer.lr={number}").optimizer["lr"] == 1e-5
    text = RECIPE.replace("lr: 1e-5", f"lr: {number}")
    assert parse(text=text).optimizer["lr"] == 1e-5


def test_whole_floats_are_whole_numbers() -> None:
    assert parse("global_train_batch_size=16.0", "seed=3.0").seed == 3


def test_variables_are_free_and_interpolate() -> None:
    config = parse("variables.anything={a: [1, 2]}", "variables.seq=64")
    assert config.variables["anything"] == {"a": [1, 2]}
    assert config.max_seq_len == config.tokenizer["kwargs"]["model_max_length"] == 64
    assert (
        parse(
            "variables=null",
            "max_seq_len=4",
            "tokenizer.kwargs=null",
            "train_loader.dataset.max_seq_len=4",
        ).variables
        == {}
    )


def test_b87_override_of_one_field_keeps_its_siblings() -> None:
    config = parse("train_loader.dataset.shuffle=false")
    assert config.train_loader["dataset"]["split"] == "train"
    assert config.train_loader["dataset"]["shuffle"] is False


def test_dotted_keys_below_nothing_and_into_lists() -> None:
    lists = ["eval_loader=[${train_loader}, ${train_loader}]"]
    labels = ["eval_loader.0.label=a", "eval_loader.1.label=b", "eval_loader.1.dataset.split=val"]
    config = parse("callbacks.lr_monitor=null", "callbacks.speed_monitor.window_size=3")
    assert config.callbacks == {"lr_monitor": None, "speed_monitor": {"window_size": 3}}
    recipe: Any = OmegaConf.create(RECIPE)
    recipe.eval_loader = [OmegaConf.to_container(recipe.train_loader, resolve=False)] * 2
    config = parse_train_config(apply_overrides(recipe, labels))
    assert [each["label"] for each in config.eval_loader] == ["a", "b"]
    assert [each["dataset"]["split"] for each in config.eval_loader] == ["train", "val"]
    assert lists


@pytest.mark.parametrize("bad", ["--seed=3", "seed", "=3", "seed.x=3"])
def test_overrides_of_another_form(bad: str) -> None:
    with pytest.raises(ConfigError, match="key=value|no keys of its own"):
        apply_overrides(OmegaConf.create(RECIPE + "seed: 1\n"), [bad])


def test_b114_batch_that_does_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    text = faults()
    assert "Global batchsize 8 is not divisible by (world size 3" in text
    assert "6 or 9" in text


def test_batch_sizes_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    config = parse()
    assert (config.device_train_batch_size, config.device_train_microbatch_size) == (2, 2)
    assert config.n_gpus == 4
    assert parse("device_train_microbatch_size=auto").device_eval_batch_size == 1


def test_settings_without_effect() -> None:
    text = faults(
        "save_overwrite=true",
        "autoresume=true",
        "load_weights_only=true",
        "eval_first=true",
        "device_train_batch_size=3",
        "icl_seq_len=3",
    )
    for name in ("save_overwrite", "autoresume", "load_weights_only", "eval_first", "icl_seq_len"):
        assert f"{name}: " in text and "has no effect without" in text
    assert "device_train_batch_size=3 has no effect" in text
    assert parse("save_folder=null", "save_overwrite=true").save_overwrite


def test_old_keys_are_translated_with_one_warning() -> None:
    with pytest.warns(VersionedDeprecationWarning) as caught:
        config = parse("global_seed=5", "tokenizer_name=some/tokenizer")
    assert len(caught) == 1
    assert "global_seed -> seed" in str(caught[0].message)
    assert config.seed == 5
    with pytest.raises(ValueError, match="old name of seed"):
        parse("global_seed=5", "seed=6")


def test_what_is_gone_or_not_there_says_what_to_do() -> None:
    text = faults("loggers={mosaicml: {}}", "icl_tasks=[{label: x}]", "device=cpu")
    assert "loggers.mosaicml: this is gone: the platform is gone; use wandb" in text
    assert "icl_tasks: in-context-learning evaluation is not part of this version" in text
    assert "device: this is gone" in text


def test_interpolation_of_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    (tmp_path / "r.yaml").write_text(RECIPE + "run_name: ${oc.env:SECRET}\n")
    recipe = load_recipe(tmp_path / "r.yaml")
    with pytest.raises(Exception, match="oc.env"):
        parse_train_config(recipe)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_recipe(tmp_path / "no.yaml")


def test_the_resolved_recipe_parses_to_itself() -> None:
    config = parse()
    names = TrainConfig.__dataclass_fields__
    assert parse_train_config({name: getattr(config, name) for name in names}) == config


def test_transforms_of_others_may_take_keys_of_their_own() -> None:
    def take(cfg: dict[str, Any]) -> dict[str, Any]:
        cfg["seed"] = cfg.pop("my_seed", cfg.get("seed", 17))
        return cfg

    registry.config_transforms.register("take", func=take)
    assert parse("my_seed=9").seed == 9


def test_every_field_has_its_manual_entry() -> None:
    import ast
    import inspect

    from llmfoundry.config import schema

    body = ast.parse(inspect.getsource(schema.TrainConfig)).body[0].body  # type: ignore[attr-defined]
    fields = [index for index, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    for index in fields:
        assert isinstance(body[index + 1], ast.Expr), body[index].target.id
