"""The rights that a consumer asks for are those that the scripts need. Source: reliability §0.15, S13"""

from __future__ import annotations

import re

from tasks_emq.consumer import checks
from tasks_emq.core.scripts import all_scripts

#: Words in capitals that scripts hand over beside commands.
ARGUMENTS = {
    *("COUNT", "KEEPTTL", "LEFT", "LIMIT", "MATCH", "MAXLEN", "RANK", "RIGHT", "WITHSCORES", "WRONGTYPE"),
}
#: What no script runs: the consumer itself does.
CONSUMER = {"BZPOPMIN", "EVALSHA"}


def test_every_command_of_every_script_is_asked_for() -> None:
    """One that is missing here would be denied in the middle of a script, whose earlier writes would stay."""
    words = {word for found in all_scripts() for word in re.findall(r"'([A-Z]{3,})'", found.text)}
    asked = {line.split()[0] for line in checks._NEEDED}
    assert asked == (words - ARGUMENTS) | CONSUMER
