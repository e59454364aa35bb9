"""Lets a language model write during training."""

from typing import Any

import torch

from composer.core.callback import Callback
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.logger import Logger
from composer.core.precision import get_precision_context
from composer.core.state import State
from composer.utils import dist
from composer.utils.misc import model_eval_mode, unwrap_model
from composer.utils.reproducibility import MAX_SEED, seed_context


class Generate(Callback):
    """Logs what the model writes after each prompt, as the table ``generations``.

    The model is a HuggingFaceModel, or another that has ``tokenizer``, ``config`` and ``generate``.
    Sampling draws from generators of its own: training goes on as it would have without.

    Args:
        prompts: The texts to continue.
        interval: How often; the end of training counts too.
        batch_size: How many prompts at a time; None for all.
        **kwargs: Arguments of transformers' ``generate``, such as ``max_new_tokens``.
    """

    def __init__(
        self,
        prompts: list[str],
        interval: str | int | Time[int],
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.prompts: list[str] = [prompts] if isinstance(prompts, str) else list(prompts)
        if not self.prompts or not all(isinstance(each, str) for each in self.prompts):
            raise ValueError(f"prompts={prompts!r} must be a list of at least one text.")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r} must be at least 1.")
        self.batch_size = batch_size or len(self.prompts)
        self.generate_kwargs = kwargs
        self.check_interval = create_interval_scheduler(interval, include_end_of_training=True)
        self.last_generate_batch: Time[int] | None = None

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Refuses a model that cannot generate, before anything is trained."""
        _require_generation(unwrap_model(state.model))

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Generates, if it is time to."""
        self._generate_if_due(Event.BATCH_CHECKPOINT, state, logger)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Generates, if it is time to."""
        self._generate_if_due(Event.EPOCH_CHECKPOINT, state, logger)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Generates, if it is time to."""
        self._generate_if_due(Event.ITERATION_CHECKPOINT, state, logger)

    def _generate_if_due(self, event: Event, state: State, logger: Logger) -> None:
        is_new = self.last_generate_batch != state.timestamp.batch
        if self.check_interval(state, event) and is_new:
            self.generate(state, logger)

    def generate(self, state: State, logger: Logger) -> None:
        """Generates now; rank 0 logs.

        Raises:
            ValueError: If the model cannot generate.
        """
        self.last_generate_batch = state.timestamp.batch
        model: Any = unwrap_model(state.model)
        _require_generation(model)
        seed = (state.rank_zero_seed + state.timestamp.batch.value) % (MAX_SEED + 1)
        precision = get_precision_context(
            state.precision, state.precision_config, device_type=state.device._device.type
        )
        texts: list[str] = []
        with seed_context(seed), torch.no_grad(), model_eval_mode(model), precision:
            for start in range(0, len(self.prompts), self.batch_size):
                texts += self._continue(model, self.prompts[start : start + self.batch_size], state)
        if dist.get_global_rank() == 0:
            rows: list[list[Any]] = [list(row) for row in zip(self.prompts, texts, strict=True)]
            logger.log_table(columns=["prompt", "generation"], rows=rows, name="generations")

    def _continue(self, model: Any, prompts: list[str], state: State) -> list[str]:
        tokenizer = model.tokenizer
        # Padded here, on the left: the tokenizer is also the dataloader's, and stays as it is.
        pad_id = _pad_token_id(tokenizer)
        start = pad_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        ids = [torch.tensor(tokenizer(prompt)["input_ids"] or [start]) for prompt in prompts]
        length = max(len(each) for each in ids)
        input_ids = torch.full((len(ids), length), pad_id)
        mask = torch.zeros_like(input_ids)
        for row, each in enumerate(ids):
            input_ids[row, -len(each) :] = each
            mask[row, -len(each) :] = 1
        tokens = model.generate(
            state.device.tensor_to_device(input_ids),
            attention_mask=state.device.tensor_to_device(mask),
            **({"pad_token_id": pad_id} | self.generate_kwargs),
        )
        if not getattr(model.config, "is_encoder_decoder", False):
            tokens = tokens[:, length:]
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)


def _pad_token_id(tokenizer: Any) -> Any:
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def _require_generation(model: Any) -> None:
    if not callable(getattr(model, "generate", None)) or not hasattr(model, "tokenizer"):
        raise ValueError(
            f"Generate needs a HuggingFaceModel, and {type(model).__name__} has no generate and no "
            "tokenizer."
        )
    if model.tokenizer is None:
        raise ValueError("Generate needs a tokenizer: pass it to HuggingFaceModel(tokenizer=).")
    if _pad_token_id(model.tokenizer) is None:
        raise ValueError(
            "Generate pads prompts, and the tokenizer has neither a pad_token nor an eos_token; "
            "set one of them."
        )
