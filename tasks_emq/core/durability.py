"""What must have become of an add before it is answered: the levels of durability."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tasks_emq.core.keys import keys_of_job
from tasks_emq.errors import ConfigError

Level = Literal["fast", "everysec", "always", "replica"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

#: What a server must be set to, by level. Source: design §10
_SETTINGS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "everysec": {"appendonly": ("yes",), "appendfsync": ("everysec", "always")},
    "always": {"appendonly": ("yes",), "appendfsync": ("always",)},
}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What an add waits for.

    Args:
        level: `everysec` or `always`: the server's settings are checked; `replica`: WAIT follows the add.
        replicas: so many must have it. within_s: for how long WAIT waits.
    """

    level: Level
    replicas: int = 1
    within_s: float = 1.0

    def settings_missing(self, found: Mapping[str, str]) -> str:
        """What of a server's settings is too weak for this level; empty when nothing is."""
        wrong = [
            f"{name} is {found.get(name)!r} and must be {' or '.join(allowed)}"
            for name, allowed in _SETTINGS.get(self.level, {}).items()
            if found.get(name) not in allowed
        ]
        return ", ".join(wrong)

    def words_after(self, key: str, within_s: float) -> tuple[tuple[str | int, ...], ...]:
        """The commands that follow an add of this queue and say whether replicas have it.

        Some servers answer WAIT for the last write of the same connection only, and an add that was there before
        writes nothing: so there is a write just before it.

        Args:
            key: any key of the queue. within_s: what is left for all; half of it is for the replies.
        """
        touch = ("HSET", keys_of_job(key).key("meta"), "x:sync", "")
        return touch, ("WAIT", self.replicas, max(1, round(1000 * min(self.within_s, within_s / 2))))


def strongest(levels: Iterable[Level]) -> Level:
    """The level that asks the most."""
    return max(levels, key=LEVELS.index)


def checked_level(value: object) -> Level:
    """A level.

    Raises:
        ConfigError: none of LEVELS.
    """
    for level in LEVELS:
        if value == level:
            return level
    raise ConfigError(f"durability={value!r}: one of {', '.join(LEVELS)}")
