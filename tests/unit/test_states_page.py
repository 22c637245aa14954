"""docs/states.md is what the table of transitions draws."""

from __future__ import annotations

from pathlib import Path

from tasks_emq.core.model.transitions import NOWHERE, TRANSITIONS, page
from tasks_emq.core.scripts import all_scripts
from tasks_emq.core.states import STATE_KEYS

ROOT = Path(__file__).parents[2]


def test_the_page_is_drawn_from_the_table():
    assert (ROOT / "docs/states.md").read_text(encoding="utf-8") == page()


def test_the_table_names_states_and_scripts_that_exist():
    """Each state is entered and left, and no arrow is there twice."""
    scripts = {script.name for script in all_scripts()}
    assert {name for step in TRANSITIONS for name in step.scripts} <= scripts
    assert {step.source for step in TRANSITIONS} == {step.target for step in TRANSITIONS} == {NOWHERE, *STATE_KEYS}
    assert len({(step.source, step.target) for step in TRANSITIONS}) == len(TRANSITIONS)
