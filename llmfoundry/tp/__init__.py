"""Face of the tensor-parallel strategies that recipes name."""

from composer.utils.lazy import handed_on

__all__ = ["ffn_tp_strategy", "llama_tp_strategy", "mpt_tp_strategy"]

__getattr__ = handed_on(
    {
        "ffn_tp_strategy": "llmfoundry.tp.ffn",
        "llama_tp_strategy": "llmfoundry.tp.llama",
        "mpt_tp_strategy": "llmfoundry.tp.mpt",
    }
)
