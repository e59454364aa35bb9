"""What a fine-tuning row may look like, and what is wrong with one that does not."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from llmfoundry.utils.exceptions import (
    ALLOWED_MESSAGES_KEYS,
    ALLOWED_PROMPT_KEYS,
    ALLOWED_RESPONSE_KEYS,
    ConsecutiveRepeatedChatRolesError,
    IncorrectMessageKeyQuantityError,
    InvalidContentTypeError,
    InvalidExampleTypeError,
    InvalidLastChatMessageRoleError,
    InvalidMessageTypeError,
    InvalidPromptTypeError,
    InvalidResponseTypeError,
    InvalidRoleError,
    NotEnoughChatDataError,
    UnknownExampleTypeError,
)

__all__ = [
    "Example",
    "get_example_type",
    "get_messages",
    "get_prompt_and_response",
    "without_absent_columns",
]

Example = Mapping[str, Any]

MESSAGE_KEYS = {"role", "content"}
ROLES = {"assistant", "system", "tool", "user"}
LAST_ROLES = {"assistant"}


def get_example_type(example: Example) -> Literal["chat", "prompt_response"]:
    """Says whether a row is a chat (``messages``) or a prompt and its response.

    Raises:
        InvalidExampleTypeError: The row is no mapping.
        UnknownExampleTypeError: It has other keys.
    """
    if not isinstance(example, Mapping):
        raise InvalidExampleTypeError(str(type(example)))
    kind = _type_of(set(example))
    if kind is None:
        raise UnknownExampleTypeError(str(set(example)))
    return kind


def _type_of(keys: set[str]) -> Literal["chat", "prompt_response"] | None:
    if len(keys) == 1 and keys <= ALLOWED_MESSAGES_KEYS:
        return "chat"
    if len(keys) == 2 and keys & ALLOWED_PROMPT_KEYS and keys & ALLOWED_RESPONSE_KEYS:
        return "prompt_response"
    return None


def get_prompt_and_response(example: Example) -> tuple[str, str]:
    """The texts of a row with a ``prompt`` and a ``response`` or ``completion``.

    Raises:
        InvalidPromptTypeError: The prompt is no text.
        InvalidResponseTypeError: The response is no text.
    """
    prompt = example[next(iter(ALLOWED_PROMPT_KEYS & set(example)))]
    response = example[next(iter(ALLOWED_RESPONSE_KEYS & set(example)))]
    if not isinstance(prompt, str):
        raise InvalidPromptTypeError(type(prompt))
    if not isinstance(response, str):
        raise InvalidResponseTypeError(type(response))
    return prompt, response


def get_messages(example: Example) -> Sequence[Mapping[str, Any]]:
    """The messages of a chat: at least two, by turns, and the last by the assistant.

    Raises:
        UserError: They are not; the named error says which rule is broken.
    """
    messages = example["messages"]
    if not isinstance(messages, list | tuple):
        raise InvalidMessageTypeError(str(type(messages)))
    if len(messages) < 2:
        raise NotEnoughChatDataError()
    last_role = _checked_keys(messages[-1])["role"]
    if last_role not in sorted(LAST_ROLES):
        raise InvalidLastChatMessageRoleError(last_role, LAST_ROLES)
    before = None
    for message in messages:
        role, content = _checked_keys(message)["role"], message["content"]
        if len(message) != len(MESSAGE_KEYS):
            raise IncorrectMessageKeyQuantityError(list(message))
        if role not in sorted(ROLES):
            raise InvalidRoleError(role, ROLES)
        if not isinstance(content, str | list):
            raise InvalidContentTypeError(type(content))
        if role == before:
            raise ConsecutiveRepeatedChatRolesError(role)
        before = role
    return messages


def _checked_keys(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidExampleTypeError(str(type(message)))
    if not set(message) >= MESSAGE_KEYS:
        raise UnknownExampleTypeError(str(set(message)))
    return message


def without_absent_columns(example: Any) -> Any:
    """A row of a table without the columns, and keys of messages, that only other rows have.

    A table gives every row all columns, and None where a row of the file had no such key. A None
    under a key that makes the row what it is stays, and is an error of its own.
    """
    if not isinstance(example, Mapping):
        return example
    if _type_of(set(example)) is None:
        example = {key: value for key, value in example.items() if value is not None}
    messages = example.get("messages")
    if isinstance(messages, list):
        example = {**example, "messages": [_without_absent_keys(each) for each in messages]}
    return example


def _without_absent_keys(message: Any) -> Any:
    if not isinstance(message, Mapping) or len(message) <= len(MESSAGE_KEYS):
        return message
    return {k: v for k, v in message.items() if v is not None or k in MESSAGE_KEYS}
