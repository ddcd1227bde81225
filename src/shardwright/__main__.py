"""`shardwright` and `python -m shardwright`: an interrupt ends them in silence, from the first import on."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Nothing is imported before an interrupt is waited for."""
    try:
        from shardwright.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
