"""Face of the embedding models."""

from composer.utils.lazy import handed_on

__all__ = ["ContrastiveConfig", "ContrastiveEvalLoss", "ContrastiveModel", "FinetuneEmbeddingModel"]

__getattr__ = handed_on(
    {
        "ContrastiveConfig": "llmfoundry.models.llm_embed.contrastive_loss",
        "ContrastiveEvalLoss": "llmfoundry.models.llm_embed.contrastive_loss",
        "ContrastiveModel": "llmfoundry.models.llm_embed.contrastive_model",
        "FinetuneEmbeddingModel": "llmfoundry.models.llm_embed.finetune_embedding_model",
    }
)
