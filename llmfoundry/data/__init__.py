"""Face of the loaders: text rows for pre-training, and how they are written and batched."""

from composer.utils.lazy import handed_on

__all__ = [
    "SUPPORTED_MDS_ENCODING_TYPES",
    "AbstractConcatTokensDataset",
    "BinPackCollator",
    "ConcatTokensDataset",
    "ConcatenatedSequenceCollatorWrapper",
    "LossGeneratingTokensCollatorWrapper",
    "NoConcatDataset",
    "Seq2SeqFinetuningCollator",
    "StreamingFinetuningDataset",
    "StreamingTextDataset",
    "auto_packing_ratio",
    "build_dataloader",
    "build_finetuning_dataloader",
    "build_pairs_dataloader",
    "build_text_dataloader",
    "get_data_spec",
    "get_finetuning_collator",
    "get_text_collator",
    "get_tokens_per_batch_func",
    "profile_packing",
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
        "BinPackCollator": "llmfoundry.data.packing",
        "auto_packing_ratio": "llmfoundry.data.packing",
        "profile_packing": "llmfoundry.data.packing",
        "StreamingTextDataset": "llmfoundry.data.text_data",
        "build_text_dataloader": "llmfoundry.data.text_data",
        "build_pairs_dataloader": "llmfoundry.data.contrastive_pairs.dataloader",
        "Seq2SeqFinetuningCollator": "llmfoundry.data.finetuning.collator",
        "StreamingFinetuningDataset": "llmfoundry.data.finetuning.streaming_dataset",
        "build_finetuning_dataloader": "llmfoundry.data.finetuning.dataloader",
        "build_dataloader": "llmfoundry.builders.dataloaders",
        "get_data_spec": "llmfoundry.data.utils",
        "get_finetuning_collator": "llmfoundry.data.utils",
        "get_text_collator": "llmfoundry.data.utils",
        "validate_ds_replication": "llmfoundry.data.utils",
    }
)
