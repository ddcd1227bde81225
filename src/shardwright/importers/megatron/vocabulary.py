"""The size of a vocabulary that the arguments leave to the tokenizer.

`data/vocabularies.csv` has tokenizers by what their names contain, the more special first, with sizes as their models'
config.json have them.
"""

from __future__ import annotations

import re

from shardwright.files import shipped_table

ASSUMED = 128_000
THOUSANDS = re.compile(r"(?<![a-z0-9])(\d{2,3})k(?![a-z0-9])")
WHOLE = re.compile(r"(?<![0-9a-z.])([3-9]\d{4}|[1-3]\d{5})(?![0-9a-z.])")


def size_of(*names: str | None) -> int | None:
    """Return the size that one of the names of a tokenizer tells, None where none does."""
    for name in names:
        text = (name or "").casefold()
        if (told := THOUSANDS.search(text)) and "bigscience" not in text:
            return 1000 * int(told[1])
        if told := WHOLE.search(text):
            return int(told[1])
        for row in shipped_table("shardwright.importers.megatron", "vocabularies.csv"):
            if text and re.search(row["pattern"], text):
                return int(row["size"])
    return None
