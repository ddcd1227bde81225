"""`shardwright tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli.destination import require_writable
from shardwright.cli.output import write
from shardwright.commands import argument, option
from shardwright.errors import bad


def tokens(
    texts: Annotated[tuple[Path, ...], argument(metavar="TEXT…", help="Text files, in UTF-8.")],
    out: Annotated[Path, option("--out", "-o", metavar="FILE.bin", help="Write the tokens here.")],
    tokenizer: Annotated[
        str, option(metavar="NAME", help="bytes, or a Hugging Face tokenizer.json or its folder.")
    ] = "bytes",
) -> None:
    """Make a token file for `train` from text files.

    Examples:

    \b
      shardwright tokens book.txt notes.md -o corpus.bin
      shardwright tokens *.txt -o corpus.bin --tokenizer path/to/tokenizer.json
    """
    from shardwright.runtime.storage.data import header_path, write_tokens

    if out.suffix != ".bin":
        raise bad(str(out), "does not end in .bin", "the header is written beside it as .json")
    for path in (out, header_path(out)):
        require_writable(path, texts)
    file = write_tokens(out, texts, tokenizer)
    write(f"{out}: {len(file.tokens):,} tokens, vocabulary {file.vocab:,} ({tokenizer})")
