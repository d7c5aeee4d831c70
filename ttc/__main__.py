"""`python -m ttc` and the command `ttc`; imports wait until Ctrl-C is handled, so that it never shows a traceback."""

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
