"""Saves models that transformers loads while they are trained, and registers the last one."""

import contextlib
import copy
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from composer.checkpoint.atomic import remove_leftovers
from composer.core.callback import Callback
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.models.adapters import has_adapters, maybe_get_underlying_model
from composer.models.hf_metadata import defining_class
from composer.models.huggingface import HuggingFaceModel
from composer.utils import dist
from composer.utils.background import is_done_on_rank_zero, start_in_daemon
from composer.utils.file_helpers import is_uri
from composer.utils.file_names import format_name_with_dist, format_name_with_dist_and_time
from composer.utils.misc import partial_format, unwrap_model
from llmfoundry.callbacks._model_registration import ModelRegistration
from llmfoundry.models.hf.adapters import write_adapter_folder
from llmfoundry.models.hf.hf_copy import copy_of_model, copy_of_weights
from llmfoundry.models.hf.hf_export import (
    settle_config,
    write_hf_folder,
    write_mpt_code,
)
from llmfoundry.models.hf.model_card import ModelCard, card_of_run
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.utils.huggingface_hub_utils import split_hub_uri
from llmfoundry.utils.stores import is_empty_in_store, placed_folder

__all__ = ["HuggingFaceCheckpointer"]

log = logging.getLogger(__name__)

PRECISIONS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
MAX_SHARD_SIZE = "LLM_FOUNDRY_SAVE_FOLDER_HF_MAX_SHARD_SIZE"
"""The environment variable with the size above which weights are split; 1GB without it."""
LAST_FILES = ("config.json", "adapter_config.json")
"""Without these nobody takes a part of a folder for a model, so they are uploaded last."""


@dataclass(frozen=True)
class _Save:
    """What the thread writes."""

    model: Any
    tokenizer: Any
    card: ModelCard
    place: contextlib.AbstractContextManager[Path]


class HuggingFaceCheckpointer(Callback):
    """Saves the model now and then, and at the end, as a folder that ``from_pretrained`` loads.

    A folder holds weights, configuration, tokenizer, generation settings, a page about the model
    (README.md) and the code of an MPT that transformers does not know; of adapters, themselves
    alone. It is ``<save_folder>/huggingface/<huggingface_folder_name>``, and appears whole or not
    at all. Training waits while weights are gathered and copied to rank 0's memory; they are
    written, uploaded and registered in a thread. The next save waits for the last, and so does the
    end of training; an error is raised at the next batch.

    On the hub (``hf://owner/name[@branch]``) a save is a commit to the address itself, with
    ``huggingface_folder_name`` as its message: ``from_pretrained("owner/name")`` loads the last.

    A run that was killed while it saved is resumed after the save. What it did not write is written
    from its checkpoint by ``only_hf_checkpoint: true``.

    Args:
        save_folder: A folder, or an address in a store or on the hub; ``{run_name}`` and counters
            are filled in.
        save_interval: How often: a time string, or a number of epochs. The end of training saves
            too.
        huggingface_folder_name: The folder's name, with placeholders.
        precision: What weights are stored in: float32, float16 or bfloat16. The model that is
            trained stays as it is.
        overwrite: Replaces a folder of the same name. A resumed run may replace its own anyway.
        mlflow_registered_model_name: Registers the last model in MLflow under this name; needs the
            ``mlflow`` logger, whose ``model_registry_prefix`` goes before it.
        mlflow_logging_config: Arguments of ``mlflow.transformers.log_model`` besides those that are
            set here. ``metadata.pretrained_model_name`` is also what adapters name as their base.
        flatten_imports: Packages whose modules go into the folder with an MPT's code.
        final_register_only: Registers the last model without saving it to ``save_folder``, unless
            registering fails.
        register_wait_seconds: How long the end of training waits for registration, which is then
            abandoned.
        license: The model's licence, such as ``apache-2.0``; by default the base model's, if its
            page is at hand, else unknown.
        train_config: The run's settings, for the page; the builder gives it.

    Raises:
        KeyError: The precision is unknown.
        ValueError: Settings do not fit each other, the model or the loggers (at ``INIT``).
    """

    def __init__(
        self,
        save_folder: str,
        save_interval: str | int | Time[Any],
        huggingface_folder_name: str = "ba{batch}",
        precision: str = "float32",
        overwrite: bool = True,
        mlflow_registered_model_name: str | None = None,
        mlflow_logging_config: dict[str, Any] | None = None,
        flatten_imports: Sequence[str] = ("llmfoundry",),
        final_register_only: bool = False,
        register_wait_seconds: int = 7200,
        license: str | None = None,
        train_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise KeyError(f"precision={precision!r} must be one of {sorted(PRECISIONS)}.")
        if register_wait_seconds <= 0:
            raise ValueError(f"register_wait_seconds={register_wait_seconds} must be positive.")
        self.is_on_hub = save_folder.startswith("hf://")
        if self.is_on_hub:
            split_hub_uri(save_folder)
            if not overwrite:
                raise ValueError(
                    f"overwrite=False means nothing on the hub ({save_folder}), where a save is a "
                    "commit and the ones before it stay in the history. Leave it out."
                )
        if final_register_only and mlflow_registered_model_name is None:
            warnings.warn(
                "final_register_only has no effect without mlflow_registered_model_name, and is "
                "taken for False: the last model is saved to save_folder."
            )
            final_register_only = False
        self.save_folder = save_folder
        self.save_interval = create_interval_scheduler(save_interval)
        self.huggingface_folder_name = huggingface_folder_name
        self.dtype = PRECISIONS[precision]
        self.overwrite = overwrite
        self.flatten_imports = tuple(flatten_imports)
        self.final_register_only = final_register_only
        self.register_wait_seconds = register_wait_seconds
        self.license = license
        self.train_config = train_config
        self.registration: ModelRegistration | None = None
        idle = (mlflow_logging_config or {}).keys() - {"metadata"}
        if idle and mlflow_registered_model_name is None:
            raise ValueError(
                f"mlflow_logging_config has {sorted(idle)}, without effect as no model is "
                "registered. Give mlflow_registered_model_name, or leave them out."
            )
        if mlflow_registered_model_name is not None:
            self.registration = ModelRegistration(
                mlflow_registered_model_name, mlflow_logging_config or {}
            )
        self.mlflow_logging_config = dict(mlflow_logging_config or {})
        self._pending: Future[None] | None = None
        self._wait_seconds: int | None = None

    # Events

    def init(self, state: State, logger: Logger) -> None:
        """Refuses models and loggers that do not do, before anything is trained."""
        model = unwrap_model(state.model)
        if not isinstance(model, HuggingFaceModel):
            raise ValueError(
                f"hf_checkpointer needs a HuggingFaceModel, and the model is a "
                f"{type(model).__name__}. Wrap it in one, or remove the callback."
            )
        _max_shard_size()
        inner = maybe_get_underlying_model(model.model)
        if self.registration is not None:
            if getattr(inner, "hf_quantizer", None) is not None:
                raise ValueError(
                    "mlflow_registered_model_name registers adapters with their base's weights, "
                    "which are quantised here. Leave it out; the adapters are saved without it."
                )
            self.registration.find_logger(logger.destinations)
        self.save_folder = partial_format(self.save_folder, **logger.path_placeholders())
        if isinstance(inner, MPTForCausalLM) and dist.get_global_rank() == 0:
            # Once now: modules that cannot go into one folder are an error before training.
            with tempfile.TemporaryDirectory() as scratch:
                classes = type(inner.config), defining_class(inner)
                write_mpt_code(Path(scratch), classes, self.flatten_imports)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Removes what killed saves left."""
        if dist.get_global_rank() == 0 and not is_uri(self.save_folder):
            folder = format_name_with_dist(self.save_folder, state.run_name)
            remove_leftovers(os.path.join(folder, "huggingface"), self.huggingface_folder_name)

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, logger, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, logger, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, logger, Event.ITERATION_CHECKPOINT)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raises what went wrong with a save that has ended."""
        if self._pending is not None and self._pending.done():
            pending, self._pending = self._pending, None
            pending.result()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Waits for the last save."""
        self.wait()

    def post_close(self) -> None:
        """Waits for a save of a run that did not come to its end; an error is only logged."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if wait_for([pending], timeout=self._wait_seconds).not_done:
            log.error("A model is not registered after %s s; abandoned.", self._wait_seconds)
        elif (error := pending.exception()) is not None:
            log.error("A Hugging Face folder could not be written.", exc_info=error)

    def wait(self) -> None:
        """Waits until the last save is written, uploaded and registered. All ranks call it.

        Raises:
            TimeoutError: It took longer than ``register_wait_seconds``, if it is registered.
        """
        pending, self._pending = self._pending, None
        is_done = is_done_on_rank_zero(pending, self._wait_seconds)

        def finish() -> None:
            if not is_done:
                raise TimeoutError(
                    f"Saving and registering the model took longer than register_wait_seconds="
                    f"{self._wait_seconds}, and is abandoned. Give it more, or look at the MLflow "
                    "server."
                )
            if pending is not None:
                pending.result()

        dist.from_rank_zero(finish)

    def save_now(self, state: State, logger: Logger) -> None:
        """Saves the model as it is, registers it, and waits for both. All ranks call it."""
        self._save_checkpoint(state, logger, upload_to_save_folder=True, register_to_mlflow=True)
        self.wait()

    # What subclasses change

    def transform_model_and_tokenizer(self, model: Any, tokenizer: Any) -> tuple[Any, Any]:
        """Returns what is saved, given copies of the model and the tokenizer; on rank 0."""
        return model, tokenizer

    def transform_config(self, original_config: Any) -> Any:
        """Returns the configuration to save, as a copy."""
        config = copy.deepcopy(original_config)
        if isinstance(config, MPTConfig):
            settle_config(config)
        return config

    def pre_register_edit(self, local_save_path: str) -> None:
        """Changes the folder that is about to be registered, which is not the one that is saved."""

    def transform_model_pre_registration(self, model: Any) -> Any:
        """Returns the model that is registered, given the one that is saved."""
        return model

    def save_additional_contents(self, state: State, logger: Logger, save_dir: str) -> None:
        """Writes more into a folder, before the model; on rank 0, while training waits."""

    # Saving

    def _save_if_due(self, state: State, logger: Logger, event: Event) -> None:
        if not self.save_interval(state, event):  # which says so once a batch
            return
        is_last = self._is_last_batch(state)
        self._save_checkpoint(
            state,
            logger,
            upload_to_save_folder=not (is_last and self.final_register_only),
            register_to_mlflow=is_last,
        )

    def _is_last_batch(self, state: State) -> bool:
        """Says whether training ends with this batch, even if the clock of epochs did not strike.

        A duration in epochs is over after the last epoch's checkpoint event, and a save at its last
        batch comes before.
        """
        elapsed = state.get_elapsed_duration()
        if elapsed is not None and elapsed >= 1.0:
            return True
        duration, length = state.max_duration, state.epoch_length
        if duration is None or duration.unit is not TimeUnit.EPOCH or length is None:
            return False
        now = state.timestamp
        return int(now.epoch) + 1 >= int(duration) and now.batch_in_epoch >= length

    def _save_checkpoint(
        self,
        state: State,
        logger: Logger,
        upload_to_save_folder: bool,
        register_to_mlflow: bool,
    ) -> None:
        """Copies the model, and starts to write it. All ranks call it.

        Args:
            state: The run's State.
            logger: The run's Logger.
            upload_to_save_folder: Whether it goes to ``save_folder``.
            register_to_mlflow: Whether it is registered, if there is a name to register it under.
        """
        self.wait()
        target = self._target(state)
        if upload_to_save_folder and not (self.overwrite or state.autoresume):
            dist.from_rank_zero(lambda: _refuse_existing(target))
        is_registered = register_to_mlflow and self.registration is not None
        model, tokenizer = self._get_hf_model(state, with_base=is_registered)
        self._wait_seconds = self.register_wait_seconds if is_registered else None

        def start() -> None:
            message = format_name_with_dist_and_time(
                self.huggingface_folder_name, state.run_name, state.timestamp
            )
            place = placed_folder(target, LAST_FILES, message)
            save = _Save(model, tokenizer, self._card(state, model), place)
            with contextlib.ExitStack() as stack:
                folder = None
                if upload_to_save_folder:
                    folder = stack.enter_context(save.place)
                    self.save_additional_contents(state, logger, str(folder))
                self._pending = start_in_daemon(
                    "hf-checkpoint", self._write, save, folder, stack.pop_all(), is_registered
                )

        dist.from_rank_zero(start)

    def _target(self, state: State) -> str:
        """Returns the folder that a save makes now."""
        name = os.path.join("huggingface", self.huggingface_folder_name)
        path = self.save_folder if self.is_on_hub else os.path.join(self.save_folder, name)
        return format_name_with_dist_and_time(path, state.run_name, state.timestamp)

    def _get_hf_model(self, state: State, with_base: bool = False) -> tuple[Any, Any]:
        """Returns copies of the model and the tokenizer on rank 0, and Nones on other ranks.

        Args:
            state: The run's State.
            with_base: Whether adapters come with their base's weights.
        """
        trained: Any = unwrap_model(state.model)
        weights, made = copy_of_weights(state, self.dtype, with_base), []

        def make() -> None:
            config = self.transform_config(maybe_get_underlying_model(trained.model).config)
            model = copy_of_model(trained.model, config, weights)
            # A copy, because a tokenizer cannot serve two threads.
            tokenizer = copy.deepcopy(trained.tokenizer)
            made.append(self.transform_model_and_tokenizer(model, tokenizer))

        dist.from_rank_zero(make)
        return made[0] if made else (None, None)

    def _card(self, state: State, model: Any) -> ModelCard:
        is_fresh = (self.train_config or {}).get("model", {}).get("pretrained") is False
        base = None if is_fresh else self._base_name(state) or None
        return card_of_run(state, model, self.license, base, self.train_config)

    def _base_name(self, state: State) -> str:
        """Returns the folder or the hub's name of the model that training started from, or ''."""
        metadata = self.mlflow_logging_config.get("metadata") or {}
        trained: Any = unwrap_model(state.model)
        own = getattr(maybe_get_underlying_model(trained.model).config, "_name_or_path", "")
        return metadata.get("pretrained_model_name") or own or ""

    def _write(
        self,
        save: _Save,
        folder: Path | None,
        place: contextlib.ExitStack,
        is_registered: bool,
    ) -> None:
        """Writes the model and puts the folder in its place, then registers it; in the thread."""
        if folder is not None:
            with place:
                self._write_folder(save, folder)
        if not is_registered:
            return
        try:
            self.register_hf_model(save)
        except BaseException:
            if folder is None:
                log.error("The model could not be registered and is saved instead.")
                with save.place as folder:
                    self._write_folder(save, folder)
            raise

    def _write_folder(self, save: _Save, folder: Path) -> None:
        base = save.card.base_model
        if has_adapters(save.model):
            name = save.model.active_adapter
            config, weights = save.model.peft_config[name], save.model.state_dict()
            write_adapter_folder(folder, config, weights, base, adapter_name=name)
            if save.tokenizer is not None:
                save.tokenizer.save_pretrained(folder)
        else:
            write_hf_folder(
                save.model,
                save.tokenizer,
                folder,
                self.dtype,
                max_shard_size=_max_shard_size(),
                flatten_imports=self.flatten_imports,
            )
        for licence in Path(base).glob("LICENSE*") if base else ():
            if licence.is_file():
                shutil.copy(licence, folder)
        (folder / "README.md").write_text(save.card.render(), encoding="utf-8")

    def register_hf_model(self, save: _Save) -> Any:
        """Registers the model of a save, adapters together with their base."""
        assert self.registration is not None
        model = self.transform_model_pre_registration(save.model)
        if has_adapters(model):
            return self.registration.log({"model": model, "tokenizer": save.tokenizer})
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "model")
            folder.mkdir()
            self._write_folder(replace(save, model=model), folder)
            self.pre_register_edit(str(folder))
            return self.registration.log(str(folder))


def _max_shard_size() -> str:
    from huggingface_hub import split_torch_state_dict_into_shards

    size = os.environ.get(MAX_SHARD_SIZE, "1GB")
    try:
        split_torch_state_dict_into_shards({}, max_shard_size=size)
    except ValueError as error:
        raise ValueError(f"The environment's {MAX_SHARD_SIZE}={size!r} is no size.") from error
    return size


def _refuse_existing(target: str) -> None:
    is_free = is_empty_in_store(target) if is_uri(target) else not Path(target).exists()
    if not is_free:
        raise FileExistsError(
            f"{target} exists and overwrite is off. Choose another save_folder, run_name or "
            "huggingface_folder_name, or set overwrite: true."
        )
