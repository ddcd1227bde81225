"""`shardwright` and `python -m shardwright`: an interrupt ends them in silence, from the first import on."""

import gc
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Nothing is imported before an interrupt is waited for."""
    try:
        from shardwright.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()  # skip the final garbage collection


if __name__ == "__main__":
    main()
