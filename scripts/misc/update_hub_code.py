"""Opens pull requests that bring the modelling code of MPT repositories on the hub up to date."""

from argparse import ArgumentParser

from llmfoundry.command_utils.update_hub_code import update_hub_code

if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "--hf_repos_for_upload", nargs="+", required=True, help="Names on the hub, or all."
    )
    update_hub_code(parser.parse_args().hf_repos_for_upload)
