"""``python -m composer`` is the launcher."""

import sys

from composer.cli.launcher import main

if __name__ == "__main__":
    sys.exit(main())
