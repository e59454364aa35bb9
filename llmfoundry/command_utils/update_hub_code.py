"""Opens pull requests that bring the modelling code of MPT repositories on the hub up to date."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from llmfoundry.models.hf.hf_export import write_mpt_code
from llmfoundry.utils.huggingface_hub_utils import upload_to_hub

__all__ = ["MPT_REPOS", "update_hub_code"]

MPT_REPOS = (
    "mosaicml/mpt-7b",
    "mosaicml/mpt-7b-instruct",
    "mosaicml/mpt-7b-chat",
    "mosaicml/mpt-7b-storywriter",
    "mosaicml/mpt-7b-8k",
    "mosaicml/mpt-7b-8k-instruct",
    "mosaicml/mpt-7b-8k-chat",
    "mosaicml/mpt-30b",
    "mosaicml/mpt-30b-instruct",
    "mosaicml/mpt-30b-chat",
)


def update_hub_code(repos: Sequence[str]) -> list[str]:
    """Opens a pull request with the modelling code in each repository, and returns their addresses.

    Args:
        repos: Names on the hub, or ``all`` for the released MPT models.
    """
    names = MPT_REPOS if "all" in repos else repos
    opened = []
    with tempfile.TemporaryDirectory() as scratch:
        write_mpt_code(Path(scratch))
        for repo in names:
            address = upload_to_hub(
                scratch,
                repo,
                allow_patterns=["*.py"],
                commit_message="LLM-foundry update: modelling code",
                create_pr=True,
            )
            print(f"{repo}: {address}")
            opened.append(address)
    return opened
