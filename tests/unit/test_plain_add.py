"""An add packed beforehand is, byte for byte, the add that `add_job` makes."""

from __future__ import annotations

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.core.calls import NewJob, add_job
from tasks_emq.core.keys import ID_LENGTH, QueueKeys, new_job_id
from tasks_emq.core.plain import PlainAdd

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
OPTS = st.fixed_dictionaries({}, optional={"attempts": st.integers(1, 10**6), "lifo": st.just(True)})


@given(NAMES, st.binary(max_size=70_000), st.sampled_from(["args", "data"]), OPTS, st.booleans())
def test_it_is_the_same_command(
    name: str, payload: bytes, field: str, opts: dict[str, object], kept: bool
) -> None:
    keys, job_id = QueueKeys("emails"), new_job_id(1_700_000_000_000)
    wanted = add_job(keys, NewJob(job_id, name, payload, field, opts, kept=kept))
    found = PlainAdd(keys, name, field, opts, kept=kept).call(job_id, payload)

    assert len(job_id) == ID_LENGTH
    assert hiredis.pack_command(found.words) == hiredis.pack_command(wanted.words) == found.line
    assert (found.safe, found.script, found.parse) == (wanted.safe, wanted.script, wanted.parse)
