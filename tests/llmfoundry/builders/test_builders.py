"""From names and settings to objects."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer.algorithms import GradientClipping
from composer.callbacks import SpeedMonitor
from composer.core.callback import Callback
from composer.loggers import InMemoryLogger
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler
from llmfoundry import registry
from llmfoundry.builders.components import (
    build_algorithm,
    build_callback,
    build_logger,
    build_metric,
    build_scheduler,
)
from llmfoundry.builders.dataloaders import (
    add_metrics_to_eval_loaders,
    build_dataloader,
    build_eval_loaders,
)
from llmfoundry.builders.evaluators import build_evaluators
from llmfoundry.builders.models import build_composer_model
from llmfoundry.builders.optimizers import _extract_param_groups, build_optimizer
from llmfoundry.builders.tokenizers import build_tokenizer
from llmfoundry.utils.registry_utils import RegistryError, save_registry
from tests.llmfoundry.config.recipes import TinyModel
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


class NeedsRecipe(Callback):
    def __init__(self, train_config: Any, more: int = 0) -> None:
        self.train_config = train_config
        self.more = more


def test_plug_ins_by_name() -> None:
    settings = {"batch_log_interval": 3}
    assert build_callback("optimizer_monitor", settings).batch_log_interval == 3
    assert isinstance(build_callback("speed_monitor"), SpeedMonitor)
    assert isinstance(build_logger("inmemory"), InMemoryLogger)
    clipping = {"clipping_type": "norm", "clipping_threshold": 1.0}
    assert isinstance(build_algorithm("gradient_clipping", clipping), GradientClipping)
    assert build_algorithm("z_loss", {"coefficient": 1e-3}).coefficient == 1e-3
    assert build_algorithm("batch_size_warmup", {"schedule": {"0dur": 2}}).lr_scaling == "sqrt"
    assert build_algorithm("seq_length_curriculum", {"min_seq_length": 64}).num_cycles == 1
    assert build_algorithm("token_dropping", {"initial_kept": 0.5}).initial_kept == 0.5
    assert build_algorithm("fp8", {"skip": ["lm_head", "Wqkv"]}).skip == ("lm_head", "Wqkv")
    assert build_callback("stability_monitor", {"action": "skip_step"}).action == "skip_step"
    assert isinstance(
        build_scheduler("linear_decay_with_warmup", {"t_warmup": "1ba"}), LinearWithWarmupScheduler
    )
    assert type(build_metric("token_accuracy")).__name__ == "TokenAccuracy"


def test_unknown_names_and_wrong_types() -> None:
    with pytest.raises(RegistryError, match="Cant't find 'x' in registry llmfoundry -> callbacks"):
        build_callback("x")
    with save_registry():
        registry.loggers.register("wrong", func=SpeedMonitor)
        with pytest.raises(ValueError, match="Expected wrong to be of type"):
            build_logger("wrong")
    with pytest.raises(TypeError):
        build_callback("speed_monitor", {"windows": 3})


def test_callbacks_that_ask_for_the_recipe_get_their_own_copy() -> None:
    recipe = {"seed": [1]}
    with save_registry():
        registry.callbacks_with_config.register("needs", func=NeedsRecipe)
        made = build_callback("needs", {"more": 2}, recipe)
        assert made.train_config == recipe and made.train_config["seed"] is not recipe["seed"]
        with pytest.raises(ValueError, match="reserved"):
            build_callback("needs", {"train_config": 1}, recipe)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 2)
        self.norm = torch.nn.LayerNorm(2)


def names_of(model: torch.nn.Module, group: dict[str, Any]) -> set[str]:
    return {name for name, p in model.named_parameters() if any(p is q for q in group["params"])}


def test_parameter_groups_first_match_wins() -> None:
    model = Net()
    settings = {
        "lr": 1.0,
        "param_groups": [
            {"param_str_match": "bias$", "weight_decay": 0.0},
            {"param_str_match": "^norm|^first", "lr": 0.5},
        ],
    }
    optimizer = build_optimizer(model, "decoupled_adamw", settings)
    assert isinstance(optimizer, DecoupledAdamW)
    assert [names_of(model, group) for group in optimizer.param_groups] == [
        {"second.weight"},
        {"first.bias", "second.bias", "norm.bias"},
        {"first.weight", "norm.weight"},
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 1.0, 0.5]
    assert "param_groups" in settings, "the recipe is left as it is"


def test_frozen_parameters() -> None:
    model = Net()
    build_optimizer(model, "decoupled_adamw", {"disable_grad": "norm"})
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == [
        "norm.weight",
        "norm.bias",
    ]
    build_optimizer(model, "decoupled_lionw", {"disable_grad": ["first", "second.bias"]})
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["second.weight"]


def test_optimizer_settings_without_effect_are_refused() -> None:
    model = Net()
    with pytest.raises(ValueError, match="matches no parameter"):
        build_optimizer(model, "decoupled_adamw", {"disable_grad": "nrom"})
    with pytest.raises(ValueError, match="matches no parameter"):
        build_optimizer(model, "decoupled_adamw", {"param_groups": [{"param_str_match": "nrom"}]})
    with pytest.raises(ValueError, match="param_str_match"):
        build_optimizer(model, "decoupled_adamw", {"param_groups": [{"lr": 1}]})
    with pytest.raises(ValueError, match="`params`"):
        build_optimizer(model, "decoupled_adamw", {"params": []})
    assert len(list(_extract_param_groups(model))) == 6


def test_tokenizer_from_a_folder(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path / "t")
    tokenizer = build_tokenizer(str(tmp_path / "t"), {})
    assert tokenizer.model_max_length == int(1e30)
    assert build_tokenizer(str(tmp_path / "t"), {"model_max_length": 7}).model_max_length == 7


def test_tokenizers_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Tokenizer folder './nowhere' does not exist"):
        build_tokenizer("./nowhere", {})
    with pytest.raises(OSError, match=re.escape("save_pretrained('FOLDER')")):
        build_tokenizer("no-such-owner/no-such-name", {})
    tokenizer = train_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "t")
    with pytest.raises(ValueError, match="must have an eos_token."):
        build_tokenizer(str(tmp_path / "t"), {})


def test_model_and_its_dtype() -> None:
    class Weighted(TinyModel):
        def __init__(self, tokenizer: Any) -> None:
            super().__init__(tokenizer, 1)
            self.weight = torch.nn.Parameter(torch.ones(2))

    with save_registry():
        registry.models.register("weighted", func=Weighted)
        for name, dtype in (
            ("bf16", torch.bfloat16),
            ("f16", torch.float16),
            (None, torch.float32),
        ):
            model = build_composer_model("weighted", {}, None, master_weights_dtype=name)
            assert model.weight.dtype == dtype
        assert build_composer_model("weighted", {}, None, torch.device("meta")).weight.is_meta
        with pytest.raises(ValueError, match="Invalid master_weights_dtype: f8"):
            build_composer_model("weighted", {}, None, master_weights_dtype="f8")


def test_loaders_and_labels() -> None:
    def loader(tokenizer: Any, device_batch_size: int, rows: int) -> Any:
        return torch.utils.data.DataLoader(list(range(rows)), batch_size=device_batch_size)

    with save_registry():
        registry.dataloaders.register("rows", func=loader)
        settings = {"name": "rows", "rows": 6}
        assert len(build_dataloader(settings, None, 2)) == 3
        assert settings == {"name": "rows", "rows": 6}
        with pytest.raises(ValueError, match="A loader needs a name"):
            build_dataloader({"rows": 6}, None, 2)
        assert [e.label for e in build_eval_loaders(settings, None, 2)] == ["eval"]
        several = [settings | {"label": "a"}, settings | {"label": "b"}]
        evaluators = build_eval_loaders(several, None, 2)
        assert [e.label for e in evaluators] == ["eval/a", "eval/b"]
        with pytest.raises(ValueError, match="one loader or a list"):
            build_eval_loaders("rows", None, 2)  # type: ignore[arg-type]


def test_metrics_of_loaders_come_first() -> None:
    made: Any = [SimpleNamespace(metric_names=["x"]), SimpleNamespace(metric_names=[])]
    ordered = add_metrics_to_eval_loaders(made, ["a", "b"])
    assert [each.metric_names for each in ordered] == [["a", "b"], ["x"]]


def test_tasks_are_refused_in_words() -> None:
    with pytest.raises(NotImplementedError, match="icl_tasks"):
        build_evaluators(
            None,
            [{}],
            None,
            tokenizer=None,
            device_eval_batch_size=1,
            icl_seq_len=1,
            icl_subset_num_batches=None,
        )
