"""Downloads a model, or its tokenizer only: from the hub, a web server or an OCI registry.

download_model.py hf --model gpt2 --save-dir FOLDER
download_model.py http --url URL --save-dir FOLDER fallback-hf --model gpt2
download_model.py oras --model NAME --config-file FILE --credentials-dir FOLDER --save-dir FOLDER
"""

import logging
import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter

from llmfoundry.utils.model_download_utils import (
    download_from_hf_hub,
    download_from_http_fileserver,
    download_from_oras,
)

log = logging.getLogger(__name__)


def parse_args() -> Namespace:
    """Reads the command line."""
    common, hf, oras = (ArgumentParser(add_help=False) for _ in range(3))
    common.add_argument("--save-dir", required=True, help="The folder that gets the files.")
    common.add_argument("--tokenizer-only", action="store_true", help="Leaves out the model.")
    hf.add_argument("--model", required=True, help="The repository on the hub.")
    hf.add_argument(
        "--prefer-safetensors",
        action=BooleanOptionalAction,
        default=True,
        help="Which format is taken where there are both.",
    )
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    hf.add_argument("--token", default=token, help="By default HF_TOKEN of the environment.")
    oras.add_argument("--model", required=True, help="The name in the configuration.")
    oras.add_argument("--config-file", required=True, help="YAML: paths in the registry by name.")
    oras.add_argument(
        "--credentials-dir", required=True, help="Files registry, username, password."
    )
    oras.add_argument("--concurrency", type=int, default=10, help="Downloads at a time.")
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    sources = parser.add_subparsers(dest="source", required=True)
    sources.add_parser("hf", parents=[common, hf])
    sources.add_parser("oras", parents=[common, oras])
    http = sources.add_parser("http", parents=[common])
    http.add_argument("--url", required=True, help="A folder that the server lists.")
    http.add_argument("--ignore-cert", action="store_true", help="Accepts any certificate.")
    fallbacks = http.add_subparsers(dest="fallback", help="Where else, if the server has it not.")
    fallbacks.add_parser("fallback-hf", parents=[hf])
    fallbacks.add_parser("fallback-oras", parents=[oras])
    return parser.parse_args()


def download(args: Namespace, source: str) -> None:
    """Downloads from one source."""
    if source == "hf":
        download_from_hf_hub(
            args.model, args.save_dir, args.prefer_safetensors, args.tokenizer_only, args.token
        )
    elif source == "oras":
        download_from_oras(
            args.model,
            args.config_file,
            args.credentials_dir,
            args.save_dir,
            args.tokenizer_only,
            args.concurrency,
        )
    else:
        download_from_http_fileserver(
            args.url, args.save_dir, args.ignore_cert, args.tokenizer_only
        )


def main(args: Namespace) -> None:
    """Downloads from the source, or from the fallback if that fails."""
    fallback = getattr(args, "fallback", None)
    try:
        download(args, args.source)
    except (PermissionError, RuntimeError, ValueError) as error:
        if fallback is None:
            raise
        log.warning("%s Falling back to %s.", error, fallback)
        download(args, fallback.removeprefix("fallback-"))


if __name__ == "__main__":
    main(parse_args())
