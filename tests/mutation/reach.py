"""Which statements of the scripts a test runs, so that a mutant is shown only to tests that can see it.

Each statement notes its number, and each run of a script writes what it noted into the server's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.mutation.lua_tokens import Lua

#: (file below lua/, number of the statement)
Place = tuple[str, int]

_MARK = "EMQ-REACHED"
# A server cuts a line of its log at 1024 bytes. `redis` may be a shim by then (tests/lua/injection.py), which
# does not log.
_BODY = f"""
local emq_seen = {{}}
local function emq_body()
%s
end
local emq_done, emq_reply = pcall(emq_body)
local emq_places = {{}}
local function emq_tell()
  _G.redis.log(_G.redis.LOG_WARNING, '{_MARK} ' .. table.concat(emq_places, ' ') .. ' ')
  emq_places = {{}}
end
for place in pairs(emq_seen) do
  emq_places[#emq_places + 1] = place
  if #emq_places == 100 then emq_tell() end
end
emq_tell()
if emq_done or type(emq_reply) == 'table' then return emq_reply end
return _G.redis.error_reply(tostring(emq_reply))
"""


class Notes:
    """The Lua files with statements that note themselves.

    Attributes:
        texts: path below lua/ and text of every file. places: what each number stands for.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.places: list[Place] = []
        self.texts = {file: self._noting(file, text) for file, text in texts.items()}

    def _noting(self, file: str, text: str) -> str:
        lua, parts, at = Lua(text), [], 0
        for number, start in enumerate(lua.starts):
            offset = lua.tokens[start].start
            parts += [text[at:offset], f"emq_seen[{len(self.places)}] = true "]
            self.places.append((file, number))
            at = offset
        return "".join([*parts, text[at:]])

    @staticmethod
    def telling(expanded: str) -> str:
        """A script from these files that logs at its end what it noted."""
        first, _, rest = expanded.partition("\n")
        return first + _BODY % rest

    def read(self, log: Path, start: int) -> tuple[frozenset[Place], int]:
        """What the log holds from an offset on, and where it ends."""
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
        lines = {line.partition(_MARK.encode())[2] for line in data.splitlines()}
        numbers = {int(word) for line in lines for word in line.split()}
        return frozenset(self.places[number] for number in numbers), start + len(data)
