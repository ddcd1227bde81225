"""`python -m tests.golden_replay`: rewrites the results, and says what changed."""

from __future__ import annotations

import sys
import time

from tests.golden_replay.compare import answers_of, differences, text_of, updated
from tests.golden_replay.problem import KINDS, RESULTS, answer, problems


def main(kinds: list[str]) -> None:
    """Replay `kinds` (all), write what differs by more than rounding, and print what it is."""
    for kind in kinds or KINDS:
        begin = time.perf_counter()
        found = {name: answer(description) for name, description in problems(kind).items()}
        path = RESULTS / f"{kind}.txt"
        kept = answers_of(path.read_text()) if path.exists() else {}
        changes = list(differences(kept, found))
        path.write_text(text_of(updated(kept, found)))
        print(f"{kind}: {len(found)} problems in {time.perf_counter() - begin:.1f} s, {len(changes)} changes")
        print("".join(f"  {line}\n" for line in changes), end="", flush=True)
    for path in RESULTS.glob("*.txt"):
        if path.stem not in KINDS:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
