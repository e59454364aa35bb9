"""shim: ``build_dataloader`` lives with the other builders."""

from llmfoundry.builders.dataloaders import build_dataloader

__all__ = ["build_dataloader"]
