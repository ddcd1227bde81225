"""What words become: references, arithmetic and substitutions put in, what is not quoted split, braces and patterns put
in for what they stand for.
"""

from __future__ import annotations

import re
from itertools import pairwise

from shardwright.importers.shell.arithmetic import ArithmeticFaultError, UnknownValueError, compute
from shardwright.importers.shell.state import MOST_CHARACTERS, ShellState, TooMuchError, special_value
from shardwright.importers.shell.unknown import is_known, shown, unknown
from shardwright.importers.shell.words import EMPTY, Part, Reference, ShellArithmetic, ShellWord, Substitution, Text

BLANK = " \t\n"
RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")
MOST_BRACES = 4096


class DemandedError(ValueError):
    """`${name:?message}` of a variable that is empty: the script ends there."""


def fields(word: ShellWord, state: ShellState) -> list[str]:
    """Return the words that one word becomes, none where it vanishes."""
    if (literal := word.literal) is not None and "{" in literal:
        return braced(literal)
    words = Fields()
    size = 0
    for part in word.parts:
        many = _many(part, state) if isinstance(part, Reference) else None
        values = [_value(part, state)] if many is None else many
        size += sum(map(len, values))
        if size > MOST_CHARACTERS:
            raise TooMuchError
        for index, value in enumerate(values):
            if index:
                words.end()
            if part.quoted or isinstance(part, Text):
                words.add(value, solid=True)
            else:
                add_split(value, words, separators_of(state))
    words.end()
    return words.done


def separators_of(state: ShellState) -> str:
    """Return the signs at which text is split."""
    separators = state.get("IFS")
    return BLANK if separators is None or not is_known(separators) else separators


def text_of(word: ShellWord, state: ShellState) -> str:
    """Return what a word becomes where it is not split: in an assignment, say."""
    pieces = []
    for part in word.parts:
        values = _many(part, state) if isinstance(part, Reference) else None
        pieces.append(" ".join(values) if values is not None else _value(part, state))
    text = "".join(pieces)
    if len(text) > MOST_CHARACTERS:
        raise TooMuchError
    return text


def pattern_of(word: ShellWord, state: ShellState) -> str | None:
    """Return the regular expression of a pattern of file names, None where it is not known."""
    patterns = []
    for part in word.parts:
        value = _value(part, state)
        if not is_known(value):
            return None
        patterns.append(re.escape(value) if part.quoted else glob(value))
    return "".join(patterns)


def regex_of(word: ShellWord, state: ShellState) -> str | None:
    """Return a regular expression as `=~` takes it, None where it is not known."""
    patterns = []
    for part in word.parts:
        value = _value(part, state)
        if not is_known(value):
            return None
        literal = part.quoted and isinstance(part, Text)
        patterns.append(re.escape(value) if literal else value)
    return "".join(patterns).replace("[[:space:]]", r"\s").replace("[[:digit:]]", r"\d").replace("[:digit:]", "0-9")


def number_of(expression: ShellWord, state: ShellState) -> int | None:
    """Return the value of an arithmetic expression, None where it is not known."""
    return computed(text_of(expression, state), state)


def computed(text: str, state: ShellState) -> int | None:
    """Return the value of an arithmetic expression whose references are put in, None where it is not known."""
    try:
        return compute(_subscripts(text, state), state.read, state.put)
    except (UnknownValueError, ArithmeticFaultError):
        return None


def _subscripts(text: str, state: ShellState) -> str:
    """Put the elements of arrays into an expression, where names stand without a dollar sign."""
    return re.sub(
        r"([A-Za-z_]\w*)\[([^\[\]]*)\]",
        lambda match: _element(match[1], match[2], state) or "0",
        text,
    )


def _element(name: str, index: str, state: ShellState) -> str:
    value = state.variables.get(name)
    if not isinstance(value, dict):
        return state.read(name) if index == "0" else ""
    if index in value:
        return value[index]
    number = computed(index, state)
    if number is None:
        return unknown(f"${{{name}[{shown(index)}]}}")
    if number < 0:
        keys = [int(key) for key in value if key.isdigit()]
        number += max(keys, default=-1) + 1
    return value.get(str(number), "")


def _many(part: Reference, state: ShellState) -> list[str] | None:
    """Return the elements of `$@` and `${name[@]}`, None for what is one value."""
    if part.prefix == "#" or (part.prefix == "!" and part.index is None and part.operator != "@"):
        return None
    subscript = _subscript(part)
    if part.name in ("@", "*"):
        values = list(state.arguments)
    elif subscript in ("@", "*"):
        if part.prefix == "!":
            value = state.variables.get(part.name)
            return list(value) if isinstance(value, dict) else []
        values = state.items(part.name)
    else:
        return None
    if part.operator == ":" and part.operand is not None:
        values = _slice([*([state.name] if part.name in "@*" else []), *values], text_of(part.operand, state), state)
    elif part.operator in (":-", "-", ":+", "+"):
        there = bool(values) if ":" not in part.operator else bool("".join(values))
        if there != (part.operator[-1] == "-"):
            values = fields(part.operand or EMPTY, state) if part.operand and part.operand.parts else []
    elif part.operator:
        values = [_changed(value, part, state) for value in values]
    return [separators_of(state)[:1].join(values)] if "*" in (part.name, subscript) and part.quoted else values


def _slice(values: list[str], bounds: str, state: ShellState) -> list[str]:
    start, _, length = bounds.partition(":")
    first = computed(start, state) or 0
    count = computed(length, state) if length else None
    return values[first:] if count is None else values[first : first + count]


def _subscript(part: Reference) -> str:
    if part.index is None or len(part.index.parts) != 1 or not isinstance(part.index.parts[0], Text):
        return ""
    return part.index.parts[0].value


def _value(part: Part, state: ShellState) -> str:
    if isinstance(part, Text):
        return part.value
    if isinstance(part, ShellArithmetic):
        number = number_of(part.expression, state)
        return str(number) if number is not None else unknown(f"$(({shown(text_of(part.expression, state)).strip()}))")
    if isinstance(part, Substitution):
        return state.substitute(part.script, state)
    return _reference(part, state)


def _reference(part: Reference, state: ShellState) -> str:
    if part.prefix == "#":
        return _length(part, state)
    if part.prefix == "!":
        target = state.read(part.name)
        if not is_known(target) or not re.fullmatch(r"\w+", target):
            return unknown(f"${{!{part.name}}}")
        part = Reference(target, index=part.index, operator=part.operator, operand=part.operand, quoted=part.quoted)
    if part.operator in (":-", "-", ":=", "=", ":?", "?", ":+", "+"):
        return _conditional(part, state)
    value = _plain(part, state)
    return _changed(value, part, state) if part.operator else value


def _length(part: Reference, state: ShellState) -> str:
    if part.name in ("@", "*"):
        return str(len(state.arguments))
    if _subscript(part) in ("@", "*"):
        return str(len(state.items(part.name)))
    value = _plain(part, state)
    return str(len(value)) if is_known(value) else unknown(f"${{#{part.name}}}")


def _plain(part: Reference, state: ShellState) -> str:
    """Return the value of a name, with its subscript."""
    special = special_value(part.name, state)
    if special is not None:
        return special
    if part.index is None:
        return state.read(part.name)
    if part.name not in state.variables:
        return state.read(part.name) if part.name not in state.own else ""
    return _element(part.name, text_of(part.index, state), state)


def _is_set(part: Reference, state: ShellState) -> str | None:
    """Return the value of a name that is set, else None."""
    if part.name.isdigit() or part.name in "@*#?$!-":
        return (
            special_value(part.name, state)
            if not part.name.isdigit() or int(part.name) <= len(state.arguments)
            else None
        )
    if part.index is not None:
        return _element(part.name, text_of(part.index, state), state) if part.name in state.variables else None
    return state.get(part.name)


def _conditional(part: Reference, state: ShellState) -> str:
    """`${name:-default}` and the like: what the script does not set is taken as unset, and that is noted."""
    value = _is_set(part, state)
    operand = part.operand or EMPTY
    there = value is not None and (value != "" or ":" not in part.operator)
    if part.operator[-1] == "+":
        if value is None and part.name not in state.own:
            state.assumed.setdefault(part.name, "")
        return text_of(operand, state) if there else ""
    if there:
        return value or ""
    if part.operator[-1] == "?":
        if part.name in state.own or value == "":
            raise DemandedError(f"{part.name}: {text_of(operand, state) or 'is not set'}")
        return state.read(part.name)
    default = text_of(operand, state)
    if part.name not in state.own or (value is None and not part.name.isdigit()):
        state.assumed.setdefault(part.name, default)
    if part.operator[-1] == "=":
        state.put(part.name, default)
    return default


def _changed(value: str, part: Reference, state: ShellState) -> str:
    """`${name#pattern}`, `${name/pattern/text}`, `${name:offset:length}`, `${name^^}`."""
    operand = part.operand or EMPTY
    if not is_known(value):
        return unknown(f"${{{part.name}{part.operator}…}}")
    if part.operator in ("^^", ",,", "^", ","):
        change = str.upper if part.operator[0] == "^" else str.lower
        return change(value) if len(part.operator) == 2 else change(value[:1]) + value[1:]
    if part.operator in (":", "::"):
        return _substring(value, text_of(operand, state), state)
    if part.operator in ("#", "##", "%", "%%"):
        pattern = pattern_of(operand, state)
        return (
            unknown(f"${{{part.name}{part.operator}…}}") if pattern is None else trimmed(value, pattern, part.operator)
        )
    if part.operator in ("/", "//", "/#", "/%"):
        return _replaced(value, part, state)
    return value


def _substring(value: str, bounds: str, state: ShellState) -> str:
    start, _, length = bounds.partition(":")
    first = computed(start, state) or 0
    first = max(len(value) + first, 0) if first < 0 else first
    if not length:
        return value[first:]
    count = computed(length, state) or 0
    return value[first : first + count] if count >= 0 else value[first:count]


def _replaced(value: str, part: Reference, state: ShellState) -> str:
    """The operand is `pattern/text`, where the pattern has no unquoted slash."""
    source = part.operand or EMPTY
    head: list[Part] = []
    tail: list[Part] = []
    divided = False
    for piece in source.parts:
        if not divided and isinstance(piece, Text) and not (piece.quoted and not part.quoted) and "/" in piece.value:
            before, after = piece.value.split("/", 1)
            head.append(Text(before, piece.quoted and not part.quoted))
            tail.append(Text(after, quoted=True))
            divided = True
        else:
            (tail if divided else head).append(piece)
    if part.quoted:
        head = [Text(piece.value) if isinstance(piece, Text) else piece for piece in head]
    pattern, text = pattern_of(ShellWord(tuple(head)), state), text_of(ShellWord(tuple(tail)), state)
    if pattern is None:
        return unknown(f"${{{part.name}/…}}")
    anchored = {"/#": f"^(?:{pattern})", "/%": f"(?:{pattern})$"}.get(part.operator, pattern)
    count = 0 if part.operator == "//" else 1
    return re.sub(anchored, lambda _: text, value, count=count, flags=re.S) if anchored else value


class Fields:
    """Words in the making: `solid` text makes a word even where it is empty, as quotes do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.text: list[str] = []
        self.solid = False

    def add(self, text: str, *, solid: bool) -> None:
        self.text.append(text)
        self.solid |= solid

    def end(self, *, always: bool = False) -> None:
        text = "".join(self.text)
        if text or self.solid or always:
            self.done.append(text)
        self.text, self.solid = [], False


def add_split(value: str, fields: Fields, separators: str) -> None:
    """Add a value that is not quoted: the signs of IFS, `separators`, end words."""
    if not separators:
        fields.add(value, solid=False)
        return
    blanks = re.escape("".join(sign for sign in separators if sign in BLANK))
    others = re.escape("".join(sign for sign in separators if sign not in BLANK))
    soft = f"[{blanks}]+" if blanks else "(?!)"
    hard = (f"[{blanks}]*[{others}][{blanks}]*" if blanks else f"[{others}]") if others else "(?!)"
    for piece in re.split(f"({hard}|{soft})", value):
        if piece and re.fullmatch(hard, piece):
            fields.end(always=True)
        elif piece and re.fullmatch(soft, piece):
            fields.end()
        else:
            fields.add(piece, solid=False)


def braced(text: str) -> list[str]:
    """Return what `a{b,c}`, `{1..4}` and `{a..e..2}` become."""
    for begin, *cuts in _cuts(text):
        parts = [text[start + 1 : stop] for start, stop in pairwise((begin, *cuts))]
        items = _range(parts[0]) if len(parts) == 1 else [item for part in parts for item in braced(part)]
        if items:
            tails = braced(text[cuts[-1] + 1 :])
            if len(items) * len(tails) > MOST_BRACES:
                raise TooMuchError
            return [text[:begin] + item + tail for item in items for tail in tails]
    return [text]


def _cuts(text: str) -> list[list[int]]:
    """Return where each brace that closes opens, its commas and where it closes, in order."""
    closed, opened = [], list[list[int]]()
    for place, letter in enumerate(text):
        if letter == "{":
            opened.append([place])
        elif letter in ",}" and opened:
            opened[-1].append(place)
            if letter == "}":
                closed.append(opened.pop())
    return sorted(closed)


def _range(text: str) -> list[str]:
    """What `first..last..step` stands for, numbers as wide as they are written; nothing where it is no range."""
    match = RANGE.fullmatch(text)
    if match is None or match[1].isalpha() != match[2].isalpha():
        return []
    letters = match[1].isalpha()
    first, last = (ord(end) if letters else int(end) for end in match.groups()[:2])
    step = (abs(int(match[3] or 1)) or 1) * (1 if last >= first else -1)
    if abs(last - first) // abs(step) > MOST_BRACES:
        raise TooMuchError
    padded = any(re.match(r"-?0\d", end) for end in match.groups()[:2])
    width = max(map(len, match.groups()[:2])) if padded else 0
    numbers = range(first, last + (1 if step > 0 else -1), step)
    return [chr(number) if letters else str(number).zfill(width) for number in numbers]


def glob(text: str) -> str:
    """Return a pattern such as `*.json` as a regular expression."""
    patterns, position = [], 0
    while position < len(text):
        letter = text[position]
        end = text.find("]", position + 2) if letter == "[" else -1
        if letter == "*":
            patterns.append(".*")
        elif letter == "?":
            patterns.append(".")
        elif end > 0:
            inner = text[position + 1 : end].replace("\\", "\\\\")
            patterns.append(f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]")
            position = end
        else:
            patterns.append(re.escape(letter))
        position += 1
    return "".join(patterns)


def trimmed(value: str, pattern: str, operator: str) -> str:
    """Return a text without what a pattern, as a regular expression, fits at its begin (`#`) or end (`%`)."""
    lengths = range(len(value) + 1)
    longest = len(operator) == 2
    for length in reversed(lengths) if longest else lengths:
        part = value[:length] if operator[0] == "#" else value[len(value) - length :]
        if re.fullmatch(pattern, part, re.S):
            return value[length:] if operator[0] == "#" else value[: len(value) - length]
    return value
