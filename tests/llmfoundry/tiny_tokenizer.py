"""A byte-level BPE tokenizer, trained on the spot."""

from typing import Any

TEXT = [
    "the cat sat on the mat and the dog sat on the log",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "it was the best of times, it was the worst of times",
]


def train_tokenizer(
    bos: bool = False, eos: bool = False, pad: bool = False, size: int = 300
) -> Any:
    """Trains a tokenizer; ``bos`` and ``eos`` make it add these tokens itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if bos or eos:
        template = ["<s>"] * bos + ["$A"] + ["</s>"] * eos
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(template),
            special_tokens=[(each, tokenizer.token_to_id(each)) for each in special],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>" if pad else None,
    )


def train_with_spaces(kind: str) -> Any:
    """Trains a tokenizer that, like SentencePiece, begins a text with a space, as a letter.

    Args:
        kind: Where: at the ``first`` letter of a text; ``always``, so behind special tokens too; or
            ``prepend``, the same as Llama 2's files say it.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    if kind == "prepend":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
