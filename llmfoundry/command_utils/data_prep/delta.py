"""Databricks' tables into JSON or shards: left behind, with a word on what to do instead."""

from typing import Any, NoReturn

__all__ = ["convert_delta_to_contrastive_mds", "convert_delta_to_json_from_args", "fetch_DT"]


def fetch_DT(*args: Any, **kwargs: Any) -> NoReturn:
    """Says what to use instead.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "This project does not connect to Databricks. Export the table where it is, by "
        "df.write.json(folder) or df.write.parquet(folder), and then use "
        "`llmfoundry data_prep convert_dataset_json` or `convert_finetuning_dataset`, or let the "
        "loader read the files as they are."
    )


convert_delta_to_json_from_args = convert_delta_to_contrastive_mds = fetch_DT
