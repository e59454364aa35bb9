"""Face of fine-tuning data: rows of answers to learn, and the loader of them."""

from composer.utils.lazy import handed_on

__all__ = [
    "Seq2SeqFinetuningCollator",
    "StreamingFinetuningDataset",
    "build_finetuning_dataloader",
    "dataset_constructor",
]

__getattr__ = handed_on(
    {
        "Seq2SeqFinetuningCollator": "llmfoundry.data.finetuning.collator",
        "StreamingFinetuningDataset": "llmfoundry.data.finetuning.streaming_dataset",
        "build_finetuning_dataloader": "llmfoundry.data.finetuning.dataloader",
        "dataset_constructor": "llmfoundry.data.finetuning.preprocessing",
    }
)
