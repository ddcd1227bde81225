"""The text of a script as a tree of commands."""

from __future__ import annotations

import re
from collections.abc import Callable

from shardwright.importers.shell import syntax
from shardwright.importers.shell.brackets import (
    NotReadError,
    ShellSyntaxError,
    end_of_parentheses,
    stray,
)
from shardwright.importers.shell.simple import SimpleCommands
from shardwright.importers.shell.words import DEEPEST, ShellWord, read_quoted

FUNCTION = re.compile(r"[\w.:-]+[ \t]*\([ \t]*\)")


CLOSING = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))


def parse(text: str) -> syntax.Sequence:
    """Return the commands of a script. Raises ShellSyntaxError for text that no shell could run."""
    return _Parser(text.replace("\r\n", "\n")).script()


class _Parser(SimpleCommands):
    """Recursive descent over the characters of `text`, from `position` on."""

    def script(self) -> syntax.Sequence:
        found = self.sequence(frozenset())
        if self.position < len(self.text):
            raise stray(self.text, self.position)
        return found

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
        found = self.sequence(frozenset(("done",)))
        self.expect("done")
        return found

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
