"""Blanks, comments, here-documents and operators of a script."""

from __future__ import annotations

import re

from shardwright.importers.shell.words import EMPTY, ShellWord, Text, read_quoted

OPERATORS = (
    *(";;&", ";;", ";&", "&&", "&>>", "&>", "||", "|&", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|"),
    *(";", "&", "|", "<", ">", "(", ")", "\n"),
)


class Lexer:
    """Blanks, lines and operators of `text`, from `position` on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self.waiting: list[tuple[str, bool, bool]] = []  # here-documents: delimiter, quoted, tabs stripped
        self.bodies: list[ShellWord] = []

    def blanks(self) -> None:
        """Skip spaces, continued lines and comments."""
        text = self.text
        while self.position < len(text):
            if text.startswith("\\\n", self.position):
                self.position += 2
            elif text[self.position] in " \t":
                self.position += 1
            elif text[self.position] == "#":
                end = text.find("\n", self.position)
                self.position = len(text) if end < 0 else end
            else:
                return

    def lines(self) -> None:
        """Skip blanks, newlines and, after those, the here-documents that wait for them."""
        while True:
            self.blanks()
            if not self.text.startswith("\n", self.position):
                return
            self.newline()

    def newline(self) -> None:
        self.position += 1
        for delimiter, quoted, stripped in self.waiting:
            lines = []
            while True:
                if self.position >= len(self.text):
                    break
                end = self.text.find("\n", self.position)
                end = len(self.text) if end < 0 else end
                line = self.text[self.position : end]
                self.position = end + 1
                line = line.lstrip("\t") if stripped else line
                if line == delimiter:
                    break
                lines.append(line + "\n")
            body = "".join(lines)
            self.bodies.append(ShellWord((Text(body, quoted=True),)) if quoted else _document(body))
        self.position = min(self.position, len(self.text))
        self.waiting = []

    def operator(self) -> str:
        """Return the operator at the position, or nothing; it is not passed."""
        self.blanks()
        for sign in OPERATORS:
            if self.text.startswith(sign, self.position):
                if sign in "<>" and self.text.startswith("(", self.position + 1):
                    return ""  # process substitution
                return sign
        return ""

    def keyword(self) -> str:
        """Return the unquoted word at the position, which is not passed, or nothing."""
        self.blanks()
        match = re.compile(r"[\w!{}\[\]]+(?=[\s;&|()<>]|$)").match(self.text, self.position)
        return match[0] if match else ""

    def here_document(self, delimiter: str, *, quoted: bool, stripped: bool) -> ShellWord:
        """Return the here-document, whose lines are passed when the line ends."""
        self.waiting.append((delimiter, quoted, stripped))
        here, waiting, kept = self.position, self.waiting, self.bodies
        end = self.text.find("\n", here)
        self.bodies = []
        self.position = len(self.text) if end < 0 else end
        self.newline()
        body = self.bodies[-1] if self.bodies else EMPTY
        self.position, self.waiting, self.bodies = here, waiting, kept
        return body


def _document(body: str) -> ShellWord:
    """Quotes are plain text in a here-document."""
    return read_quoted(body.replace("\\\n", "").replace('\\"', '\\\\"'))
