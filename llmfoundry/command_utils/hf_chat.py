"""A chat at the terminal with a model in the Hugging Face format."""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList, TextStreamer

from llmfoundry.command_utils.inference_model import (
    UNLIMITED,
    autocast,
    end_token_ids,
    load_model,
    load_tokenizer,
    or_default,
)
from llmfoundry.models.mpt.cache import CACHE_FIELD
from llmfoundry.tokenizers.dates import get_date_string
from llmfoundry.utils.exceptions import ChatTemplateError

__all__ = ["ChatMessage", "Conversation", "TooLongError", "hf_chat"]

MAX_NEW_TOKENS = 512
SYSTEM_PROMPT = "You are a friendly chatbot who aims to be helpful and honest."
WELCOME = """Chat with the model. An empty line sends what you wrote. Commands, sent likewise:
  history      shows the conversation
  history_fmt  shows it as the model reads it
  clear        starts it anew
  system       asks for another system prompt
  quit         ends"""


class TooLongError(ValueError):
    """A message alone fills all tokens that the model may be given."""


@dataclass
class ChatMessage:
    """One message.

    Args:
        role: ``system``, ``user`` or ``assistant``.
        content: Its text.
    """

    role: str
    content: str


def _system_messages(system_prompt: str) -> list[ChatMessage]:
    return [ChatMessage("system", system_prompt)] if system_prompt else []


def _apply_template(tokenizer: Any, messages: Sequence[ChatMessage], tokenize: bool = False) -> Any:
    """Returns messages as the chat template writes them, up to where a reply begins.

    Args:
        tokenizer: Whose template it is.
        messages: The messages.
        tokenize: Whether tokens ``[1, S]`` are returned, not text.

    Raises:
        ChatTemplateError: There is no template, or it refuses the messages.
    """
    rows = [asdict(message) for message in messages]
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        cure = (
            "The tokenizer has none, so its model is likely not made for chat. Use hf_generate.py, "
            "or set tokenizer.chat_template and save it with tokenizer.save_pretrained."
        )
        raise ChatTemplateError(str(template), rows, cure)
    settings = {"return_tensors": "pt", "return_dict": True} if tokenize else {}
    try:
        formatted = tokenizer.apply_chat_template(
            rows,
            tokenize=tokenize,
            add_generation_prompt=True,
            date_string=get_date_string(),
            **settings,
        )
    # What runs in a template raises many kinds.
    except (TemplateError, LookupError, TypeError, ValueError) as error:
        cure = "If it takes no system message, set an empty one (`system`, or --system_prompt '')."
        raise ChatTemplateError(str(template), rows, f"{error} {cure}") from error
    return formatted["input_ids"] if tokenize else formatted


class ReplyStreamer(TextStreamer):
    """Prints a reply as it is written, up to the first stop string, and keeps it.

    Args:
        tokenizer: Decodes the tokens.
        stop_strings: Where the reply ends; they are not printed.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str] = ()) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.stop_strings = stop_strings
        self.reply = ""
        self._n_printed = 0
        self._is_over = False

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints what has come, but for an end that may be the beginning of a stop string."""
        if not self._is_over:
            self.reply += text
        found = [self.reply.find(stop) for stop in self.stop_strings if stop in self.reply]
        if found:
            self.reply, self._is_over = self.reply[: min(found)], True
        end = len(self.reply)
        if not self._is_over and not stream_end:
            end -= max((_overlap(self.reply, stop) for stop in self.stop_strings), default=0)
        print(self.reply[self._n_printed : end], end="\n" if stream_end else "", flush=True)
        self._n_printed = max(self._n_printed, end)


def _overlap(text: str, stop: str) -> int:
    """Returns how much of ``stop`` the text ends with."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


class StopOnText(StoppingCriteria):
    """Stops when what was generated holds one of some strings, whatever tokens make it.

    Args:
        tokenizer: Decodes the tokens.
        stop_strings: The strings.
        start: Where the generated tokens begin.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str], start: int) -> None:
        self.tokenizer = tokenizer
        self.stop_strings = stop_strings
        self.start = start

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Returns for each row whether it is done."""
        texts = self.tokenizer.batch_decode(input_ids[:, self.start :])
        done = [any(stop in text for stop in self.stop_strings) for text in texts]
        return torch.tensor(done, device=input_ids.device)


class Conversation:
    """A conversation with a model, which answers from all of it at each turn.

    Keys and values of what the model has read are kept from turn to turn.

    Args:
        model: The model.
        tokenizer: Its tokenizer, with a chat template.
        generate_kwargs: Arguments of ``model.generate``. With ``use_cache: False`` nothing is kept.
        system_prompt: What the model is told first; nothing if it is empty.
        stop_tokens: Where a reply ends, besides ``eos_token_id``: special tokens, or any strings.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generate_kwargs: Mapping[str, Any],
        system_prompt: str,
        stop_tokens: Sequence[str] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.generate_kwargs = {"max_new_tokens": MAX_NEW_TOKENS, **generate_kwargs}
        self.system_prompt = system_prompt
        self.turns: list[ChatMessage] = []
        special, stop_tokens = tokenizer.get_added_vocab(), stop_tokens or ()
        self.stop_strings = [stop for stop in stop_tokens if stop not in special]
        ends = self.generate_kwargs.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        ends = [*ends, *(special[stop] for stop in stop_tokens if stop in special)]
        self.generate_kwargs["eos_token_id"] = list(dict.fromkeys(ends)) or None
        own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.limit = min(own or UNLIMITED, tokenizer.model_max_length)
        self._cache: Any = None
        self._cached_ids = torch.empty(0, dtype=torch.long)

    @property
    def history(self) -> list[ChatMessage]:
        """All messages so far, the system prompt first."""
        return [*_system_messages(self.system_prompt), *self.turns]

    def __call__(self) -> None:
        """Answers messages from standard input until ``quit`` or the input's end."""
        print(WELCOME)
        while (text := _read()) is not None and text != "quit":
            try:
                self._obey(text)
            except (TooLongError, ChatTemplateError) as error:  # the conversation is as it was
                print(error)

    def _obey(self, text: str) -> None:
        """Does what a command says, or answers what is none."""
        if text == "clear":
            self.turns.clear()
        elif text == "history":
            print(*(f"{message.role}: {message.content}" for message in self.history), sep="\n")
        elif text == "history_fmt":
            print(_apply_template(self.tokenizer, self.history))
        elif text == "system":
            print("The new system prompt, then an empty line; an empty line alone for none.")
            self.system_prompt = or_default(_read(takes_empty=True), self.system_prompt)
        else:
            self.turn(text)

    def turn(self, user_input: str) -> str:
        """Adds a message by the user and the model's reply, which is printed as it comes.

        Raises:
            ChatTemplateError: The chat template refuses the conversation; the message is not added.
            TooLongError: The message leaves no room for a reply; it is not added.
        """
        message = ChatMessage("user", user_input)
        ids = self._prompt([*self.turns, message]).to(self.model.device)
        cache = self._cache_for(ids) if self.generate_kwargs.get("use_cache", True) else None
        streamer = ReplyStreamer(self.tokenizer, self.stop_strings)
        settings = dict(self.generate_kwargs)
        settings["max_new_tokens"] = min(settings["max_new_tokens"], self.limit - ids.size(1))
        if cache is not None:
            settings[CACHE_FIELD] = cache
        if self.stop_strings:
            stops = StopOnText(self.tokenizer, self.stop_strings, ids.size(1))
            settings["stopping_criteria"] = StoppingCriteriaList([stops])
        with torch.no_grad():
            tokens = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), streamer=streamer, **settings
            )
        self._cache, self._cached_ids = cache, tokens[0]
        self.turns += [message, ChatMessage("assistant", streamer.reply.strip())]
        return self.turns[-1].content

    def _prompt(self, turns: list[ChatMessage]) -> torch.Tensor:
        """Returns the tokens ``[1, S]`` that the model is given, without turns that do not fit."""
        system = _system_messages(self.system_prompt)
        while True:
            ids = _apply_template(self.tokenizer, [*system, *turns], tokenize=True)
            fits = ids.size(1) + self.generate_kwargs["max_new_tokens"] <= self.limit
            if fits or len(turns) == 1:
                break
            turns = turns[2:]  # the oldest message, and its reply
        if ids.size(1) >= self.limit:
            raise TooLongError(
                f"The message and the system prompt have {ids.size(1)} tokens, which leaves no "
                f"room for a reply: the limit is {self.limit} (--max_seq_len, or the model's own)."
            )
        return ids

    def _cache_for(self, ids: torch.Tensor) -> Any:
        """Returns a cache with what is known of a prompt; its last token is always read anew."""
        cache, self._cache = self._cache, None
        if cache is None or not getattr(cache, "is_croppable", False) or any(cache.is_sliding):
            # A full window has dropped what the prompt may go back to, and crop raises.
            return DynamicCache(config=self.model.config)
        n_cached = cache.get_seq_length()
        length = min(n_cached, ids.size(1) - 1)
        differs = self._cached_ids[:length] != ids[0, :length]
        cache.crop((int(differs.int().argmax()) if bool(differs.any()) else length) - n_cached)
        return cache


def _read(takes_empty: bool = False) -> str | None:
    """Reads a message from standard input, up to an empty line; None at the input's end.

    Args:
        takes_empty: Whether a first line that is empty is an empty message; else it is passed over.
    """
    lines: list[str] = []
    print("\nUser:", flush=True)
    for line in sys.stdin:
        if line.strip():
            lines.append(line.rstrip("\n"))
        elif lines or takes_empty:
            break
    else:
        if not lines:
            return None
    return "\n".join(lines).strip()


def hf_chat(args: Namespace) -> list[ChatMessage]:
    """Runs the command, and returns the conversation.

    Args:
        args: The flags of ``scripts/inference/hf_chat.py``.

    Raises:
        ChatTemplateError: The tokenizer has no chat template, or it refuses the system prompt.
        RuntimeError: The model cannot be loaded.
        ValueError: Flags contradict each other, have no effect, or need what is not installed.
    """
    if args.max_seq_len is not None and args.max_new_tokens >= args.max_seq_len:
        raise ValueError(
            f"--max_new_tokens {args.max_new_tokens} leaves no room for a prompt in --max_seq_len "
            f"{args.max_seq_len}; make it smaller."
        )
    tokenizer = load_tokenizer(args)
    greeting = [*_system_messages(args.system_prompt), ChatMessage("user", "Hello")]
    hello = _apply_template(tokenizer, greeting, tokenize=True)
    model = load_model(args)
    do_sample = args.do_sample and args.temperature > 0
    settings: dict[str, Any] = {
        "max_new_tokens": args.max_new_tokens,
        "use_cache": args.use_cache,
        "do_sample": do_sample,
        "eos_token_id": end_token_ids(args, tokenizer, model),
        "pad_token_id": or_default(args.pad_token_id, tokenizer.pad_token_id),
    }
    if do_sample:
        settings |= {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    stops = [*args.stop_tokens.split(), *(args.stop_strings or ())]
    conversation = Conversation(model, tokenizer, settings, args.system_prompt, stops)
    with autocast(args, model):
        if args.warmup:
            model.generate(hello.to(model.device), **settings | {"max_new_tokens": 1})
        torch.manual_seed(args.seed)
        conversation()
    return conversation.history
