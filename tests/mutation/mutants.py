"""What may be wrong in a line of Lua: every small change of a script that a test has to notice."""

from __future__ import annotations

import difflib
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks_emq.core import scripts
from tests.mutation.lua_tokens import Lua

_FLIPS = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("~=",), "~=": ("==",),
    "and": ("or",), "or": ("and",), "true": ("false",), "false": ("true",), "*": ("/",), "+": ("-",),
}  # fmt: skip
_SWAPS = {
    "LPUSH": "RPUSH", "RPUSH": "LPUSH", "LEFT": "RIGHT", "RIGHT": "LEFT", "LPOP": "RPOP", "RPOP": "LPOP",
    "ZRANGE": "ZREVRANGE", "ZREVRANGE": "ZRANGE", "KEEPTTL": "XX", "MINID": "MAXLEN",
}  # fmt: skip
_PLACING, _REMOVING = ("LPUSH", "RPUSH", "ZADD"), ("LREM", "ZREM", "RPOP", "LPOP")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Args:
        file: path below lua/. line: where. kind: what was done, in a word. statement: number of the statement.
        start, end: the part of the text that is replaced. old, new: what by what.
        source: the line as it is, stripped. nth: 1, or more when this kind comes again in an equal line.
    """

    file: str
    line: int
    kind: str
    statement: int
    start: int
    end: int
    old: str
    new: str
    source: str
    nth: int = 1

    @property
    def name(self) -> str:
        """What identifies it for as long as its line stays as it is, wherever that line goes."""
        return f"{self.file} | {self.kind} | {self.source} | {self.nth}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}" + (f" ({self.nth})" if self.nth > 1 else "")

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def diff(self, text: str) -> str:
        before, after = text.splitlines(), self.apply(text).splitlines()
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        return "\n".join(f"    {line}" for line in lines if not line.startswith("@@"))


def files() -> dict[str, str]:
    """Path below lua/ and text of every Lua file."""
    home = Path(str(scripts.folder()))
    found = [*sorted(home.glob("*.lua")), *sorted(home.glob("includes/*.lua"))]
    return {str(path.relative_to(home)): path.read_text(encoding="utf-8") for path in found}


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in order."""
    lua = Lua(text)
    found: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    lines = text.splitlines()
    changes = {change for i in range(len(lua.tokens)) for change in _changes(lua, i)}
    for start, end, kind, new, i in sorted(changes):
        if text[start:end] == new:
            continue
        line = text.count("\n", 0, start) + 1
        source = lines[line - 1].strip()
        seen[kind, source] += 1
        nth = seen[kind, source]
        found.append(Mutant(file, line, kind, lua.statement_of(i), start, end, text[start:end], new, source, nth))
    return found


def equivalent() -> dict[str, str]:
    """The names of reviewed mutants that behave as the script does, each with the reason."""
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {f"{row['file']} | {row['kind']} | {row['line']} | {row.get('nth', 1)}": row["why"] for row in rows}


def _changes(lua: Lua, i: int) -> Iterator[tuple[int, int, str, str, int]]:
    """(start, end, kind, new text, token) of each change that begins at a token."""
    token = lua.tokens[i]
    for new in _FLIPS.get(token.text, ()):
        yield token.start, token.end, f"{token.text} to {new}", new, i
    if token.kind == "number" and not _counts_removed(lua, i):
        yield from _numbers(lua, i)
    if token.kind == "string" and token.text[1:-1] in _SWAPS:
        new = _SWAPS[token.text[1:-1]]
        yield token.start, token.end, f"{token.text[1:-1]} to {new}", f"'{new}'", i
    if token.text == "-" and not _counts_removed(lua, i + 1):
        kind, new = ("- to +", "+") if lua.tokens[i - 1].ends_operand else ("drop minus", "")
        yield token.start, token.end, kind, new, i
    if token.text == "not":
        yield token.start, token.end, "drop not", "", i
    if token.text in ("if", "elseif", "while"):
        yield from _conditions(lua, i)
    if token.text == "pcall" and lua.tokens[i - 1].text == ".":
        yield token.start, token.end, "pcall to call", "call", i
    if token.text == "return":
        yield from _returns(lua, i)
    if i in lua.starts and token.kind == "name":
        yield from _statements(lua, i)


def _numbers(lua: Lua, i: int) -> Iterator[tuple[int, int, str, str, int]]:
    """One more; one less too where it is small and no index."""
    token, value = lua.tokens[i], int(lua.tokens[i].text)
    yield token.start, token.end, f"{value} to {value + 1}", f"{value + 1}", i
    if 0 < value < 10 and lua.tokens[i - 1].text != "[":
        new = f"{value - 1}"
        yield token.start, token.end, f"{value} to {new}", new, i


def _counts_removed(lua: Lua, i: int) -> bool:
    """Whether this is the count of an LREM: an id stands in a list once, so that any count does the same."""
    return any(token.text == "'LREM'" for token in lua.tokens[max(0, i - 9) : i])


def _conditions(lua: Lua, i: int) -> Iterator[tuple[int, int, str, str, int]]:
    end = lua.expression_end(i + 1)
    start, stop = lua.tokens[i + 1].start, lua.tokens[end - 1].end
    yield start, stop, "negate", f"not ({lua.text[start:stop]})", i


def _returns(lua: Lua, i: int) -> Iterator[tuple[int, int, str, str, int]]:
    """An early return: one inside an if of a longer block."""
    blocks = lua.blocks[i]
    if not blocks or blocks[-1] != "if":
        return
    end = lua.expression_end(i + 1)
    yield lua.tokens[i].start, lua.tokens[end - 1].end, "drop return", "", i


def _statements(lua: Lua, i: int) -> Iterator[tuple[int, int, str, str, int]]:
    """A call or an assignment: without it, unguarded, or after the next one."""
    end = lua.expression_end(i)
    start, stop = lua.tokens[i].start, lua.tokens[end - 1].end
    yield start, stop, "drop", "", i
    if lua.tokens[i].text == "pcall":
        inner = [token.text for token in lua.tokens[i + 1 : i + 4]]
        new = f"{inner[1]}({lua.text[lua.tokens[i + 4].start : stop]}"
        yield start, stop, "unguard", new, i
    if end in lua.starts and _command(lua, i) in _PLACING and _command(lua, end) in _REMOVING:
        last = lua.tokens[lua.expression_end(end) - 1].end
        second = lua.text[lua.tokens[end].start : last]
        yield start, last, "swap", f"{second}\n{lua.text[start:stop]}", i


def _command(lua: Lua, i: int) -> str:
    """The command of a `redis.call` that begins there."""
    words = [token.text for token in lua.tokens[i : i + 5]]
    return words[4].strip("'") if words[:3] == ["redis", ".", "call"] else ""
