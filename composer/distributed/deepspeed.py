"""DeepSpeed's ZeRO as a backend of the Trainer: the one file that knows the package ``deepspeed``.

The Trainer goes on cutting, weighing and counting batches; DeepSpeed's engine runs the passes,
reduces gradients and steps. Checkpoints have the layout of every other backend, so that a run may
go on under another one.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

from composer.utils import dist
from composer.utils.import_helpers import MissingConditionalImportError
from composer.utils.model_wrapper import ModelWrapper

__all__ = ["ZeroModel", "prepare_deepspeed"]

# They look at more than one element of a parameter at a time; DeepSpeed shows them flat pieces.
_NOT_BY_ELEMENT = frozenset(
    ("Adafactor", "Adagrad", "DecoupledAdaLRLion", "DecoupledClipLion", "Muon", "SparseAdam")
)


def _import_deepspeed(device_type: str) -> Any:
    # It would choose by the packages that are installed, and asks the environment first.
    os.environ.setdefault("DS_ACCELERATOR", device_type)
    os.environ.setdefault("LOCAL_RANK", str(dist.get_local_rank()))
    try:
        deepspeed: Any = importlib.import_module("deepspeed")
    except ImportError as error:
        raise MissingConditionalImportError("deepspeed", "deepspeed") from error
    # It calls collectives by names that torch gave up, in each step; no user can change that.
    warnings.filterwarnings(
        "ignore", message="`torch.distributed.[a-z_]*` is deprecated", category=FutureWarning
    )
    # Built by a compiler at start, for collectives in shared memory; gloo does without.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    chosen = deepspeed.accelerator.get_accelerator().device_name()
    if chosen.partition(":")[0] != device_type:
        raise ValueError(
            f"DeepSpeed computes on {chosen}, and the Trainer on {device_type}: set DS_ACCELERATOR="
            f"{device_type} before deepspeed is imported."
        )
    return deepspeed


def prepare_deepspeed(
    model: torch.nn.Module, optimizer: Optimizer, config: dict[str, Any], device: torch.device
) -> ZeroModel:
    """Hands a model and its optimizer to DeepSpeed. All ranks call it, in a process group.

    Args:
        model: The model; its parameters are changed in place.
        optimizer: Its optimizer, which from now on sees this rank's flat pieces of parameters.
        config: What :func:`engine_settings` of ``deepspeed_settings`` returned.
        device: Where this rank computes.

    Raises:
        MissingConditionalImportError: If DeepSpeed is not installed.
        ValueError: If the optimizer has other parameters than the model, or cannot work on pieces.
    """
    kind = next(
        (c.__name__ for c in type(optimizer).__mro__ if c.__name__ in _NOT_BY_ELEMENT), None
    )
    if kind is not None:
        raise ValueError(
            f"deepspeed_config does not combine with {kind}: ZeRO shows an optimizer flat pieces "
            "of parameters, and it needs whole ones. Use an optimizer that works by element, such "
            "as DecoupledAdamW, or parallelism_config."
        )
    names = {parameter: name for name, parameter in model.named_parameters()}
    if any(
        parameter not in names for group in optimizer.param_groups for parameter in group["params"]
    ):
        raise ValueError(
            "The same model must be passed to the optimizer and trainer: the optimizer has "
            "parameters that the model does not have"
        )
    groups = [
        [names[parameter] for parameter in group["params"]]
        for group in optimizer.param_groups
        if group["params"]
    ]
    deepspeed = _import_deepspeed(device.type)
    deepspeed.init_distributed(dist_init_required=False)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    return ZeroModel(deepspeed, engine, optimizer, groups)


class ZeroModel(ModelWrapper):
    """A model whose moments, gradients (stage 2) and weights (stage 3) are spread over the ranks.

    Args:
        package: The package ``deepspeed``.
        engine: Its engine.
        optimizer: The optimizer that it steps.
        group_names: Of each of its groups, the names of the parameters.
    """

    engine: Any

    def __init__(
        self, package: Any, engine: Any, optimizer: Optimizer, group_names: list[list[str]]
    ) -> None:
        super().__init__()
        self.package = package
        self.module = engine.module
        self.__dict__["engine"] = engine  # not a child: each weight has one name
        self.optimizer = optimizer
        self.group_names = group_names
        self._parameters_by_name = dict(self.module.named_parameters())
        self._has_gradients = False
        # Gradients are the engine's to clear: those of pieces are buffers if they are offloaded.
        optimizer.zero_grad = self._drop_gradients  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        return self.engine(*args, **kwargs)

    def at_microbatch(self, is_last: bool, _: bool = True) -> AbstractContextManager[None]:
        """Says whether the next passes are the last of a step."""
        self.engine.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of a loss."""
        self._has_gradients = True
        self.engine.backward(loss)

    def step(self) -> None:
        """Clips gradients, moves the weights and clears the gradients."""
        self.engine.step()
        self._has_gradients = False

    def _drop_gradients(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of a step that was left out; there are none after a step."""
        del set_to_none
        if not self._has_gradients:
            return
        self._has_gradients = False
        zero = self.engine.optimizer
        zero.zero_grad()
        if self._is_partitioned:
            zero.averaged_gradients = {}
        else:
            for each in (zero.averaged_gradients, zero.all_grad_tensors):
                each.update(dict.fromkeys(each))
        zero.reset_cpu_buffers()

    # What is spread, and how

    @property
    def _is_partitioned(self) -> bool:
        return self.engine.zero_optimization_stage() == 3

    @property
    def _pieces(self) -> list[torch.Tensor]:
        """This rank's flat pieces of the weights, which the optimizer knows."""
        zero = self.engine.optimizer
        if self._is_partitioned:
            return zero.fp32_partitioned_groups_flat
        return zero.single_partition_of_fp32_groups

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name in (name for names in self.group_names for name in names):
            parameter = self._parameters_by_name[name]
            if parameter.requires_grad:
                yield name, parameter

    def _local(self, parameter: Any, value: torch.Tensor) -> torch.Tensor:
        """Returns this rank's piece of a whole tensor, padded as DeepSpeed does (stage 3)."""
        size = parameter.ds_tensor.numel()
        rank = torch.distributed.get_rank(parameter.ds_process_group)
        piece = value.flatten()[rank * size : (rank + 1) * size]
        return torch.nn.functional.pad(piece, (0, size - piece.numel()))

    def _put(self, parameter: Any, value: torch.Tensor, moment: str | None = None) -> None:
        """Writes this rank's piece of a whole fp32 weight, or of a moment of it."""
        utils = self.package.utils
        value = value.to(device=parameter.device, dtype=torch.float32)
        if self._is_partitioned:
            value = self._local(parameter, value)
            put, put_moment = utils.safe_set_local_fp32_param, utils.safe_set_local_optimizer_state
        else:
            put, put_moment = utils.safe_set_full_fp32_param, utils.safe_set_full_optimizer_state
        if moment is None:
            put(parameter, value)
        else:
            put_moment(parameter, value, moment)

    def _link_moments(self) -> None:
        """Has DeepSpeed find a parameter's moments in those of the pieces (stages 1 and 2).

        DeepSpeed links them once the first group has stepped, when others have no moments yet.
        """
        if not self._is_partitioned:
            link = self.package.utils.lazy_init_hp_params_optimizer_state
            for group, piece in zip(self.engine.optimizer.bit16_groups, self._pieces, strict=True):
                link(group, piece, self.optimizer.state)

    # Checkpoints

    @torch.no_grad()
    def get_model_state(self) -> dict[str, Any]:
        """Returns the weights (in fp32) and buffers by name on rank 0, and nothing elsewhere."""
        trained = {id(parameter) for _, parameter in self._trained()}
        found: dict[str, Any] = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            whole = self._whole(value, id(value) in trained)
            if dist.get_global_rank() == 0:
                found[name] = whole
        return found

    def _whole(self, value: Any, is_trained: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if is_trained:
            return self.package.utils.safe_get_full_fp32_param(value).cpu()
        with self.package.zero.GatheredParameters([value], enabled=self._is_partitioned):
            return value.detach().clone().cpu()

    @torch.no_grad()
    def set_model_state(
        self, state: dict[str, Any], *, strict: bool
    ) -> tuple[list[str], list[str]]:
        """Takes whole weights and buffers, which all ranks have."""
        own = self.module.state_dict(keep_vars=True)
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        self._check_fit(own, state, missing if strict else [], unexpected if strict else [])
        trained = {id(parameter) for _, parameter in self._trained()}
        for name, target in own.items():  # in the same order on all ranks
            if name not in state or not isinstance(target, torch.Tensor):
                continue
            value = state[name]
            with self.package.zero.GatheredParameters(
                [target], modifier_rank=0, enabled=self._is_partitioned
            ):
                if not hasattr(target, "ds_id") or dist.get_global_rank() == 0:
                    target.data.copy_(value)
            if id(target) in trained:
                self._put(target, value)
        return missing, unexpected

    def _check_fit(
        self, own: dict[str, Any], state: dict[str, Any], missing: list[str], extra: list[str]
    ) -> None:
        problems = [f"Missing key(s) in state_dict: {', '.join(missing)}"] if missing else []
        problems += [f"Unexpected key(s) in state_dict: {', '.join(extra)}"] if extra else []
        for name in own.keys() & state.keys():
            size = getattr(own[name], "ds_shape", getattr(own[name], "shape", None))
            given = getattr(state[name], "shape", None)
            if size != given:
                problems.append(
                    f"size mismatch for {name}: {given} in the checkpoint, {size} in the model"
                )
        if problems:
            kind = type(self.module).__name__
            raise RuntimeError(f"Error(s) in loading state_dict for {kind}: {'; '.join(problems)}")

    @torch.no_grad()
    def get_optimizer_state(self) -> dict[str, Any]:
        """Returns moments and groups by parameter names on rank 0, and groups elsewhere."""
        gather = self.package.utils.safe_get_full_optimizer_state
        groups = [
            {**group, "params": list(names)}
            for group, names in zip(self.optimizer.param_groups, self.group_names, strict=True)
        ]
        moments: dict[str, dict[str, Any]] = {}
        if not self.optimizer.state:
            return {"state": moments, "param_groups": groups}
        self._link_moments()
        piece = self._pieces[0]
        held = self.optimizer.state[piece]
        spread = [key for key, value in held.items() if _is_spread(value, piece)]
        for name, parameter in self._trained():
            whole = {key: gather(parameter, key).cpu() for key in spread}
            if dist.get_global_rank() == 0:
                shared = {key: _own(held[key]) for key in held if key not in spread}
                moments[name] = {**whole, **shared}
        return {"state": moments, "param_groups": groups}

    @torch.no_grad()
    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Takes whole moments and groups by parameter names, which all ranks have."""
        by_names = {frozenset(group["params"]): group for group in state["param_groups"]}
        for group, names in zip(self.optimizer.param_groups, self.group_names, strict=True):
            found = by_names.get(frozenset(names))
            if found is None:
                raise ValueError(
                    f"The checkpoint's optimizer has no parameter group of {names[:3]}... "
                    f"({len(names)} parameters)"
                )
            group.update((key, value) for key, value in found.items() if key != "params")
        trained = dict(self._trained())
        saved = {name: moments for name, moments in state["state"].items() if name in trained}
        if not saved:
            return
        spread = self._make_moments(saved)
        for name, moments in saved.items():
            for key in spread & moments.keys():
                self._put(trained[name], moments[key], key)

    def _make_moments(self, saved: dict[str, dict[str, Any]]) -> set[str]:
        """Gives each piece the moments that were saved, still empty; returns which are spread."""
        shapes = {name: getattr(self._parameters_by_name[name], "ds_shape", None) for name in saved}
        shapes = {n: s or self._parameters_by_name[n].shape for n, s in shapes.items()}
        keys = {key for moments in saved.values() for key in moments} - {"step"}
        spread = {
            key
            for key in keys
            if all(
                getattr(m[key], "shape", None) == shapes[n] for n, m in saved.items() if key in m
            )
        }
        first = next(iter(saved.values()))
        group = self.optimizer.param_groups[0]
        on_host = not (group.get("capturable") or group.get("fused"))
        for piece in self._pieces:
            held = self.optimizer.state[piece]
            for key in spread - held.keys():
                held[key] = torch.zeros_like(piece)
            for key in first.keys() - spread:
                value = _own(first[key])
                is_tensor = isinstance(value, torch.Tensor) and not on_host
                held[key] = value.to(piece.device) if is_tensor else value
        self._link_moments()
        return spread


def _is_spread(value: Any, piece: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == piece.shape


def _own(value: Any) -> Any:
    return value.detach().clone().cpu() if isinstance(value, torch.Tensor) else value
