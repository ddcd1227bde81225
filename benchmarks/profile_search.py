"""Where the time of one search goes, by function: the second of two calls, whose tables are made.

.venv/bin/python benchmarks/profile_search.py [NAME] [--sort tottime] [--rows 40]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats

from mixed import CASES, search_of


def main(name: str, sort: str, rows: int) -> None:
    """Search a case of benchmarks/mixed.py twice, and print the profile of the second search."""
    search = search_of(next(case for case in CASES if case.name == name))
    search()
    with cProfile.Profile() as profile:
        search()
    pstats.Stats(profile).strip_dirs().sort_stats(sort).print_stats(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="three-128", choices=[case.name for case in CASES])
    parser.add_argument("--sort", default="cumulative", choices=["cumulative", "tottime", "ncalls"])
    parser.add_argument("--rows", type=int, default=40)
    asked = parser.parse_args()
    main(asked.name, asked.sort, asked.rows)
