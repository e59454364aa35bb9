"""Turns of a conversation into one sequence, with the labels that the target policy asks for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = [
    "TargetPolicy",
    "stitch_turns_decoder_only",
    "stitch_turns_encoder_decoder",
    "validate_target_settings",
]

Turns = Sequence[Any]
"""Of each prompt and answer, its token ids: ``{"input_ids": ..., "labels": ...}``."""

LONG_PROMPTS = re.compile(r"length>=([1-9]\d*)")


def validate_target_settings(
    target_prompts: str, target_responses: str, decoder_only_format: bool
) -> None:
    """Refuses what is no target policy.

    Args:
        target_prompts: ``none``, ``all`` or ``length>=N``: the prompts whose tokens are targets.
        target_responses: ``last`` or ``all``: the answers whose tokens are targets.
        decoder_only_format: False for encoder-decoders, which learn the last answer only.

    Raises:
        ValueError: There is no such policy.
    """
    if target_prompts not in ("none", "all") and not LONG_PROMPTS.fullmatch(target_prompts):
        raise ValueError(
            'target_prompts must either be "all", "none" or "length>=XX" where "XX" is a positive '
            f"integer, but {target_prompts=}"
        )
    if target_responses not in ("last", "all"):
        raise ValueError(f'target_responses must be either "last" or "all" but {target_responses=}')
    if not decoder_only_format and (target_prompts, target_responses) != ("none", "last"):
        raise ValueError(
            'When using encoder_decoder format, you must use target_prompts="none" and '
            'target_responses="last".'
        )


@dataclass(frozen=True)
class TargetPolicy:
    """Which tokens of a row are learnt, and how many tokens it may have."""

    max_seq_len: int
    target_prompts: str = "none"
    target_responses: str = "last"
    decoder_only_format: bool = True

    def __post_init__(self) -> None:
        for name in ("target_prompts", "target_responses"):
            object.__setattr__(self, name, getattr(self, name).lower())
        validate_target_settings(
            self.target_prompts, self.target_responses, self.decoder_only_format
        )


def stitch_turns_decoder_only(
    example_turns: Turns,
    target_prompts: str,
    target_responses: str,
    eos_token_id: int | None = None,
    validate: bool = False,
) -> tuple[list[int], list[int]]:
    """Joins turns into the token ids of a sequence and its labels, -100 where nothing is learnt.

    Args:
        example_turns: The turns.
        target_prompts: ``none``, ``all`` or ``length>=N``.
        target_responses: ``last`` or ``all``.
        eos_token_id: Ends the last answer, unless that ends with it already or is empty.
        validate: Checks the two policies.
    """
    target_prompts, target_responses = target_prompts.lower(), target_responses.lower()
    if validate:
        validate_target_settings(target_prompts, target_responses, decoder_only_format=True)
    long = LONG_PROMPTS.fullmatch(target_prompts)
    # The fewest tokens of a prompt that is learnt.
    least = int(long[1]) if long else 0 if target_prompts == "all" else None
    input_ids: list[int] = []
    labels: list[int] = []
    last = len(example_turns) - 1
    for place, turn in enumerate(example_turns):
        prompt, answer = list(turn["input_ids"]), list(turn["labels"])
        if place == last:
            answer = _ended(answer, eos_token_id)
        is_prompt_learnt = least is not None and len(prompt) >= least
        is_answer_learnt = place == last or target_responses == "all"
        for tokens, is_learnt in ((prompt, is_prompt_learnt), (answer, is_answer_learnt)):
            input_ids += tokens
            labels += tokens if is_learnt else [CROSS_ENTROPY_IGNORE_INDEX] * len(tokens)
    return input_ids, labels


def stitch_turns_encoder_decoder(
    example_turns: Turns, eos_token_id: int | None = None
) -> tuple[list[int], list[int]]:
    """Joins all turns but the last answer into the encoder's tokens; that answer is the decoder's.

    Args:
        example_turns: The turns.
        eos_token_id: Ends the answer, unless that ends with it already or is empty.
    """
    context: list[int] = []
    for turn in example_turns[:-1]:
        context += [*turn["input_ids"], *turn["labels"]]
    last = example_turns[-1]
    return context + list(last["input_ids"]), _ended(list(last["labels"]), eos_token_id)


def _ended(answer: list[int], eos_token_id: int | None) -> list[int]:
    if not answer or eos_token_id is None or answer[-1] == eos_token_id:
        return answer
    return [*answer, eos_token_id]
