"""The page of a saved model (README.md): what it is, how it was made, and who may use it."""

import json
import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from composer.core.state import State
from composer.models.adapters import has_adapters, maybe_get_underlying_model
from composer.utils.object_store.redaction import without_secrets
from llmfoundry._version import __version__

__all__ = ["UNKNOWN", "ModelCard", "card_of_run", "licence_of"]

UNKNOWN = "unknown"
log = logging.getLogger(__name__)

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SECRET = re.compile(
    r"(^|[_.-])((api|private|access|account)[_-]?key|(auth|access|hf|hub|api|sas|session|bearer)[_-]?"
    r"token|secret\w*|passw(or)?d|passphrase|credentials?)$|(^|\.)token$",
    re.IGNORECASE,
)
"""The name of a setting that is a credential; ``eos_token`` and ``max_tokens`` are none."""
HIDDEN = "***"
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "peft")
DATA = ("train_loader", "eval_loader")
TRAINING = (
    "max_duration",
    "max_seq_len",
    "global_train_batch_size",
    "precision",
    "seed",
    "optimizer",
    "scheduler",
    "algorithms",
)


@dataclass(frozen=True)
class ModelCard:
    """What a page tells of a model."""

    title: str
    summary: str
    """A sentence on what was trained, and for how long."""
    license: str | None = None
    """An identifier such as ``apache-2.0``; None takes the base model's."""
    base_model: str | None = None
    """The folder or the hub's name of the model that training started from."""
    is_adapter: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = None
    """The run's settings, if it was started from a recipe; a few sections of it are told."""

    def render(self) -> str:
        """Returns the page, without credentials that settings or the command may hold."""
        licence, source = self._licence()
        parts = [
            f"---\n{_yaml(self._metadata(licence))}---\n\n# {self.title}\n\n{self.summary}",
            f"Base model: {self.base_model or 'none'}. Licence: {licence} ({source}).",
            f"## Metrics\n\n{_table(('metric', 'value'), _numbers(self.metrics))}",
            f"## Data\n\n{self._sections(DATA)}",
            f"## Model\n\n{self._sections(('model', 'tokenizer'))}",
            f"## Training\n\n{self._sections(TRAINING)}\n\nCommand:\n\n```\n{_command()}\n```",
            f"## Versions\n\n{_table(('package', 'version'), _versions())}",
        ]
        return without_secrets("\n\n".join(parts) + "\n")

    def _licence(self) -> tuple[str, str]:
        if self.license is not None:
            return self.license, "set by whoever trained the model"
        found = None if self.base_model is None else licence_of(self.base_model)
        if found is not None:
            return found, "the base model's"
        return UNKNOWN, "nobody set it, and no base model tells one; ask before you use the model"

    def _metadata(self, licence: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "license": licence,
            "library_name": "peft" if self.is_adapter else "transformers",
            "pipeline_tag": "text-generation",
            "tags": ["llm-foundry"],
        }
        if _is_hub_name(self.base_model):
            metadata["base_model"] = self.base_model
        loader = (self.recipe or {}).get("train_loader") or {}
        dataset = (loader.get("dataset") or {}).get("hf_name")
        if _is_hub_name(dataset):
            metadata["datasets"] = [dataset]
        return metadata

    def _sections(self, names: Sequence[str]) -> str:
        if self.recipe is None:
            return "Unknown: the run was not started from a recipe."
        told = {name: self.recipe[name] for name in names if self.recipe.get(name) is not None}
        return f"```yaml\n{_yaml(told)}```"


def card_of_run(
    state: State,
    model: Any,
    license: str | None,
    base_model: str | None,
    recipe: Mapping[str, Any] | None,
) -> ModelCard:
    """Describes a model as it is now in a run.

    Args:
        state: The run's State.
        model: A copy of the transformers model, with or without adapters.
        license: As in :class:`ModelCard`, and so are the others.
        base_model: What training started from.
        recipe: The run's settings.
    """
    now, inner = state.timestamp, maybe_get_underlying_model(model)
    values = {
        **state.total_loss_dict,
        **{f"metrics/train/{key}": each for key, each in state.train_metric_values.items()},
        **{f"metrics/eval/{key}": each for key, each in state.eval_metric_values.items()},
    }
    count = f"{sum(each.numel() for each in model.parameters()):,} parameters"
    return ModelCard(
        title=state.run_name,
        summary=(
            f"A {type(inner).__name__} with {count}, "
            f"trained by LLM Foundry for {now.epoch.value} epochs, {now.batch.value} batches, "
            f"{now.sample.value} samples and {now.token.value} tokens."
        ),
        license=license,
        base_model=base_model,
        is_adapter=has_adapters(model),
        metrics={key: float(value) for key, value in values.items() if _is_number(value)},
        recipe=recipe,
    )


def _is_number(value: Any) -> bool:
    is_scalar = isinstance(value, torch.Tensor) and value.numel() == 1
    return is_scalar or isinstance(value, (int, float))


def licence_of(model: str) -> str | None:
    """Returns the licence on the page of a model in a folder or in the hub's cache, if any.

    A page that cannot be read is warned about, and tells none.

    Args:
        model: The folder, or the hub's name; nothing is fetched.
    """
    import huggingface_hub

    page: Any = Path(model, "README.md")
    if not page.exists() and HUB_NAME.fullmatch(model):
        page = huggingface_hub.try_to_load_from_cache(model, "README.md")
    if not isinstance(page, (str, Path)) or not Path(page).exists():
        return None
    try:
        card = huggingface_hub.ModelCard.load(page, ignore_metadata_errors=True)
    except (OSError, ValueError, yaml.YAMLError) as error:  # it is somebody else's page
        log.warning("%s cannot be read, so it tells no licence: %s", page, error)
        return None
    return card.data.get("license")


def _is_hub_name(name: Any) -> bool:
    is_name = isinstance(name, str) and HUB_NAME.fullmatch(name) is not None
    return is_name and not Path(name).exists()


def _yaml(value: Any) -> str:
    plain = json.loads(json.dumps(value, default=str))
    return yaml.safe_dump(_hidden(plain), sort_keys=False, allow_unicode=False)


def _hidden(value: Any) -> Any:
    """Returns nested settings without credentials; whether there is one (true, null) is told."""
    if isinstance(value, list):
        return [_hidden(each) for each in value]
    if not isinstance(value, dict):
        return value
    shown = {}
    for key, each in value.items():
        is_secret = SECRET.search(str(key)) and not isinstance(each, (bool, type(None)))
        shown[key] = HIDDEN if is_secret else _hidden(each)
    return shown


def _hidden_text(text: str) -> str:
    """Returns an argument's value; of nested settings, without credentials."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    shown = _hidden(value)
    return text if shown == value else json.dumps(shown, default=str)


def _table(heads: tuple[str, str], rows: Mapping[str, str]) -> str:
    if not rows:
        return "None."
    lines = [heads, ("---", "---"), *rows.items()]
    return "\n".join(f"| {left} | {right} |" for left, right in lines)


def _numbers(metrics: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.6g}" for name, value in metrics.items()}


def _command() -> str:
    """Returns the command that was run, without credentials in its arguments."""
    words, is_secret = ["python"], False
    for word in sys.orig_argv[1:]:
        is_nested = word.startswith(("{", "["))
        name, sign, value = ("", "", "") if is_nested else word.partition("=")
        names_secret = SECRET.search(name.lstrip("-+~")) is not None
        if sign:
            words.append(f"{name}={HIDDEN if names_secret else _hidden_text(value)}")
        else:
            words.append(HIDDEN if is_secret and not word.startswith("--") else _hidden_text(word))
        is_secret = names_secret and not sign and word.startswith("-")
    return shlex.join(words)


def _versions() -> dict[str, str]:
    found = {"llmfoundry": __version__, "python": sys.version.partition(" ")[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
