"""Face of the loaders: text rows for pre-training, and how they are written and batched."""

from composer.utils.lazy import handed_on

__all__ = [
    "SUPPORTED_MDS_ENCODING_TYPES",
    "AbstractConcatTokensDataset",
    "ConcatTokensDataset",
    "ConcatenatedSequenceCollatorWrapper",
    "LossGeneratingTokensCollatorWrapper",
    "NoConcatDataset",
    "StreamingTextDataset",
    "build_dataloader",
    "build_text_dataloader",
    "get_data_spec",
    "get_text_collator",
    "get_tokens_per_batch_func",
    "stream_remote_local_validate",
    "validate_ds_replication",
]

__getattr__ = handed_on(
    {
        "SUPPORTED_MDS_ENCODING_TYPES": "llmfoundry.data.data",
        "AbstractConcatTokensDataset": "llmfoundry.data.data",
        "ConcatTokensDataset": "llmfoundry.data.data",
        "NoConcatDataset": "llmfoundry.data.data",
        "stream_remote_local_validate": "llmfoundry.data.data",
        "ConcatenatedSequenceCollatorWrapper": "llmfoundry.data.text_collator",
        "LossGeneratingTokensCollatorWrapper": "llmfoundry.data.token_counts",
        "get_tokens_per_batch_func": "llmfoundry.data.token_counts",
        "StreamingTextDataset": "llmfoundry.data.text_data",
        "build_text_dataloader": "llmfoundry.data.text_data",
        "build_dataloader": "llmfoundry.builders.dataloaders",
        "get_data_spec": "llmfoundry.data.utils",
        "get_text_collator": "llmfoundry.data.utils",
        "validate_ds_replication": "llmfoundry.data.utils",
    }
)
