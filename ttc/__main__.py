"""`python -m ttc` and the command `ttc`: nothing is imported before an interrupt would end in one line."""

import os
import sys


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    try:
        from ttc.cli.process import main as run

        return run()
    except KeyboardInterrupt:
        os.write(2, b"ttc: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
