"""The text of a script as a tree of commands: those that hold others, and blanks, words, assignments, redirections,
here-documents and simple commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shardwright.importers.shell import syntax
from shardwright.importers.shell.syntax import Assignment, Condition, Redirect, Simple
from shardwright.importers.shell.words import (
    DEEPEST,
    EMPTY,
    NotReadError,
    ShellSyntaxError,
    ShellWord,
    Text,
    end_of_brackets,
    end_of_parentheses,
    read_quoted,
    read_word,
    stray,
    unclosed,
)

FUNCTION = re.compile(r"[\w.:-]+[ \t]*\([ \t]*\)")
CLOSING = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
OPERATORS = (
    *(";;&", ";;", ";&", "&&", "&>>", "&>", "||", "|&", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|"),
    *(";", "&", "|", "<", ">", "(", ")", "\n"),
)
STOPS = " \t\n;&|<>()"
REDIRECTS = frozenset(("&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"))
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[)?")
DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))


def parse(text: str) -> syntax.Sequence:
    """Return the commands of a script. Raises ShellSyntaxError for text that no shell could run."""
    return _Parser(text.replace("\r\n", "\n")).script()


class SimpleCommands:
    """Commands of `text` that hold no others, and what they are made of, from `position` on."""

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
            lines: list[str] = []
            while self.position < len(self.text):
                end = self.text.find("\n", self.position)
                line = self.text[self.position : end if end >= 0 else None]
                self.position += len(line) + 1
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

    def expect(self, word: str) -> None:
        self.lines()
        if not self.text.startswith(word, self.position):
            raise stray(self.text, self.position)
        self.position += len(word)

    def words(self) -> tuple[ShellWord, ...]:
        words = []
        while not self.operator() and self.position < len(self.text):
            words.append(self.word())
        return tuple(words)

    def condition(self) -> Condition:
        """`[[ … ]]`: what follows `=~` is a word in which parentheses and bars are its own."""
        self.expect("[[")
        tokens: list[ShellWord | str] = []
        while True:
            self.lines()
            if self.keyword() == "]]":
                self.expect("]]")
                return Condition(tuple(tokens))
            if self.position >= len(self.text):
                raise ShellSyntaxError("unexpected EOF while looking for `]]'", self.position)
            sign = next((s for s in ("&&", "||", "(", ")", "<", ">") if self.text.startswith(s, self.position)), "")
            if sign and not (tokens and tokens[-1] == "=~"):
                tokens.append(sign)
                self.position += len(sign)
                continue
            pattern = bool(tokens) and tokens[-1] == "=~"
            word, self.position = read_word(self.text, self.position, " \t\n" if pattern else STOPS)
            literal = word.literal
            bare = literal is not None and (literal in ("=~", "==", "=", "!=", "!") or _is_option(literal))
            tokens.append(literal if bare and literal is not None else word)

    def simple(self) -> Simple:
        start = self.position
        assignments: list[Assignment] = []
        words: list[ShellWord | Assignment] = []
        redirects: list[Redirect] = []
        while True:
            redirect = self.redirect()
            if redirect is not None:
                redirects.append(redirect)
                continue
            if self.operator() or self.position >= len(self.text):
                break
            declaring = bool(words) and isinstance(words[0], ShellWord) and words[0].literal in DECLARING
            assignment = self.assignment() if not words or declaring else None
            if assignment is None:
                words.append(self.word())
            elif words:
                words.append(assignment)
            else:
                assignments.append(assignment)
        if not (assignments or words or redirects):
            raise stray(self.text, self.position)
        if self.operator() == "(":
            if len(words) == 1 and not assignments:  # a function without its `)`
                self.position += 1
                self.blanks()
            raise stray(self.text, self.position)
        return Simple(tuple(assignments), tuple(words), tuple(redirects), start)

    def word(self) -> ShellWord:
        self.blanks()
        start = self.position
        word, self.position = read_word(self.text, start, STOPS)
        if self.position == start:
            raise stray(self.text, start)
        return word

    def assignment(self) -> Assignment | None:
        """Return the assignment at the position, which is then passed, or None."""
        match = ASSIGNMENT.match(self.text, self.position)
        if match is None:
            return None
        position, index = match.end(), None
        if match[2]:
            try:
                end = end_of_brackets(self.text, position)
            except ShellSyntaxError:
                return None
            index, position = read_quoted(self.text[position:end]), end + 1
        append = self.text.startswith("+=", position)
        if not append and not self.text.startswith("=", position):
            return None
        self.position = position + 1 + append
        if self.text.startswith("(", self.position):
            return Assignment(match[1], self.array(), index, append)
        value, self.position = read_word(self.text, self.position, STOPS)
        return Assignment(match[1], value, index, append)

    def array(self) -> tuple[tuple[ShellWord | None, ShellWord], ...]:
        self.position += 1
        entries: list[tuple[ShellWord | None, ShellWord]] = []
        while True:
            self.lines()
            if self.text.startswith(")", self.position):
                self.position += 1
                return tuple(entries)
            if self.position >= len(self.text):
                raise unclosed(")", self.position)
            index = None
            keyed = re.compile(r"\[(?=[^\]]*\]=)").match(self.text, self.position)
            if keyed:
                end = end_of_brackets(self.text, keyed.end())
                index = read_quoted(self.text[keyed.end() : end].strip("\"'"))
                self.position = end + 2
                value, self.position = read_word(self.text, self.position, STOPS)
            else:
                value = self.word()
            entries.append((index, value))

    def redirects(self) -> tuple[Redirect, ...]:
        redirects = []
        while (redirect := self.redirect()) is not None:
            redirects.append(redirect)
        return tuple(redirects)

    def redirect(self) -> Redirect | None:
        self.blanks()
        match = re.compile(r"(?:\d+|\{\w+\})?(?=[<>])").match(self.text, self.position)
        start = self.position
        if match:
            self.position = match.end()
        sign = self.operator()
        if sign not in REDIRECTS:
            self.position = start
            return None
        self.position += len(sign)
        self.blanks()
        target = self.word()
        if sign in ("<<", "<<-"):
            quoted = any(isinstance(part, Text) and part.quoted for part in target.parts)
            delimiter = "".join(part.value for part in target.parts if isinstance(part, Text))
            body = self.here_document(delimiter, quoted=quoted, stripped=sign == "<<-")
            return Redirect(sign, target, body)
        return Redirect(sign, target, target if sign == "<<<" else None)


class _Parser(SimpleCommands):
    """Recursive descent over the characters of `text`, from `position` on."""

    def script(self) -> syntax.Sequence:
        sequence = self.sequence(frozenset())
        if self.position < len(self.text):
            raise stray(self.text, self.position)
        return sequence

    def sequence(self, ends: frozenset[str]) -> syntax.Sequence:
        """Return commands up to one of the words `ends`, a closing parenthesis or the end of a case branch."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotReadError("it is nested too deeply", self.position)
        commands: list[syntax.Command] = []
        while True:
            self.lines()
            if self.position >= len(self.text) or self.operator() in (")", ";;", ";;&", ";&"):
                break
            if self.keyword() in ends:
                break
            commands.append(self.chain())
            if self.operator() in (";", "&", "\n"):
                if self.operator() == "\n":
                    self.newline()
                else:
                    self.position += 1
        self.depth -= 1
        return syntax.Sequence(tuple(commands))

    def chain(self) -> syntax.Command:
        links: list[tuple[str, syntax.Command]] = [("", self.pipeline())]
        while (sign := self.operator()) in ("&&", "||"):
            self.position += 2
            self.lines()
            links.append((sign, self.pipeline()))
        return links[0][1] if len(links) == 1 else syntax.Chain(tuple(links))

    def pipeline(self) -> syntax.Command:
        negated = False
        while self.keyword() in ("!", "time"):
            negated ^= self.keyword() == "!"
            self.position += len(self.keyword())
        commands = [self.command()]
        while (sign := self.operator()) in ("|", "|&"):
            self.position += len(sign)
            self.lines()
            commands.append(self.command())
        return commands[0] if len(commands) == 1 and not negated else syntax.Pipeline(tuple(commands), negated)

    def command(self) -> syntax.Command:
        self.blanks()
        if self.text.startswith("((", self.position):
            end = end_of_parentheses(self.text, self.position + 1)
            inner = end_of_parentheses(self.text, self.position + 2)
            if inner + 1 == end:
                computed = syntax.Compute(read_quoted(self.text[self.position + 2 : inner]))
                self.position = end + 1
                return computed
        if self.operator() == "(":
            self.position += 1
            body = self.sequence(frozenset())
            self.expect(")")
            return syntax.ShellGroup(body, self.redirects(), subshell=True)
        compound: dict[str, Callable[[], syntax.Command]] = {
            "if": self.conditional, "while": self.loop, "until": self.loop, "for": self.counted, "case": self.case,
            "{": self.group, "[[": self.condition, "function": self.function, "select": self.unsupported,
            "coproc": self.unsupported,
        }  # fmt: skip
        keyword = self.keyword()
        if keyword in compound:
            command: syntax.Command = compound[keyword]()
            redirects = self.redirects()
            return syntax.ShellGroup(syntax.Sequence((command,)), redirects, subshell=False) if redirects else command
        if keyword in CLOSING:
            raise stray(self.text, self.position)
        if FUNCTION.match(self.text, self.position):
            return self.function()
        return self.simple()

    def unsupported(self) -> syntax.Command:
        raise NotReadError(f"{self.keyword()} is not read", self.position)

    def conditional(self) -> syntax.If:
        branches = []
        otherwise = syntax.Sequence(())
        self.expect("if")
        while True:
            condition = self.sequence(frozenset(("then",)))
            self.expect("then")
            branches.append((condition, self.sequence(frozenset(("elif", "else", "fi")))))
            if self.keyword() != "elif":
                break
            self.expect("elif")
        if self.keyword() == "else":
            self.expect("else")
            otherwise = self.sequence(frozenset(("fi",)))
        self.expect("fi")
        return syntax.If(tuple(branches), otherwise)

    def loop(self) -> syntax.While:
        until = self.keyword() == "until"
        self.expect(self.keyword())
        condition = self.sequence(frozenset(("do",)))
        return syntax.While(condition, self.body(), until)

    def body(self) -> syntax.Sequence:
        self.expect("do")
        sequence = self.sequence(frozenset(("done",)))
        self.expect("done")
        return sequence

    def counted(self) -> syntax.Command:
        self.expect("for")
        self.blanks()
        if self.text.startswith("((", self.position):
            end = end_of_parentheses(self.text, self.position + 2)
            parts = self.text[self.position + 2 : end].split(";")
            if len(parts) != 3:
                raise ShellSyntaxError("syntax error: arithmetic expression required", self.position)
            self.position = end + 2
            if self.operator() == ";":
                self.position += 1
            begin, condition, step = (read_quoted(part) for part in parts)
            return syntax.CountedFor(begin, condition, step, self.body())
        name = self.keyword()
        self.position += len(name)
        self.lines()
        words: tuple[ShellWord, ...] | None = None
        if self.keyword() == "in":
            self.expect("in")
            words = self.words()
        if self.operator() == ";":
            self.position += 1
        return syntax.For(name, words, self.body())

    def case(self) -> syntax.ShellCase:
        self.expect("case")
        self.blanks()
        subject = self.word()
        self.expect("in")
        branches = []
        while True:
            self.lines()
            if self.keyword() == "esac":
                break
            if self.text.startswith("(", self.position):
                self.position += 1
            patterns = [self.word()]
            while self.operator() == "|":
                self.position += 1
                self.blanks()
                patterns.append(self.word())
            self.expect(")")
            body = self.sequence(frozenset(("esac",)))
            sign = self.operator()
            end = sign if sign in (";;", ";;&", ";&") else ";;"
            self.position += len(end) if sign == end else 0
            branches.append((tuple(patterns), body, end))
        self.expect("esac")
        return syntax.ShellCase(subject, tuple(branches))

    def group(self) -> syntax.Command:
        self.expect("{")
        body = self.sequence(frozenset(("}",)))
        self.expect("}")
        return syntax.ShellGroup(body, self.redirects(), subshell=False)

    def function(self) -> syntax.Function:
        if self.keyword() == "function":
            self.expect("function")
            self.blanks()
        match = re.compile(r"[\w.:-]+").match(self.text, self.position)
        if match is None:
            raise stray(self.text, self.position)
        self.position = match.end()
        self.blanks()
        if self.text.startswith("(", self.position):
            self.expect("(")
            self.expect(")")
        self.lines()
        return syntax.Function(match[0], self.command())


def _is_option(literal: str) -> bool:
    return re.fullmatch(r"-[a-zA-Z]{1,2}", literal) is not None


def _document(body: str) -> ShellWord:
    """Quotes are plain text in a here-document."""
    return read_quoted(body.replace("\\\n", "").replace('\\"', '\\\\"'))
