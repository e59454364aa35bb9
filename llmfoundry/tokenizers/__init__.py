"""Face of the tokenizers that are no folder of files."""

from composer.utils.lazy import handed_on

__all__ = ["TiktokenTokenizerWrapper", "get_date_string"]

__getattr__ = handed_on(
    {
        "TiktokenTokenizerWrapper": "llmfoundry.tokenizers.tiktoken",
        "get_date_string": "llmfoundry.tokenizers.dates",
    }
)
