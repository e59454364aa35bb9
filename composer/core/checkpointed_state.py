"""The part of the State that goes into a checkpoint and comes out of it; a base of State.

It touches no file: ``composer.checkpoint`` writes and reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core import _state_dict
from composer.core.model_state import (
    get_model_state,
    get_optimizer_state,
    get_state_names,
    set_model_state,
    set_optimizer_state,
    strip_ddp_prefix,
    whole_model_wanted,
)
from composer.core.precision import Precision
from composer.core.protocols import DescribesItself
from composer.core.serializable import Serializable
from composer.core.timestamp import Timestamp
from composer.core.watched_list import WatchedList
from composer.devices.device import Device
from composer.utils import dist
from composer.utils.collect_env import get_composer_env_dict
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.misc import is_model_ddp, is_model_fsdp, unwrap_model
from composer.utils.parallelism import FSDP2Config, FSDPConfig


class CheckpointedState(Serializable):
    """What a checkpoint keeps of a run; `State` has the attributes that are declared here."""

    model: torch.nn.Module
    device: Device
    device_train_microbatch_size: int | float | None
    timestamp: Timestamp
    rank_zero_seed: int
    run_name: str
    scaler: Any
    save_metrics: bool
    train_metrics: dict[str, Any]
    eval_metrics: dict[str, dict[str, Any]]
    dataset_state: dict[str, Any] | None
    dataset_resumption: dict[str, Any]
    _resumed_dataset: Any = None
    autoresume: bool = False
    """Whether the run goes on when it is restarted: what lies under its name is its own."""
    loaded_batch_size: int | None = None
    """Samples of a batch over all ranks, as the loader of the loaded checkpoint's run made them."""
    surplus_batches: int = 0
    """Batches trained in excess of those that as much data makes now, if their size was changed."""
    serialized_attributes: list[str]
    _optimizers: list[Optimizer]
    _schedulers: list[Any]
    _algorithms: list[Any]
    _callbacks: WatchedList[Any]
    _train_dataloader: Iterable[Any] | None
    _precision: Precision
    _fsdp_config: FSDPConfig | None
    _fsdp2_config: FSDP2Config | None

    # How the model is wrapped, which decides how it is gathered

    @property
    def is_model_ddp(self) -> bool:
        """Whether the model is wrapped for distributed data parallel training."""
        return is_model_ddp(self.model)

    @property
    def fsdp_config(self) -> FSDP2Config | FSDPConfig | None:
        """How the model is sharded."""
        return self._fsdp2_config or self._fsdp_config

    @fsdp_config.setter
    def fsdp_config(self, config: FSDP2Config | FSDPConfig) -> None:
        if isinstance(config, FSDP2Config):
            self._fsdp2_config = config
        elif isinstance(config, FSDPConfig):
            self._fsdp_config = config
        else:
            raise TypeError(f"fsdp_config is a FSDPConfig or FSDP2Config, not {type(config)}")

    @property
    def fsdp_config_version(self) -> int:
        """0 without sharding, 1 for the settings of older recipes, 2 for today's."""
        if self._fsdp2_config is not None:
            return 2
        return 0 if self._fsdp_config is None else 1

    @property
    def fsdp_enabled(self) -> bool:
        """Whether any part of the model is sharded."""
        return any(is_model_fsdp(module) for module in self.model.modules())

    @property
    def fsdp_state_dict_type(self) -> str | None:
        """How a sharded model goes into a checkpoint, "full" or "sharded"; None if it is not."""
        if not self.fsdp_enabled:
            return None
        return "full" if self.fsdp_config is None else self.fsdp_config.state_dict_type

    @property
    def fsdp_sharded_state_dict_enabled(self) -> bool:
        """Whether checkpoints are sharded."""
        return self.fsdp_state_dict_type == "sharded"

    @property
    def load_monolith_rank0_only(self) -> bool:
        """Whether only rank 0 reads a one-file checkpoint."""
        config = self.fsdp_config
        return (
            config is not None
            and config.state_dict_type == "full"
            and config.load_monolith_rank0_only
        )

    # Checkpoints

    def _gathering(self, whole: bool = False) -> dict[str, bool]:
        whole = whole or self.fsdp_state_dict_type == "full"
        return {"full": whole, "cpu_offload": whole}

    def get_model_state_dict(self, whole: bool = False) -> dict[str, Any]:
        """Returns the weights and buffers by name; sharded ones as the config says, or whole."""
        return get_model_state(self.model, **self._gathering(whole))

    def get_optim_state_dict(self, whole: bool = False) -> dict[str, Any]:
        """Returns the state of the first optimizer, under its class's name; or gathers it whole."""
        return {
            _state_dict.qualname(optimizer): get_optimizer_state(
                self.model, optimizer, **self._gathering(whole)
            )
            for optimizer in self._optimizers[:1]
        }

    def _get_integrations_state_dict(self) -> dict[str, Any]:
        model = unwrap_model(self.model)
        if not isinstance(model, DescribesItself):
            return {}
        base = self._sum_of_base()
        told = {} if base is None else {"sum_of_base": base}
        return {"huggingface": model.get_metadata(), **told}

    def _sum_of_base(self) -> int | None:
        ask = getattr(unwrap_model(self.model), "sum_of_base", None)
        return None if ask is None else ask()

    def check_base(self, state: dict[str, Any]) -> None:
        """Refuses adapters of another base; all ranks must call it, and agree."""
        own, saved = self._sum_of_base(), state.get("integrations", {}).get("sum_of_base")
        if own is not None and any(dist.all_gather_object(saved not in (None, own))):
            raise ValueError(
                "The checkpoint holds adapters alone, and they were trained on another base: the "
                "bits of its weights sum to another number. Load that base (the same files, "
                "config_overrides, seed of what is initialised, and dtype of weights), or take the "
                "adapters onto this one with load_ignore_keys: [state/integrations]."
            )

    def _get_state_metadata(self) -> dict[str, Any]:
        metadata = {
            "composer_env_info": get_composer_env_dict(),
            "torch_version": str(torch.__version__),  # a plain string: it loads with weights_only
            "device": self.device.name,
            "precision": self._precision.value,
            "world_size": dist.get_world_size(),
            "device_train_microbatch_size": self.device_train_microbatch_size,
        }
        loader: Any = self._train_dataloader
        if hasattr(loader, "batch_size"):
            metadata["train_dataloader_batch_size"] = loader.batch_size
        if self.surplus_batches:
            metadata["surplus_batches"] = self.surplus_batches
        return metadata

    def _get_dataset_state(self) -> dict[str, Any]:
        position = _state_dict.dataset_position(self._train_dataloader, self.timestamp)
        return {"train": position, "eval": {}}

    def _get_algorithms_state(self, whole: bool = False) -> list[tuple[str, dict[str, Any]]]:
        states = [(_state_dict.qualname(one), one.state_dict()) for one in self._algorithms]
        return _state_dict.gathered(states) if self._gathering(whole)["full"] else states

    def _get_train_metrics(self) -> dict[str, Any] | None:
        return _state_dict.save_metrics(self.train_metrics) if self.save_metrics else None

    def _get_eval_metrics(self) -> dict[str, Any] | None:
        if not self.save_metrics:
            return None
        return {
            label: _state_dict.save_metrics(metrics) for label, metrics in self.eval_metrics.items()
        }

    def state_dict(self, *, whole: bool = False, with_optimizers: bool = True) -> dict[str, Any]:
        """Returns everything that a checkpoint keeps of a run: the ``serialized_attributes``.

        ``model`` and ``optimizers`` are keyed by parameter names; ``schedulers``, ``callbacks``,
        ``scaler`` and ``timestamp`` by class names; ``algorithms`` is a list of (class name, state)
        pairs, in order; metrics are there only with ``save_metrics``.

        Args:
            whole: Gather what is sharded on rank 0, in its host's memory, whatever the config says.
            with_optimizers: Whether moments are collected.
        """
        savers: dict[str, Callable[[], Any]] = {
            "model": lambda: self.get_model_state_dict(whole),
            "optimizers": lambda: self.get_optim_state_dict(whole) if with_optimizers else None,
            "schedulers": lambda: _state_dict.save_by_class(self._schedulers),
            "algorithms": lambda: self._get_algorithms_state(whole),
            "callbacks": lambda: _state_dict.save_by_class(self._callbacks),
            "scaler": lambda: _state_dict.save_by_class(ensure_tuple(self.scaler)),
            "timestamp": lambda: _state_dict.save_by_class([self.timestamp]),
            "train_metrics": self._get_train_metrics,
            "eval_metrics": self._get_eval_metrics,
            "dataset_state": self._get_dataset_state,
        }
        saved = {
            name: savers[name]() if name in savers else getattr(self, name)
            for name in self.serialized_attributes
        }
        state = {name: value for name, value in saved.items() if value is not None}
        state["integrations"] = self._get_integrations_state_dict()
        state["metadata"] = self._get_state_metadata()
        return state

    def load_model_state(
        self, state_dict: dict[str, Any], logger: Any = None, strict: bool = True
    ) -> None:
        """Puts the weights of a checkpoint into the model.

        Algorithms that change the model must have done so: ``composer.checkpoint`` sees to it.

        Args:
            state_dict: What `state_dict` returned.
            logger: Not used; it is where callers have always given it.
            strict: Whether a name too few or too many is an error, or only warned about.

        Raises:
            RuntimeError: If names (``strict``) or shapes do not agree; all of them are listed.
        """
        del logger
        self.check_base(state_dict)
        weights = state_dict["model"]
        if state_dict.get("is_model_ddp", False):
            weights = strip_ddp_prefix(self.model, weights)
        names = self.names_of_base(weights)
        if names is None:
            missing, unexpected = set_model_state(
                self.model,
                weights,
                strict=strict,
                broadcast=self.load_monolith_rank0_only,
                **self._gathering(),
            )
        else:
            missing, unexpected = self._load_base(weights, names, strict)
        if missing or unexpected:
            warnings.warn(
                "The checkpoint does not fit the model. Not in the checkpoint, left as they were: "
                f"{_listed(missing)}. Not in the model, left out: {_listed(unexpected)}",
                category=UserWarning,
                stacklevel=2,
            )

    def names_of_base(self, weights: Iterable[str]) -> dict[str, str] | None:
        """Returns, for weights saved without adapters, their names by those they have under them.

        None if the model has no adapters, or the weights have.
        """
        model: Any = unwrap_model(self.model)
        if not getattr(model, "using_peft", False) or self.load_monolith_rank0_only:
            return None
        plain_name_of = model.plain_name_of
        if any(plain_name_of(name) != name for name in weights):
            return None
        with whole_model_wanted(self.model):
            own = get_state_names(self.model)
        names = {name: plain for name in own if (plain := plain_name_of(name)) is not None}
        return names if len(names) < len(own) else None

    def _load_base(
        self, weights: dict[str, Any], names: dict[str, str], strict: bool
    ) -> tuple[list[str], list[str]]:
        missing = sorted(set(names.values()) - weights.keys())
        unexpected = sorted(weights.keys() - set(names.values()))
        if strict and (missing or unexpected):
            raise RuntimeError(
                "The checkpoint holds neither these adapters nor their base. Not in it: "
                f"{_listed(missing)}. Not in the base: {_listed(unexpected)}"
            )
        found = {name: weights[plain] for name, plain in names.items() if plain in weights}
        with whole_model_wanted(self.model):
            set_model_state(self.model, found, strict=False, **self._gathering())
        return missing, unexpected

    def load_optim_state(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Puts the moments and settings of a checkpoint into the optimizer.

        An optimizer of another class than the saved one is warned about and starts anew.

        Args:
            state_dict: What `state_dict` returned.
            strict: Whether a parameter group that was not saved is an error.
        """
        saved = state_dict.get("optimizers") or {}
        for optimizer in self._optimizers:
            name = _state_dict.qualname(optimizer)
            # Collectives follow, so all ranks must agree on whether there is something to load.
            if not all(dist.all_gather_object(name in saved)):
                warnings.warn(
                    f"optimizers: {name} is not in the state_dict. Its state will not be restored.",
                    category=UserWarning,
                    stacklevel=2,
                )
                continue
            set_optimizer_state(
                self.model,
                optimizer,
                saved[name],
                strict=strict,
                broadcast=self.load_monolith_rank0_only,
                **self._gathering(),
            )

    def load_state_dict(
        self, state: dict[str, Any], logger: Any = None, strict: bool = False
    ) -> None:
        """Takes back everything that `state_dict` returned.

        Attributes that the checkpoint lacks stay as they are, callbacks and schedulers that it does
        not know are warned about, and those that only it knows are left out.

        Args:
            state: What `state_dict` returned, here or in an older release.
            logger: Not used; it is where callers have always given it.
            strict: Whether the names of the weights must agree.
        """
        state = _state_dict.without_legacy_names(state)
        metadata = state.get("metadata", {})
        if "timestamp" in state:
            self.loaded_batch_size = _state_dict.global_batch_size(
                metadata.get("train_dataloader_batch_size"), metadata.get("world_size")
            )
            self.surplus_batches = int(metadata.get("surplus_batches", 0))
        if "model" in state:
            self.load_model_state(state, logger, strict)
        else:
            self.check_base(state)
        loaders = {
            # Not strict: a parameter that never got a gradient has no moments to save or to load.
            "optimizers": lambda saved: self.load_optim_state({"optimizers": saved}, strict=False),
            "schedulers": lambda saved: self._load("schedulers", self._schedulers, saved),
            "algorithms": lambda saved: self._load("algorithms", self._algorithms, dict(saved)),
            "callbacks": lambda saved: self._load("callbacks", self._callbacks, saved),
            "scaler": self._load_scaler,
            "timestamp": self._load_timestamp,
            "train_metrics": lambda saved: _state_dict.load_metrics(self.train_metrics, saved),
            "eval_metrics": self._load_eval_metrics,
            "dataset_state": self._load_dataset_state,
        }
        for name in sorted(state.keys() & set(self.serialized_attributes) - {"model"}):
            if name in loaders:
                loaders[name](state[name])
            else:
                setattr(self, name, state[name])

    def _load(self, kind: str, objects: Iterable[Any], saved: Any) -> None:
        _state_dict.load_by_class(kind, objects, saved)

    def _load_scaler(self, saved: Mapping[str, Any]) -> None:
        # A scaler that was switched off saved an empty state, which one that is on would refuse.
        scalers = [
            one for one in ensure_tuple(self.scaler) if saved.get(_state_dict.qualname(one), 1)
        ]
        self._load("scaler", scalers, saved)

    def _load_timestamp(self, saved: Mapping[str, Any]) -> None:
        timestamp = self.timestamp.copy()  # others may hold the present one
        self._load("timestamp", [timestamp], saved)
        self.timestamp = timestamp

    def _load_eval_metrics(self, saved: Mapping[str, Any]) -> None:
        for label, metrics in self.eval_metrics.items():
            _state_dict.load_metrics(metrics, saved.get(label, {}))

    def _load_dataset_state(self, saved: dict[str, Any] | None) -> None:
        self.dataset_state = None if saved is None else dict(saved)
        self._resumed_dataset = None
        self._resume_train_dataset()

    def _resume_train_dataset(self) -> None:
        """Gives a train dataset that can take it, once, the position that a checkpoint had."""
        position = (self.dataset_state or {}).get("train")
        dataset: Any = getattr(self._train_dataloader, "dataset", None)
        if position is None:
            return
        self.dataset_resumption.pop("train", None)  # it may have been another dataset that took it
        if hasattr(dataset, "load_state_dict"):
            if dataset is not self._resumed_dataset:
                dataset.load_state_dict(position)
            self._resumed_dataset = dataset
            self.dataset_resumption["train"] = True

    def start_of_train_dataset(self) -> bool:
        """Tells whether the train dataset stands at a checkpoint's position, and forgets that.

        Whoever reads the dataset from now on moves it.
        """
        if self.dataset_state is not None:
            self.dataset_state["train"] = None
        self._resumed_dataset = None
        return bool(self.dataset_resumption.pop("train", False))


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "nothing"
