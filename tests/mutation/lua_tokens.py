"""Lua as tokens, with just enough of its grammar: where statements and blocks begin and end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--\[\[.*?\]\]|--[^\n]*)
    |(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<symbol>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])
    """,
    re.DOTALL | re.VERBOSE,
)
_WORDS = {
    *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil"),
    *("not", "or", "repeat", "return", "then", "true", "until", "while"),
}
_BINARY = {
    *("and", "or", "+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", ">", "<=", ">="),
    *(".", ":", ",", "=", "in"),
}
_OPENING, _CLOSING = {"(", "{", "["}, {")", "}", "]"}
#: After one of these a name begins a statement.
_BEFORE_STATEMENT = {"then", "do", "else", "repeat", ";", "end", "break"}
_STARTING = {"local", "if", "for", "while", "repeat", "return", "break"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `start` and `end` are offsets into the text; `kind` is `word` for a keyword."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def ends_operand(self) -> bool:
        if self.kind in ("name", "number", "string"):
            return True
        return self.text in (")", "}", "]", "...", "nil", "true", "false", "end")


class Lua:
    """One Lua file.

    Attributes:
        text: the source. tokens: without comments and the `#!lua` line.
        starts: index of the token with which each statement begins, in order.
        blocks: for each token the keywords whose blocks are open there, innermost last.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.starts = [i for i in range(len(self.tokens)) if self._starts(i)]
        self.blocks = list(self._blocks())

    def line_of(self, i: int) -> int:
        return self.text.count("\n", 0, self.tokens[i].start) + 1

    def statement_of(self, i: int) -> int:
        """The number of the statement with which the token is run: of an `elseif` condition that is its `if`."""
        number = sum(start <= i for start in self.starts) - 1
        begin = self.starts[number] if number >= 0 else 0
        if any(token.text == "elseif" for token in self.tokens[begin : i + 1]):
            depth = len(self.blocks[i])
            opening = (j for j in range(i, -1, -1) if self.tokens[j].text == "if" and len(self.blocks[j]) == depth)
            return self.statement_of(next(opening))
        return number

    def _starts(self, i: int) -> bool:
        token, last = self.tokens[i], self.tokens[i - 1] if i else None
        if token.text in _STARTING:
            return True
        if token.kind != "name" or last is None:
            return token.kind == "name"
        return last.text in _BEFORE_STATEMENT or (last.ends_operand and last.text != "function")

    def _blocks(self) -> list[tuple[str, ...]]:
        found, opened, loop = [], [], False
        for token in self.tokens:
            if token.text in ("function", "if", "for", "while", "repeat") and token.kind == "word":
                opened.append(token.text)
                loop = token.text in ("for", "while")
            elif token.text == "do" and not loop:
                opened.append("do")
            elif token.text == "do":
                loop = False
            found.append(tuple(opened))
            if token.text in ("end", "until"):
                opened.pop()
        assert not opened, "blocks do not end"
        return found

    def closing(self, i: int) -> int:
        """The index of the bracket that closes the one at i."""
        depth = 0
        for j in range(i, len(self.tokens)):
            depth += (self.tokens[j].text in _OPENING) - (self.tokens[j].text in _CLOSING)
            if depth == 0:
                return j
        raise ValueError("a bracket is not closed")

    def expression_end(self, i: int) -> int:
        """The index after the last token of the expressions, or the call or assignment, that begin at i."""
        j = i
        while j < len(self.tokens):
            token = self.tokens[j]
            if token.text in _OPENING:
                j = self.closing(j) + 1
            elif token.text == "function":
                j = self._function_end(j) + 1
            elif token.kind == "word" and token.text not in ("nil", "true", "false", "not", "and", "or"):
                return j
            else:
                j += 1
            if j < len(self.tokens) and self._ends_before(j):
                return j
        return j

    def _ends_before(self, j: int) -> bool:
        """Whether an expression cannot go on with the token at j."""
        last, token = self.tokens[j - 1], self.tokens[j]
        return last.ends_operand and token.text not in _BINARY and token.text not in _OPENING

    def _function_end(self, i: int) -> int:
        depth = len(self.blocks[i])
        ends = (j for j in range(i + 1, len(self.tokens)) if self.tokens[j].text == "end")
        return next(j for j in ends if len(self.blocks[j]) == depth)


def _tokens(text: str) -> Iterator[Token]:
    at = text.index("\n") if text.startswith("#!") else 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no Lua token: {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            yield Token("word" if match[0] in _WORDS else kind, match[0], match.start(), match.end())
        at = match.end()
