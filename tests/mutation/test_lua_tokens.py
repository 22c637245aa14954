"""Which statement a token of Lua belongs to: a mutant is shown to the tests that run it."""

from __future__ import annotations

import pytest
from lua_tokens import Lua

TEXT = """
local a = 1
if a == 2 then
  b(3)
elseif a == 4 then
  if c == 5 then d(6) elseif c == 7 then e(8) end
elseif a == 9 then
  f(10)
else
  g(11)
end
h(12)
"""


@pytest.mark.parametrize(
    ("number", "statement"),
    [(1, 0), (2, 1), (3, 2), (4, 1), (5, 3), (6, 4), (7, 3), (8, 5), (9, 1), (10, 6), (11, 7), (12, 8)],
)
def test_the_statement_of_a_token(number: int, statement: int) -> None:
    """The condition of an `elseif` is looked at where its `if` is."""
    lua = Lua(TEXT)
    (at,) = [i for i, token in enumerate(lua.tokens) if token.text == str(number)]
    assert lua.statement_of(at) == statement
