"""Spark data frames into shards: left behind, with a word on what to do instead."""

from typing import NoReturn

_NAMES = ("SPARK_TO_MDS", "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible")


def __getattr__(name: str) -> NoReturn:
    if name in _NAMES:
        raise ImportError(
            f"streaming.base.converters.{name} is not part of this project, which does without "
            "Spark. Write the frame as Parquet, which a StreamingDataset reads as it is; or write "
            "each partition by an MDSWriter into a folder of its own, and then join the folders by "
            "streaming.base.util.merge_index."
        )
    raise AttributeError(f"module 'streaming.base.converters' has no attribute {name!r}")
