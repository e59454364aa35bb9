"""Prints what a recipe's fine-tuning rows would waste, packed at one ratio or another."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.packing_profile import print_packing_profile


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--yaml-path", required=True, help="The recipe.")
    parser.add_argument("--num-devices", type=int, required=True, help="Devices of a batch.")
    parser.add_argument("--min", type=float, required=True, help="Lowest packing ratio.")
    parser.add_argument("--max", type=float, required=True, help="Highest packing ratio.")
    parser.add_argument("--num-packing-ratios", type=int, default=20, help="Ratios to try.")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    print_packing_profile(
        args.yaml_path, args.num_devices, args.min, args.max, args.num_packing_ratios
    )
