"""Turns a language model in the Hugging Face format into an ONNX graph."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.convert_hf_to_onnx import export_to_onnx
from llmfoundry.command_utils.hf_generate import str2bool, str_or_bool


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--pretrained_model_name_or_path", required=True, help="A folder, or a name on the hub.")
    add("--output_folder", required=True, help="Gets model.onnx; here or in an object store.")
    add("--export_batch_size", type=int, default=8, help="Rows of the batch that is traced.")
    add("--max_seq_len", type=int, help="Tokens of its rows; by default what an MPT can read.")
    add("--verify_export", action="store_true", help="Compares logits at other shapes too.")
    add(
        "--trust_remote_code",
        type=str2bool,
        nargs="?",
        const=True,
        default=False,
        help="Runs code that comes with the model.",
    )
    add("--use_auth_token", type=str_or_bool, nargs="?", const=True, help="Token for the hub.")
    add("--revision", help="Branch, tag or commit on the hub.")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    export_to_onnx(
        args.pretrained_model_name_or_path,
        args.output_folder,
        args.export_batch_size,
        args.max_seq_len,
        args.verify_export,
        {
            "trust_remote_code": args.trust_remote_code,
            "token": args.use_auth_token,
            "revision": args.revision,
        },
    )
