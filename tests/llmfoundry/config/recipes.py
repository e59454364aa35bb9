"""A small recipe that is right, for tests that make one thing wrong."""

from typing import Any

from composer.models.base import ComposerModel


class TinyModel(ComposerModel):
    """Stands for a model whose arguments are known."""

    def __init__(self, tokenizer: Any, d_model: int, n_layers: int = 2, dropout: float = 0.0):
        super().__init__()

    def forward(self, batch: Any) -> Any:
        return batch

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return outputs


RECIPE = """
variables:
  seq: 32
max_seq_len: ${variables.seq}
model:
  name: tiny_test_model
  d_model: 16
tokenizer:
  name: some/tokenizer
  kwargs:
    model_max_length: ${variables.seq}
optimizer:
  name: decoupled_adamw
  lr: 1e-5
scheduler:
  name: cosine_with_warmup
  t_warmup: 10ba
train_loader:
  name: text
  dataset:
    local: ./data
    split: train
    max_seq_len: ${variables.seq}
    shuffle: true
  drop_last: true
  num_workers: 0
max_duration: 20ba
global_train_batch_size: 8
device_train_microbatch_size: 4
"""
