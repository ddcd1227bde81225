"""Commands of the shell itself, by what they do to its state, each with its status, None where that is not known; and
programs that only turn text into text, as a script uses them in `$(…)`, by what they print, or None where that is not
known. Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from shardwright.importers.shell.arithmetic import ArithmeticFaultError, UnknownValueError, compute
from shardwright.importers.shell.branching import test
from shardwright.importers.shell.expansion import BLANK, Fields, add_split, computed, separators_of
from shardwright.importers.shell.state import Break, Continue, Exit, Return, ShellState, Status
from shardwright.importers.shell.unknown import is_known, unknown, unknown_variable

Builtin = Callable[[Sequence[str], ShellState, str | None], Status]
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r", "0": "\0", "a": "\a", "e": "\x1b"}
MOST_NUMBERS = 100_000
Filter = Callable[[Sequence[str], str], str | None]


def _status(words: Sequence[str]) -> Status:
    return None if not words or not words[0].lstrip("-").isdigit() else int(words[0]) == 0


def _exit(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Exit(_status(words))


def _return(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Return(_status(words) if words else True)


def _loops(words: Sequence[str]) -> int:
    return int(words[0]) if words and words[0].isdigit() else 1


def _break(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Break(_loops(words))


def _continue(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Continue(_loops(words))


def _test(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    words = words[:-1] if words and words[-1] == "]" else words
    return test(words, state)


def _export(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        name, sign, value = word.partition("=")
        if sign and re.fullmatch(r"\w+", name):
            state.put(name, value)
        if not word.startswith("-"):
            state.exported.add(name)
    return True


def _declare(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        if word.startswith("-"):
            continue
        if "-g" not in words and state.keep(word):
            state.variables.pop(word, None)
        if "-x" in words:
            state.exported.add(word)
        if {"-A", "-a"} & set(words) and word not in state.variables:
            state.variables[word] = {}
    return True


def _unset(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        name, bracket, index = word.partition("[")
        held = state.variables.get(name)
        if bracket and isinstance(held, dict):
            held.pop(index.rstrip("]"), None)
        else:
            state.variables.pop(name, None)
        state.own |= {name}
    return True


def _shift(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    count = int(words[0]) if words and words[0].isdigit() else 1
    if count > len(state.arguments):
        return False
    state.arguments = state.arguments[count:]
    return True


def _set(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    if "--" in words:
        state.arguments, state.arguments_given = tuple(words[words.index("--") + 1 :]), True
    return True


def _read(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    """`read a b <<< text`, `read -ra list <<< text`; input that is not known gives values that are not."""
    names, options, rest = [], "", list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            options += word[1:]
            if word[-1] in "pdtnu" and rest:
                rest.pop(0)
        else:
            names.append(word)
    names = names or ["REPLY"]
    if given is None or not is_known(given):
        for name in names:
            state.put(name, unknown_variable(name))
        return None
    line = given.split("\n")[0].strip(BLANK)
    separators = separators_of(state)
    if "a" in options:
        fields = Fields()
        add_split(line, fields, separators)
        fields.end()
        state.variables[names[0]] = {str(index): piece for index, piece in enumerate(fields.done)}
        return True
    pieces = re.split(f"[{re.escape(separators)}]+", line, maxsplit=len(names) - 1) if len(names) > 1 else [line]
    for name, piece in zip_longest(names, pieces, fillvalue=""):
        state.put(name, piece)
    return bool(line)


def _mapfile(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    name = words[-1] if words and not words[-1].startswith("-") else "MAPFILE"
    lines = [unknown_variable(name)] if given is None or not is_known(given) else given.splitlines()
    state.variables[name] = {str(index): line for index, line in enumerate(lines)}
    return True


def _printf(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    if len(words) > 2 and words[0] == "-v":
        text = printf(words[2:])
        state.put(words[1], unknown_variable(words[1]) if text is None else text)
        return True
    text = printf(words)
    if state.output is not None:
        state.output.append(unknown("$(printf)") if text is None else text)
    return True


def _let(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    numbers = [computed(word, state) for word in words]
    return None if None in numbers else bool(numbers[-1:] and numbers[-1])


def _getopts(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    """One option of the script's arguments, single letters each."""
    if len(words) < 2:
        return False
    allowed, name = words[0].lstrip(":"), words[1]
    index = int(state.get("OPTIND") or 1)
    given_words = list(words[2:]) or list(state.arguments)
    if index > len(given_words) or not re.fullmatch(r"-[A-Za-z]", given_words[index - 1]):
        return False
    letter = given_words[index - 1][1]
    state.put(name, letter if letter in allowed else "?")
    takes = f"{letter}:" in allowed
    if takes:
        state.put("OPTARG", given_words[index] if index < len(given_words) else "")
    state.put("OPTIND", str(index + 1 + takes))
    return True


def _ok(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    return True


def _false(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    return False


IGNORED = (
    ":", "true", "readonly", "cd", "pushd", "popd", "shopt", "trap", "wait", "umask", "ulimit", "alias", "hash",
    "sleep", "mkdir", "touch", "module", "clear", "rm", "cp", "mv", "ln", "chmod", "jobs",
)  # fmt: skip
BUILTINS: Mapping[str, Builtin] = {
    "exit": _exit, "return": _return, "break": _break, "continue": _continue, "[": _test, "test": _test,
    "export": _export, "declare": _declare, "typeset": _declare, "local": _declare, "unset": _unset,
    "shift": _shift, "set": _set, "read": _read, "mapfile": _mapfile, "readarray": _mapfile, "printf": _printf,
    "let": _let, "getopts": _getopts, "false": _false, **dict.fromkeys(IGNORED, _ok),
}  # fmt: skip


def output_of(name: str, arguments: Sequence[str], given: str, files: Mapping[str, str]) -> str | None:
    """Return what a program prints that is given `given` on its input; `files` are those that the script wrote."""
    if name == "cat":
        if not arguments:
            return given
        texts = [given if path == "-" else files.get(path) for path in arguments]
        return None if None in texts else "".join(text or "" for text in texts)
    if name in ("echo", "printf"):
        return (echo if name == "echo" else printf)(arguments)
    known = is_known(given) and all(is_known(argument) for argument in arguments)
    return FILTERS[name](arguments, given) if known and name in FILTERS else None


def echo(arguments: Sequence[str]) -> str:
    """Return what `echo` prints."""
    newline, escapes, words = True, False, list(arguments)
    while words and re.fullmatch(r"-[neE]+", words[0]):
        newline &= "n" not in words[0]
        escapes |= "e" in words[0]
        words.pop(0)
    text = " ".join(words)
    return (_unescaped(text) if escapes else text) + "\n" * newline


def printf(arguments: Sequence[str]) -> str | None:
    """Return what `printf` prints; the format is used again while arguments are left."""
    words = [word for index, word in enumerate(arguments) if index or word != "--"]
    if not words or not is_known(words[0]):
        return None
    form, values = _unescaped(words[0]), list(words[1:])
    letters: list[str] = []
    while True:
        before = len(values)
        piece = _formatted(form, values)
        if piece is None:
            return None
        letters.append(piece)
        if not values or len(values) == before:
            return "".join(letters)


def _formatted(form: str, values: list[str]) -> str | None:
    def put(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        value = values.pop(0) if values else ""
        if match[2] in "sbq" or not is_known(value):
            return f"%{match[1]}s" % value if is_known(value) else value
        number = float(value or 0)
        return f"%{match[1]}{match[2]}" % (int(number) if match[2] in "dixXou" else number)

    try:
        return re.sub(r"%([-0-9.+ #]*)([sbqdixXoufgeEG%])", put, form)
    except (ValueError, TypeError):
        return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[0]), text)


def _basename(arguments: Sequence[str], given: str) -> str | None:
    words = [word for word in arguments if not word.startswith("-")]
    if not words:
        return None
    name = words[0].rstrip("/").rsplit("/", 1)[-1] or "/"
    suffix = words[1] if len(words) > 1 else ""
    return name.removesuffix(suffix) + "\n" if name != suffix else name + "\n"


def _dirname(arguments: Sequence[str], given: str) -> str | None:
    if not arguments:
        return None
    head, slash, _ = arguments[-1].rstrip("/").rpartition("/")
    return (head or ("/" if slash else ".")) + "\n"


def _seq(arguments: Sequence[str], given: str) -> str | None:
    separator, numbers = "\n", []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "-s" and words:
            separator = words.pop(0)
        elif word.startswith("-s"):
            separator = word[2:]
        elif re.fullmatch(r"-?\d+", word):
            numbers.append(int(word))
        else:
            return None
    if not 1 <= len(numbers) <= 3:
        return None
    first, step, last = (
        (1, 1, numbers[0]) if len(numbers) == 1 else (numbers[0], 1 if len(numbers) == 2 else numbers[1], numbers[-1])
    )
    if step == 0 or abs(last - first) // abs(step) > MOST_NUMBERS:
        return None
    items = [str(number) for number in range(first, last + (1 if step > 0 else -1), step)]
    return separator.join(items) + "\n" if items else ""


def _expr(arguments: Sequence[str], given: str) -> str | None:
    return _computed(" ".join("*" if word == "\\*" else word for word in arguments))


def _bc(arguments: Sequence[str], given: str) -> str | None:
    text = re.sub(r"scale *= *0 *;?", "", given).strip()
    return None if "scale" in text or "." in text or "-l" in arguments else _computed(text)


def _computed(text: str) -> str | None:
    if re.search(r"[A-Za-z_]", text):
        return None
    try:
        return f"{compute(text, lambda name: '0', lambda name, value: None)}\n"
    except (ArithmeticFaultError, UnknownValueError):
        return None


def _wc(arguments: Sequence[str], given: str) -> str | None:
    counts = {"-l": given.count("\n"), "-w": len(given.split()), "-c": len(given.encode())}
    return f"{counts[arguments[0]]}\n" if len(arguments) == 1 and arguments[0] in counts else None


def _tr(arguments: Sequence[str], given: str) -> str | None:
    words = [_unescaped(word) for word in arguments]
    classes = {"[:upper:]": "A-Z", "[:lower:]": "a-z", "[:space:]": " \t\n"}
    words = [_range(classes.get(word, word)) for word in words]
    if len(words) == 2 and arguments[0] == "-d":
        return given.translate({ord(sign): None for sign in words[1]})
    if len(words) == 2 and arguments[0] == "-s":
        return re.sub(f"([{re.escape(words[1])}])\\1+", r"\1", given)
    if len(words) != 2 or not words[1] or arguments[0].startswith("-"):
        return None
    targets = words[1].ljust(len(words[0]), words[1][-1])
    return given.translate({ord(sign): target for sign, target in zip(words[0], targets, strict=False)})


def _range(text: str) -> str:
    return re.sub(r"(\w)-(\w)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), text)


def _cut(arguments: Sequence[str], given: str) -> str | None:
    text = " ".join(arguments)
    match = re.fullmatch(r"-d ?(.) -f ?(\d+)|-f ?(\d+) -d ?(.)", text)
    if match is None:
        return None
    sign, number = match[1] or match[4], int(match[2] or match[3])
    lines = [line.split(sign) for line in given.splitlines()]
    return "".join((parts[0] if len(parts) == 1 else (parts[number - 1 : number] or [""])[0]) + "\n" for parts in lines)


def _head(arguments: Sequence[str], given: str) -> str | None:
    count = _line_count(arguments)
    return None if count is None else "".join(given.splitlines(keepends=True)[:count])


def _tail(arguments: Sequence[str], given: str) -> str | None:
    count = _line_count(arguments)
    return None if not count else "".join(given.splitlines(keepends=True)[-count:])


def _line_count(arguments: Sequence[str]) -> int | None:
    match = re.fullmatch(r"(?:-n ?|--lines=|-)?(\d+)", " ".join(arguments))
    return int(match[1]) if match else None if arguments else 10


def _sed(arguments: Sequence[str], given: str) -> str | None:
    """One `s/…/…/` of plain text."""
    words = [word for word in arguments if word not in ("-e", "-E", "-r")]
    match = re.fullmatch(r"s(.)(.*?)\1(.*?)\1(g?)", words[0]) if len(words) == 1 else None
    if match is None or re.search(r"[\\\[\]^$*+?(){}|&]", match[2] + match[3]):
        return None
    count = 0 if match[4] else 1
    return "".join(re.sub(match[2], match[3], line, count=count) for line in given.splitlines(keepends=True))


FILTERS: Mapping[str, Filter] = {
    "basename": _basename,
    "dirname": _dirname,
    "seq": _seq,
    "expr": _expr,
    "bc": _bc,
    "wc": _wc,
    "tr": _tr,
    "cut": _cut,
    "head": _head,
    "tail": _tail,
    "sed": _sed,
    "sort": lambda arguments, given: None if arguments else "".join(sorted(given.splitlines(keepends=True))),
    "tac": lambda arguments, given: "".join(reversed(given.splitlines(keepends=True))),
}
PRINTING = frozenset((*FILTERS, "cat", "echo", "printf"))
