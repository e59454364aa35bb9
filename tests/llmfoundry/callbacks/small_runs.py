"""Small runs of models that transformers loads, for the tests of what saves them."""

from pathlib import Path
from typing import Any

import torch

from composer.core.data_spec import DataSpec
from composer.models.huggingface import HuggingFaceModel
from composer.trainer.trainer import Trainer
from composer.utils import dist
from llmfoundry.models.hf.hf_causal_lm import ComposerHFCausalLM
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

VOCABULARY = 304
MPT: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "max_seq_len": 16,
    "vocab_size": VOCABULARY,
    "no_bias": True,
    "attn_config": {"attn_impl": "torch", "alibi": True},
}
LORA = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj"]}


def mpt(**changes: Any) -> ComposerMPTCausalLM:
    """An MPT; transformers' own class computes it unless something is changed."""
    torch.manual_seed(1)
    settings = {key: dict(v) if isinstance(v, dict) else v for key, v in {**MPT, **changes}.items()}
    return ComposerMPTCausalLM(tokenizer=train_tokenizer(), use_train_metrics=False, **settings)


def llama_folder(folder: Path) -> str:
    """Writes a Llama to a folder, with a page that tells its licence."""
    import transformers

    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: bsd-3-clause\n---\n# Base\n")
    (folder / "LICENSE").write_text("Do as you like.\n")
    (folder / "LICENSES").mkdir()
    return str(folder)


def llama(folder: str, **changes: Any) -> ComposerHFCausalLM:
    """Loads the Llama of a folder."""
    torch.manual_seed(1)
    return ComposerHFCausalLM(
        tokenizer=train_tokenizer(),
        pretrained_model_name_or_path=folder,
        use_train_metrics=False,
        **changes,
    )


def run(model: HuggingFaceModel, *callbacks: Any, end: str = "4ba", **settings: Any) -> Trainer:
    """Makes a run of eight batches an epoch; its last rank sees other samples than its first."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(3, 299, (16, 12), generator=generator)
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    loader = torch.utils.data.DataLoader(
        data, 2 // dist.get_world_size(), sampler=dist.get_sampler(data)
    )
    weights = [each for each in model.parameters() if each.requires_grad]
    defaults: dict[str, Any] = {
        "optimizers": torch.optim.AdamW(weights, lr=1e-2),
        "run_name": "run",
        "seed": 4,
        "progress_bar": False,
    }
    return Trainer(
        model=model,
        train_dataloader=DataSpec(loader, get_num_tokens_in_batch=lambda b: b["input_ids"].numel()),
        max_duration=end,
        callbacks=list(callbacks),
        **{**defaults, **settings},
    )
