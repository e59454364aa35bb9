"""Whether the sections that name a component give it arguments that it takes."""

import difflib
import fnmatch
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry import registry
from llmfoundry.builders.declared_keys import declared_keys
from llmfoundry.config.problems import Problems, suggestion
from llmfoundry.utils.registry_utils import TypedRegistry

__all__ = ["check_components"]


@dataclass(frozen=True)
class _Section:
    """A mapping of a recipe that becomes the arguments of one component."""

    path: str
    kind: str
    name: Any
    settings: dict[str, Any]
    registries: tuple[TypedRegistry[Any], ...]
    provided: frozenset[str] = frozenset()
    """Arguments that the builder adds itself."""


def check_components(cfg: Mapping[str, Any], problems: Problems) -> None:
    """Notes components that do not exist, and arguments that they do not take or lack."""
    for section in _sections(cfg, problems):
        component = _find(section, problems)
        if component is not None:
            _check_arguments(section, component, problems)
    _check_tokenizer(cfg.get("tokenizer"), problems)


def _sections(cfg: Mapping[str, Any], problems: Problems) -> Iterator[_Section]:
    single = {
        "model": ("model", registry.models, {"tokenizer"}, {"name", "master_weights_dtype"}),
        "optimizer": (
            "optimizer",
            registry.optimizers,
            {"params", "model"},
            {"name", "disable_grad", "param_groups"},
        ),
        "scheduler": ("scheduler", registry.schedulers, set(), {"name"}),
        "train_loader": (
            "loader",
            registry.dataloaders,
            {"tokenizer", "device_batch_size"},
            {"name"},
        ),
    }
    for key, (kind, holder, provided, own) in single.items():
        settings = cfg.get(key)
        if isinstance(settings, dict):
            yield _named(key, kind, settings, holder, provided, own)
    yield from _eval_loaders(cfg.get("eval_loader"))
    by_name = {
        "callbacks": ("callback", (registry.callbacks, registry.callbacks_with_config)),
        "loggers": ("logger", (registry.loggers,)),
        "algorithms": ("algorithm", (registry.algorithms,)),
    }
    for key, (kind, holders) in by_name.items():
        entries = cfg.get(key)
        for name, settings in (entries if isinstance(entries, dict) else {}).items():
            if settings is not None and not isinstance(settings, dict):
                problems.add(
                    f"{key}.{name}",
                    f"must be a mapping of its arguments, or nothing; got {settings!r}.",
                )
                continue
            provided = {"train_config"} if name in registry.callbacks_with_config else set()
            yield _Section(
                f"{key}.{name}", kind, name, settings or {}, holders, frozenset(provided)
            )


def _eval_loaders(loaders: Any) -> Iterator[_Section]:
    listed = isinstance(loaders, list)
    for index, settings in enumerate(loaders if listed else [loaders]):
        if isinstance(settings, dict):
            yield _named(
                f"eval_loader[{index}]" if listed else "eval_loader",
                "loader",
                settings,
                registry.dataloaders,
                {"tokenizer", "device_batch_size"},
                {"name", "label"} if listed else {"name"},
            )


def _named(
    path: str,
    kind: str,
    settings: dict[str, Any],
    holder: TypedRegistry[Any],
    provided: set[str],
    own: set[str],
) -> _Section:
    arguments = {key: value for key, value in settings.items() if key not in own}
    return _Section(path, kind, settings.get("name"), arguments, (holder,), frozenset(provided))


def _find(section: _Section, problems: Problems) -> Any:
    """The component that a section names, or None with the reason noted."""
    known = [name for holder in section.registries for name in holder.names()]
    if section.name is None:
        problems.add(section.path, f"needs a name, one of {', '.join(sorted(known))}.")
        return None
    for holder in section.registries:
        if section.name in holder:
            try:
                return holder.get(section.name)
            except MissingConditionalImportError as error:
                problems.add(section.path, str(error))
                return None
    hint = suggestion(str(section.name), known)
    problems.add(section.path, f"there is no {section.kind} {section.name!r}. {hint}")
    return None


def _check_arguments(section: _Section, component: Any, problems: Problems) -> None:
    declared = declared_keys(component)
    parameters = _parameters(component)
    if parameters is not None:
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        names = {
            name
            for name, each in parameters.items()
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        }
        known = (names | declared.get("", frozenset())) - section.provided
        if not takes_any or "" in declared:
            for key in section.settings.keys() - known:
                problems.add_unknown(f"{section.path}.{key}", known)
        missing = [
            name
            for name in names - section.provided - section.settings.keys()
            if parameters[name].default is inspect.Parameter.empty
        ]
        for name in sorted(missing):
            problems.add(f"{section.path}.{name}", f"missing; {section.name} needs it.")
    _check_below(section.path, "", section.settings, declared, problems)


def _parameters(component: Any) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(component).parameters
    except (TypeError, ValueError):
        return None


def _check_below(
    root: str,
    path: str,
    settings: Mapping[str, Any],
    declared: Mapping[str, frozenset[str]],
    problems: Problems,
) -> None:
    """Checks the mappings below a component against what it has declared for them."""
    for key, value in settings.items():
        if not isinstance(value, dict):
            continue
        below = f"{path}.{key}" if path else key
        for pattern, known in declared.items():
            if pattern and _matches(below, pattern):
                for name in value.keys() - known:
                    problems.add_unknown(f"{root}.{below}.{name}", known)
        _check_below(root, below, value, declared, problems)


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True)
    )


# AutoTokenizer takes any argument without a word, so a slip of the pen would have no effect.
TOKENIZER_KEYS = frozenset(
    "add_bos_token add_eos_token add_prefix_space additional_special_tokens bos_token cache_dir "
    "chat_template clean_up_tokenization_spaces cls_token eos_token errors extra_special_tokens "
    "force_download from_slow gguf_file legacy local_files_only mask_token model_input_names "
    "model_max_length pad_token padding_side proxies revision sep_token split_special_tokens "
    "subfolder token tokenizer_type truncation_side trust_remote_code unk_token use_auth_token "
    "use_default_system_prompt use_fast".split()
)


def _check_tokenizer(tokenizer: Any, problems: Problems) -> None:
    if not isinstance(tokenizer, dict) or not tokenizer:
        return
    for key in tokenizer.keys() - {"name", "kwargs"}:
        problems.add_unknown(f"tokenizer.{key}", {"name", "kwargs"})
    name, kwargs = tokenizer.get("name"), tokenizer.get("kwargs") or {}
    if name is None:
        problems.add("tokenizer.name", "missing; give a folder, a hub name or a registered name.")
    if not isinstance(kwargs, dict):
        problems.add("tokenizer.kwargs", f"must be a mapping, got {kwargs!r}.")
        return
    known = TOKENIZER_KEYS
    if isinstance(name, str) and name in registry.tokenizers:
        known = known | (_parameters(registry.tokenizers.get(name)) or {}).keys()
    for key in kwargs.keys() - known:
        # A tokenizer may read arguments of its own, so only what looks misspelt is refused.
        if difflib.get_close_matches(key, known, n=1, cutoff=0.8):
            problems.add_unknown(f"tokenizer.kwargs.{key}", known)
