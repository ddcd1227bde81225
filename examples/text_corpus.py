"""Makes a small token file of real text: the standard library's own documentation, as bytes.

    python examples/text_corpus.py corpus.bin

The texts are the language reference that `help()` shows and the docstrings of the library's modules, about 3 MB; they
differ a little between versions of Python.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from pydoc_data.topics import topics

from shardwright.runtime.storage.data import write_tokens


def docstrings(path: Path) -> str:
    """Return the docstrings of a module and of what it defines, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(text for text in found if text)


def main(out: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    texts = [topics[name] for name in sorted(topics)] + [docstrings(path) for path in sorted(library.glob("*.py"))]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number:04d}.txt" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
        found = write_tokens(out, files)
    print(f"{out}: {len(found.tokens):,} tokens from {len(texts)} texts")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "corpus.bin"))
