"""Models behind an OpenAI-compatible API: completions with log-probabilities, and chat."""

import functools
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from composer.core.types import Batch
from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.models.inference_api_wrapper.interface import InferenceAPIEvalWrapper

__all__ = ["OpenAICausalLMEvalWrapper", "OpenAIChatAPIEvalWrapper", "OpenAIEvalInterface"]

log = logging.getLogger(__name__)

MAX_RETRIES = 10
"""Of a request that met a rate limit, a time-out or an error of the server; the waits grow."""
LOGPROBS = 5
"""What OpenAI gives at most."""
LEAST_REST = 1e-10
SYSTEM_ROLE_PROMPT = "Please complete the following text: "
SERVICE = frozenset({"base_url"})


class OpenAIEvalInterface(InferenceAPIEvalWrapper):
    """A model of OpenAI, or of a server with the same API.

    The key is read from ``OPENAI_API_KEY``; a server of one's own may need none.

    Args:
        om_model_config: The settings as a mapping.
        tokenizer: The model's own tokenizer.
        **settings: ``version``, and ``base_url`` of another server than OpenAI's.

    Raises:
        ValueError: If there is neither a key nor a server of one's own.
        MissingConditionalImportError: If the package openai is not installed.
    """

    known_settings = InferenceAPIEvalWrapper.known_settings | SERVICE

    def __init__(
        self,
        om_model_config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(om_model_config, tokenizer, **settings)
        self.base_url = self._find_base_url()
        key = os.environ.get("OPENAI_API_KEY")
        if key is None and self.base_url is None:
            raise ValueError(
                "No OPENAI_API_KEY is set in the environment, and OpenAI's own models need one; "
                "set it, or set base_url to a server of your own."
            )
        try:
            import openai
        except ImportError as error:
            raise MissingConditionalImportError("openai", "openai") from error
        self.client = openai.OpenAI(
            base_url=self.base_url, api_key=key or "placeholder", max_retries=MAX_RETRIES
        )
        self._refusals = (openai.BadRequestError, openai.UnprocessableEntityError)

    def _find_base_url(self) -> str | None:
        return self.settings.get("base_url")


@declares_keys({"": {"version"} | SERVICE})
class OpenAICausalLMEvalWrapper(OpenAIEvalInterface):
    """A language model behind the completions API, scored by its log-probabilities.

    A continuation takes one request where the server echoes the log-probabilities of a prompt, and
    otherwise one for each token, where a token that is not among the likeliest gets the mean of
    what they leave. So the outputs are log-probabilities that sum to one over the vocabulary.
    Prompts are sent as token ids.

    The arguments are those of :class:`OpenAIEvalInterface`.
    """

    _echoes = True

    def score(self, context: list[int], continuation: list[int]) -> torch.Tensor:
        """Returns the log-probabilities of each token of the continuation, ``[n, V]``.

        Raises:
            ValueError: If the server gives no log-probabilities.
        """
        if self._echoes:
            scores = self._score_by_echo(context, continuation)
            if scores is not None:
                return scores
        whole = context + continuation
        scores = torch.stack(
            [self._score_next(whole[:end], whole[end]) for end in range(len(context), len(whole))]
        )
        if self._echoes:  # now it is known that the request was good but for that
            self._echoes = False
            log.warning(
                "%s gives no log-probabilities of prompts: each token of a continuation takes a "
                "request.",
                self.model_name,
            )
        return scores

    def _complete(self, prompt: list[int], **settings: Any) -> Any:
        """The log-probabilities of an answer of one token, or None."""
        answer = self.client.completions.create(
            model=self.model_name,
            prompt=prompt,
            max_tokens=1,
            logprobs=LOGPROBS,
            temperature=0.0,
            **settings,
        )
        logprobs = answer.choices[0].logprobs
        return logprobs if logprobs is not None and logprobs.top_logprobs else None

    def _score_by_echo(self, context: list[int], continuation: list[int]) -> torch.Tensor | None:
        try:
            found = self._complete(context + continuation, echo=True)
        except self._refusals:  # some models refuse these two together
            return None
        begin, end = len(context), len(context) + len(continuation)
        if found is None or len(found.tokens or ()) not in (end, end + 1):
            return None
        if None in (found.token_logprobs or [None] * end)[begin:end] or not all(
            found.top_logprobs[begin:end]
        ):
            return None
        rows = []
        for place, target in zip(range(begin, end), continuation, strict=True):
            others = dict(found.top_logprobs[place])
            others.pop(found.tokens[place], None)
            rows.append(self._spread(others, {target: found.token_logprobs[place]}))
        return torch.stack(rows)

    def _score_next(self, prompt: list[int], target: int) -> torch.Tensor:
        found = self._complete(prompt)
        if found is None:
            raise ValueError(
                f"{self.model_name!r} gives no log-probabilities (logprobs={LOGPROBS}), which "
                "scoring needs; evaluate it by its texts, as openai_chat or fmapi_chat does."
            )
        others = dict(found.top_logprobs[0])
        own = next((text for text in self._texts(prompt, target, others) if text in others), None)
        known = {} if own is None else {target: others.pop(own)}
        return self._spread(others, known, keep_free=target)

    def _texts(self, prompt: list[int], target: int, found: Iterable[str]) -> list[str]:
        """What a server may call a token, which alone often loses the space before its word."""
        alone, last = self.tokenizer.decode([target]), prompt[-4:]
        before, after = self.tokenizer.decode(last), self.tokenizer.decode([*last, target])
        within = after.removeprefix(before) if after.startswith(before) else alone
        # A server that shows spaces means another token where there is none.
        shows_spaces = any(text[:1] == " " for text in found)
        return [within] if within == f" {alone}" and shows_spaces else [within, alone]

    def _spread(
        self, top: Mapping[str, float], known: dict[int, float], keep_free: int | None = None
    ) -> torch.Tensor:
        """A vector over the vocabulary whose unknown tokens share what is left evenly."""
        size = len(self.tokenizer)
        for text, value in top.items():
            index = self._ids.get(text)
            if index in (
                None,
                keep_free,
                *known,
            ):  # a piece of a character: another id stands for it
                index = next(i for i in range(size) if i not in known and i != keep_free)
            known[index] = value
        rest = max(1 - sum(math.exp(value) for value in known.values()), LEAST_REST)
        row = torch.full((size,), math.log(rest / max(size - len(known), 1)))
        row[list(known)] = torch.tensor(list(known.values()), dtype=row.dtype)
        return row

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """The id of each text that is one token's alone."""
        texts = [self.tokenizer.decode([index]) for index in range(len(self.tokenizer))]
        counts = Counter(texts)
        return {text: index for index, text in enumerate(texts) if counts[text] == 1}


@declares_keys({"": {"version", "system_role_prompt"} | SERVICE})
class OpenAIChatAPIEvalWrapper(OpenAIEvalInterface):
    """A model behind the chat API: it writes the whole continuation, which is right or not.

    Texts of chats do not begin with the space that continuations do, so continuations are made into
    tokens anew, without it.

    The arguments are those of :class:`OpenAIEvalInterface`, and ``system_role_prompt``, which tells
    the model what to do.
    """

    known_settings = OpenAIEvalInterface.known_settings | {"system_role_prompt"}

    def rebatch(self, batch: Batch) -> Batch:
        """Returns the batch with the continuations' tokens as a chat writes them."""
        rows, indices = [], []
        for ids, places in zip(batch["input_ids"], batch["continuation_indices"], strict=True):
            begin = int(places[0])
            continuation = self._tokens(self.tokenizer.decode(ids[places.to(ids.device)]))
            rows.append(ids[:begin].tolist() + continuation)
            indices.append(torch.arange(begin, len(rows[-1])))
        width = max(batch["input_ids"].shape[1], *map(len, rows))
        padded = [row + [self._pad_id] * (width - len(row)) for row in rows]
        ids = torch.tensor(padded, device=batch["input_ids"].device)
        return {**batch, "input_ids": ids, "labels": ids, "continuation_indices": indices}

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text.strip(), add_special_tokens=False)["input_ids"]

    def score(self, context: list[int], continuation: list[int]) -> torch.Tensor:
        """Returns ones where the tokens are that the model wrote, and zeros elsewhere."""
        n_tokens = len(continuation)
        # OpenAI's newer models refuse the old name, and others' servers may not know the new one.
        name = "max_completion_tokens" if self.base_url is None else "max_tokens"
        limit: dict[str, Any] = {name: n_tokens}
        answer = self.client.chat.completions.create(
            model=self.model_name,
            messages=[
                {
                    "role": "system",
                    "content": self.settings.get("system_role_prompt", SYSTEM_ROLE_PROMPT),
                },
                {
                    "role": "user",
                    "content": self.tokenizer.decode(context, skip_special_tokens=True),
                },
            ],
            temperature=0.0,
            **limit,
        )
        written = self._tokens(answer.choices[0].message.content or "")[:n_tokens]
        written += [self._pad_id] * (n_tokens - len(written))
        return torch.nn.functional.one_hot(torch.tensor(written), len(self.tokenizer)).float()
