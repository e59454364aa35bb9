"""A tiktoken encoding as a transformers tokenizer.

The file needs nothing of this package, because a saved tokenizer takes a copy of it along.
"""

import functools
import importlib
from typing import Any

from transformers import PreTrainedTokenizer

__all__ = ["TiktokenTokenizerWrapper"]

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible."
)

CHAT_TEMPLATE = (
    "{% if not messages %}{{ raise_exception('A chat needs at least one message.') }}{% endif %}"
    "{% for message in messages %}"
    "{% if loop.first %}{% if message['role'] != 'system' and DEFAULT_PROMPT %}"
    "{{ '<|im_start|>system\\n' + DEFAULT_PROMPT + '<|im_end|>\\n' }}{% endif %}"
    "{% else %}{{ '\\n' }}{% endif %}"
    "{% set content = message['content'].strip() if message['role'] == 'system' "
    "else message['content'] %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif %}"
)


@functools.lru_cache
def bytes_to_unicode() -> dict[int, str]:
    """A printable character for each byte, as GPT-2's tokenizer has them.

    Visible Latin-1 characters stand for themselves; the others take the code points from 256 on.
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    pairs = [(byte, chr(byte)) for byte in visible]
    pairs += [(byte, chr(256 + number)) for number, byte in enumerate(hidden)]
    return dict(pairs)


def _encoding(model_name: str | None, encoding_name: str | None) -> Any:
    if (model_name is None) == (encoding_name is None):
        raise ValueError(
            "You need to specify either model_name or encoding_name, and not both; got "
            f"model_name={model_name!r}, encoding_name={encoding_name!r}."
        )
    try:
        package: Any = importlib.import_module("tiktoken")  # as a statement it looks like this file
    except ImportError as error:
        raise ImportError(
            "You need the package tiktoken for this tokenizer: pip install llmfoundry[openai]"
        ) from error
    if model_name is not None:
        return package.encoding_for_model(model_name)
    return package.get_encoding(encoding_name)


class TiktokenTokenizerWrapper(PreTrainedTokenizer):
    """Gives a tiktoken encoding the interface of transformers.

    Args:
        model_name: A model whose encoding tiktoken knows, such as ``gpt-4``.
        encoding_name: An encoding, such as ``cl100k_base``; exactly one of the two is given.
        add_bos_token: Puts the start token before each sequence.
        add_eos_token: Puts the end token behind each sequence.
        use_default_system_prompt: Starts chats without a system message with a default one.
        unk_token: Stands for tokens that are unknown.
        eos_token: The end token.
        bos_token: The start token.
        pad_token: The padding token.
        errors: What to do with bytes that are no UTF-8, as in ``bytes.decode``.
        chat_template: How chats become text; ChatML if unset.
        **kwargs: Every other argument of a transformers tokenizer.
    """

    model_input_names: list[str] = ["input_ids", "attention_mask"]

    def __init__(
        self,
        model_name: str | None = None,
        encoding_name: str | None = None,
        add_bos_token: bool = False,
        add_eos_token: bool = False,
        use_default_system_prompt: bool = False,
        unk_token: str | None = "<|endoftext|>",
        eos_token: str | None = "<|endoftext|>",
        bos_token: str | None = "<|endoftext|>",
        pad_token: str | None = None,
        errors: str = "replace",
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.encoding = _encoding(model_name, encoding_name)
        # transformers 5 drops add_bos_token and add_eos_token from what it saves and loads.
        add_bos_token = kwargs.pop("starts_with_bos", add_bos_token)
        add_eos_token = kwargs.pop("ends_with_eos", add_eos_token)
        self.add_bos_token = add_bos_token
        self.add_eos_token = add_eos_token
        self.use_default_system_prompt = use_default_system_prompt
        self.errors = errors
        self.byte_encoder = bytes_to_unicode()
        self.byte_decoder = {character: byte for byte, character in self.byte_encoder.items()}
        self.decoder = self._read_vocabulary()
        self.encoder = {token: index for index, token in self.decoder.items()}
        ends = [name for name, on in (("bos", add_bos_token), ("eos", add_eos_token)) if on]
        kwargs["special_tokens_pattern"] = "_".join(ends) or "none"
        super().__init__(
            model_name=model_name,
            encoding_name=encoding_name,
            starts_with_bos=add_bos_token,
            ends_with_eos=add_eos_token,
            use_default_system_prompt=use_default_system_prompt,
            unk_token=unk_token,
            eos_token=eos_token,
            bos_token=bos_token,
            pad_token=pad_token,
            errors=errors,
            chat_template=chat_template or self.default_chat_template,
            **kwargs,
        )

    def _read_vocabulary(self) -> dict[int, str]:
        """The tokens that there are; an encoding may leave ids out."""
        decoder = {}
        for index in range(self.encoding.n_vocab):
            try:
                token = self.encoding.decode_single_token_bytes(index)
            except KeyError:
                continue
            decoder[index] = "".join(self.byte_encoder[byte] for byte in token)
        return decoder

    @property
    def vocab_size(self) -> int:
        """How many ids the encoding has, used or not."""
        return self.encoding.n_vocab

    @property
    def default_chat_template(self) -> str:
        """ChatML, without a newline behind the last message."""
        prompt = DEFAULT_SYSTEM_PROMPT if self.use_default_system_prompt else ""
        return CHAT_TEMPLATE.replace("DEFAULT_PROMPT", repr(prompt))

    def get_vocab(self) -> dict[str, int]:
        """All tokens and their ids; ids that no token has are called ``<extra_id_k>``."""
        vocabulary = dict(self.encoder)
        number = 0
        for index in range(self.vocab_size):
            if index in self.decoder:
                continue
            while f"<extra_id_{number}>" in vocabulary:
                number += 1
            vocabulary[f"<extra_id_{number}>"] = index
        return vocabulary | self._added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        if not isinstance(text, str):
            raise ValueError(f"Expected a string input to _tokenize but got {type(text)}.")
        return [self.decoder[index] for index in self.encoding.encode(text, allowed_special="all")]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self.encoder.get(token, self.encoder.get(str(self.unk_token)))

    def _convert_id_to_token(self, index: int) -> str:
        # For an id that the encoding leaves out there is nothing to show.
        return self.decoder.get(index, "")

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Joins tokens to text."""
        text = "".join(tokens)
        # Added tokens are plain text, which may hold characters that stand for no byte.
        pieces = [
            bytes([self.byte_decoder[character]])
            if character in self.byte_decoder
            else character.encode("utf-8")
            for character in text
        ]
        return b"".join(pieces).decode("utf-8", errors=self.errors)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Puts the start and the end token around each sequence, as far as they are asked for."""
        before: list[Any] = [self.bos_token_id] if self.add_bos_token else []
        after: list[Any] = [self.eos_token_id] if self.add_eos_token else []
        first = before + token_ids_0 + after
        return first if token_ids_1 is None else first + before + token_ids_1 + after

    def save_vocabulary(  # pyright: ignore[reportIncompatibleMethodOverride]  # no files
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str | None, str | None]:
        """Saves nothing: the vocabulary is tiktoken's own."""
        return None, None


TiktokenTokenizerWrapper.register_for_auto_class()
