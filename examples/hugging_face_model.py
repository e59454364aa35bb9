"""Trains a Hugging Face model from scratch to tell praise from complaint, without a download.

    python examples/hugging_face_model.py --duration 10ep --folder praise-model

The reviews are made up, the tokenizer is trained on them, and the model is a tiny BERT made from a
config; take ``from_pretrained`` for one that is trained already. What it saves is a folder that
plain transformers loads.
"""

import argparse
import itertools
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

from composer import Trainer
from composer.models import HuggingFaceModel
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler

THINGS = ("soup", "bread", "coffee", "cake", "service", "music", "view", "wine", "salad")
WORDS = {1: ("good", "fresh", "lovely", "perfect", "warm"), 0: ("bad", "stale", "dull", "cold")}


def make_reviews(seed: int = 0) -> list[tuple[str, int]]:
    """Makes up reviews with their label, 1 for praise: a "not" turns a word's meaning around."""
    reviews = []
    for thing, label, has_not in itertools.product(THINGS, WORDS, (False, True)):
        for word, opening in itertools.product(WORDS[label], ("the", "our", "I thought the")):
            negation = "not " if has_not else ""
            reviews.append((f"{opening} {thing} was {negation}{word}", label ^ has_not))
    random.Random(seed).shuffle(reviews)
    return reviews


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Trains a byte-pair tokenizer that frames a text as BERT wants it."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def make_loader(
    reviews: list[tuple[str, int]], tokenizer: PreTrainedTokenizerFast, **settings: Any
) -> DataLoader[Any]:
    """Returns batches of input_ids, attention_mask and labels, padded to their longest text."""
    rows = [{**tokenizer(text), "labels": label} for text, label in reviews]
    return DataLoader(rows, collate_fn=DataCollatorWithPadding(tokenizer), **settings)


def train(duration: str, folder: Path | None = None, seed: int = 17) -> float:
    """Trains, saves the model if there is a folder for it, and returns the held-out accuracy."""
    reviews = make_reviews()
    tokenizer = train_tokenizer([text for text, _ in reviews])
    held_out, trained_on = reviews[:100], reviews[100:]
    torch.manual_seed(seed)
    bert = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2,
        )
    )
    accuracy = MulticlassAccuracy(num_classes=2, average="micro")
    trainer = Trainer(
        model=HuggingFaceModel(bert, tokenizer, metrics=[accuracy], use_logits=True),
        train_dataloader=make_loader(trained_on, tokenizer, batch_size=32, shuffle=True),
        eval_dataloader=make_loader(held_out, tokenizer, batch_size=50),
        optimizers=DecoupledAdamW(bert.parameters(), lr=1e-3, weight_decay=1e-5),
        schedulers=LinearWithWarmupScheduler(t_warmup="0.1dur", alpha_f=0.0),
        max_duration=duration,
        seed=seed,
    )
    trainer.fit()
    trainer.close()
    if folder is not None:
        bert.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return float(trainer.state.eval_metric_values["MulticlassAccuracy"])


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--duration", default="10ep", help="such as 10ep or 100ba")
    parser.add_argument("--folder", type=Path, default=None, help="where to save the model")
    arguments = parser.parse_args()
    print(f"{train(arguments.duration, arguments.folder):.1%} of the held-out reviews are told")


if __name__ == "__main__":
    main()
