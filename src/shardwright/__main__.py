"""`shardwright` and `python -m shardwright`: an interrupt ends them in silence, from the first import on."""

import gc
import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Nothing is imported before an interrupt is waited for."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # NumPy's threads take 0.1 s to start and have nothing to do here
    try:
        from shardwright.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()  # skip the final garbage collection


if __name__ == "__main__":
    main()
