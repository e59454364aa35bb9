"""Trains a byte-level BPE tokenizer on text files and saves it as a Hugging Face folder."""

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ["train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
# Text goes to the trainer in pieces of this many characters, cut at line ends.
PIECE = 1_000_000


def train_tokenizer(
    input_folder: str,
    output_folder: str,
    vocab_size: int = 4096,
    model_max_length: int | None = None,
) -> Path:
    """Trains on every `*.txt` below `input_folder`; `AutoTokenizer` loads the folder it returns.

    The tokenizer is lossless on any text (its alphabet is the 256 bytes) and has one special token,
    `<|endoftext|>`, which is its bos, eos and unk token.

    Args:
        input_folder: Searched for `*.txt`, sub-folders included.
        output_folder: Made if missing; an older tokenizer in it is replaced.
        vocab_size: Number of pieces, special token included. Small corpora may yield fewer.
        model_max_length: Longest sequence that the model takes, in tokens; recorded only.

    Raises:
        ValueError: If there is no text or `vocab_size` leaves no room for the 256 bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    files = sorted(Path(input_folder).rglob("*.txt"))
    if not files:
        raise ValueError(f"{input_folder} holds no .txt file: there is nothing to train on.")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size <= len(alphabet):
        raise ValueError(
            f"vocab_size is {vocab_size}, but must exceed {len(alphabet)} (the bytes)."
        )
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator(pieces(files), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        **({} if model_max_length is None else {"model_max_length": model_max_length}),
    )
    tokenizer.save_pretrained(output_folder)
    name_class(Path(output_folder))
    print(f"wrote a tokenizer of {len(tokenizer):,} pieces to {output_folder}")
    return Path(output_folder)


def pieces(files: list[Path]) -> Iterator[str]:
    """The text of all files in pieces that fit the memory of any machine."""
    for path in files:
        with path.open(encoding="utf-8") as stream:
            try:
                while lines := stream.readlines(PIECE):
                    yield "".join(lines)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8 text ({error}): convert or remove it."
                ) from error


def name_class(folder: Path) -> None:
    """Writes the class name that transformers 4 knows too; 5 writes one that only 5 loads."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
