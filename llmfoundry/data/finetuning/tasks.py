"""Face of the fine-tuning tasks: rows, chats, preprocessing functions, and data sets of them."""

from llmfoundry.data.finetuning.chat import slice_chat_formatted_example
from llmfoundry.data.finetuning.constructor import DatasetConstructor
from llmfoundry.data.finetuning.examples import get_example_type
from llmfoundry.data.finetuning.preprocessing import (
    QA_format_preprocessor,
    alpaca_preprocessing_function,
    dataset_constructor,
    dolly_preprocessing_function,
    messages_format_preprocessor,
    muennighoff_tokenize_function,
    p3_preprocessing_function,
    shareGPT_format_preprocessor,
)
from llmfoundry.data.finetuning.row_fates import is_valid_ift_example
from llmfoundry.data.finetuning.sources import SUPPORTED_EXTENSIONS
from llmfoundry.data.finetuning.streaming_dataset import StreamingFinetuningDataset
from llmfoundry.data.finetuning.tokenization import tokenize_formatted_example

__all__ = [
    "SUPPORTED_EXTENSIONS",
    "DatasetConstructor",
    "QA_format_preprocessor",
    "StreamingFinetuningDataset",
    "alpaca_preprocessing_function",
    "dataset_constructor",
    "dolly_preprocessing_function",
    "get_example_type",
    "is_valid_ift_example",
    "messages_format_preprocessor",
    "muennighoff_tokenize_function",
    "p3_preprocessing_function",
    "shareGPT_format_preprocessor",
    "slice_chat_formatted_example",
    "tokenize_formatted_example",
]
