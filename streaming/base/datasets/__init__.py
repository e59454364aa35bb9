"""Data sets whose columns are known, offered by streaming.text, .vision and .multimodal."""
