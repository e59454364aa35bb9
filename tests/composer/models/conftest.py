"""Tiny transformers models, built from configurations, and a tokenizer; nothing is fetched."""

import pytest
import torch

VOCAB = 64


def _gpt2(transformers, **kwargs):
    config = transformers.GPT2Config(
        **{"vocab_size": VOCAB, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        | {"bos_token_id": 0, "eos_token_id": 0}
        | kwargs
    )
    return transformers.GPT2LMHeadModel(config)


def _llama(transformers, **kwargs):
    config = transformers.LlamaConfig(
        **{"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
        | {"bos_token_id": 0, "eos_token_id": 0}
        | kwargs
    )
    return transformers.LlamaForCausalLM(config)


def _bert(transformers, head="BertForMaskedLM", **kwargs):
    config = transformers.BertConfig(
        **{"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "max_position_embeddings": 32}
        | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        | kwargs
    )
    return getattr(transformers, head)(config)


def _t5(transformers, **kwargs):
    config = transformers.T5Config(
        **{"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1}
        | {"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0}
        | kwargs
    )
    return transformers.T5ForConditionalGeneration(config)


KINDS = {"gpt2": _gpt2, "llama": _llama, "bert": _bert, "t5": _t5}


@pytest.fixture
def make_model():
    """Builds a tiny model of a kind."""
    transformers = pytest.importorskip("transformers")

    def make(kind, **kwargs):
        torch.manual_seed(0)
        return KINDS[kind](transformers, **kwargs).eval()

    return make


@pytest.fixture
def make_tokenizer():
    """Builds a word-level tokenizer with a given number of entries."""
    transformers = pytest.importorskip("transformers")
    import tokenizers

    def make(entries=VOCAB, **kwargs):
        vocab = {"<eos>": 0, "<pad>": 1, "<unk>": 2}
        vocab |= {f"w{i}": i for i in range(3, entries)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        names = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names | kwargs)

    return make


@pytest.fixture
def text_batch():
    """Three rows of unequal length, padded on the right, with a prompt that is not learnt."""
    torch.manual_seed(1)
    input_ids = torch.randint(3, VOCAB, (3, 8))
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3, [1] * 3 + [0] * 5])
    labels = input_ids.masked_fill(mask == 0, -100)
    labels[0, :3] = -100
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
