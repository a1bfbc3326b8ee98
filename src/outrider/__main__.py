"""`python -m outrider` is the program `outrider`."""

import sys

from outrider.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
