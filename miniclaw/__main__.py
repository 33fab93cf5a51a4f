"""`python -m miniclaw` is the command `miniclaw`."""

import sys

from miniclaw.cli import main

if __name__ == "__main__":
    sys.exit(main())
