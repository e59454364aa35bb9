"""The JSON format: one JSON object a line."""

from streaming.base.format.json.reader import JSONReader
from streaming.base.format.json.writer import JSONWriter

__all__ = ["JSONReader", "JSONWriter"]
