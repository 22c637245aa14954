"""The model answers as the scripts do: the same calls to both, each reply and every key compared after each step.

On both servers. EMQ_TEST_LONG=1 takes a hundred times as many examples, EMQ_TEST_LONG=4000 so many, chosen anew
each time.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from time import time
from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from invariants import Dump, places, read, violations
from queue_kit import KEEP_ALL, LOCK_MS, T0, add_all, ended, new_job, take

from tasks_emq.core import calls, control, runs, scheduling
from tasks_emq.core.calls import Call
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.model.keyspace import ModelError
from tasks_emq.core.model.server import BY_ARGUMENTS, BY_KEYS, Model
from tasks_emq.core.model.transitions import NOWHERE, TRANSITIONS
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import PutOff, Retention
from tasks_emq.core.schedule import Schedule, Timing
from tasks_emq.core.scripts import all_scripts
from tasks_emq.core.states import STATE_KEYS
from tasks_emq.errors import EmqError

KEYS = QueueKeys("q")
#: How far the clocks of the model and of the server may be apart, ms: locks and limits run by them.
APART_MS = 20_000
EVENTS = f"{KEYS.prefix}events"
MARKER = f"{KEYS.prefix}marker"
#: Scripts that go through a SET, which has no order.
IN_ANY_ORDER = ("removeJob-2", "cancelJob-2")
#: Where the jobs are in a reply.
FETCHING = {
    "moveToActive-11": 0, "moveToFinished-14": 1, "finishMany-15": 1, "moveToDelayed-12": 1, "reclaim-1": 0,
}  # fmt: skip
#: Scripts that delete jobs, from any state.
REMOVING = (
    "removeJob-2", "cleanJobsInSet-3", "drain-5", "obliterate-2", "addJobScheduler-11", "removeJobScheduler-3",
)  # fmt: skip
#: Scripts of the doctor.
FOR_DAMAGE = ("getFacts-1", "getStrays-1", "mend-1")
#: Rules that these steps break themselves: a parent whose children are refused, as no client adds one.
MADE_HERE = {("I16", "idle")}
FEW = Retention(completed_age_s=60, completed_count=3, failed_age_s=60, failed_count=2)

IDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
TOKENS = st.sampled_from(["T1", "T2"])
FLAGS = st.booleans()
#: Steps that empty or stop the queue are skipped unless this is 0: else little ever gets far.
SELDOM = st.integers(0, 3)
ITERATION = re.compile(r"repeat:.+:\d+")


def comparable(value: Any) -> Any:
    """Texts as bytes, JSON maps by their content: a Lua table has no order."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return json.dumps(json.loads(value), sort_keys=True) if value[:1] == b"{" else value
    if isinstance(value, dict):
        return {comparable(name): comparable(item) for name, item in value.items()}
    if isinstance(value, set):
        return {comparable(item) for item in value}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return value


class Pair:
    """A real server and a model, asked the same."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.client.flushall()
        self.model = Model()
        self.dump: Dump = {}
        self.asked = 0

    def ask(self, call: Call[Any]) -> Any:
        """Run a call on both; its result, or its error, which must be the same."""
        self.model.keys.clock_ms = int(time() * 1000)
        before = places(self.dump)
        real, modelled = self._real(call), self._modelled(call)
        wanted, found = self._shape(call, real), self._shape(call, modelled)
        assert found == wanted, f"{call.script.name}: the script {wanted}, the model {found}"
        self.compare_keys(call.script.name)
        self._check_steps(call.script.name, before, places(self.dump))
        if isinstance(real, str):
            return None
        try:
            return call.parse(real)
        except EmqError:
            return None

    def started(self, job_id: str) -> str | None:
        """The fence of a job, as the last dump has it."""
        kind, fields = self.dump.get(job_id, ("", {}))
        return fields.get("ats") if kind == "hash" else None

    def _check_steps(self, script: str, before: dict[str, list[str]], after: dict[str, list[str]]) -> None:
        """Each job went along arrows of the table, from where it was to where it is."""
        for job_id in before.keys() | after.keys():
            (source,), (target,) = (_states(where.get(job_id, [])) for where in (before, after))
            stayed = source == target or (target == NOWHERE and script in REMOVING)
            assert stayed or target in _reached(source, script), f"{script}: {job_id} from {source} to {target}"

    def _real(self, call: Call[Any]) -> Any:
        try:
            try:
                return self.client.execute_command(*call.words)
            except redis.exceptions.NoScriptError:
                return self.client.execute_command(*call.words_in_full)
        except redis.exceptions.ResponseError as error:
            return _told(error)

    def _modelled(self, call: Call[Any]) -> Any:
        try:
            return self.model.answer(call.words)
        except ModelError as error:
            return _told(error)

    @staticmethod
    def _shape(call: Call[Any], reply: Any) -> Any:
        """The reply without what depends on the moment; hashes in it by their fields."""
        if call.script.name == "moveJobFromActiveToWait-9" and reply > 0:
            return "limited"
        reply = _with_hashes(call.script.name, reply)
        if call.script.name in FETCHING and isinstance(reply, list) and call.script.name != "reclaim-1":
            reply[-4] = reply[-4] > 0
        if call.script.name == "moveStalledJobsToWait-9":
            reply[3] = reply[3] > 0
        return comparable(reply)

    def compare_keys(self, script: str) -> None:
        """Every key, its value, and about when it runs out."""
        self.dump = read(self.client, KEYS.prefix)
        real = {KEYS.prefix + short: value for short, (_, value) in self.dump.items()}
        texts = [key for key, value in real.items() if isinstance(value, str)]
        with self.client.pipeline(transaction=False) as pipe:
            pipe.xrange(EVENTS)
            if EVENTS in real:
                pipe.xtrim(EVENTS, maxlen=0, approximate=False)
            for key in texts:
                pipe.pexpiretime(key)
            # A consumer that slept takes the marker: whoever has work must set it again.
            self.asked += 1
            if self.asked % 2:
                pipe.delete(MARKER)
            told, *answers = pipe.execute()
        trimmed = int(EVENTS in real)
        expiries = dict(zip(texts, answers[trimmed : trimmed + len(texts)], strict=True))
        modelled = self.model.keys.dump(KEYS.prefix)
        if self.asked % 2:
            self.model.answer(("DEL", MARKER))
        if EVENTS in real:
            real[EVENTS] = [[part for item in fields.items() for part in item] for _, fields in told]
        if EVENTS in modelled:
            modelled[EVENTS] = [fields for _, fields in modelled[EVENTS].entries]
            self.model.keys.stream(EVENTS).trim(0)
        if script in IN_ANY_ORDER:
            real[EVENTS], modelled[EVENTS] = (
                sorted(comparable(dump.get(EVENTS, []))) for dump in (real, modelled)
            )
        other = {key for key in real.keys() | modelled.keys() if real.get(key) != modelled.get(key)}
        wanted, found = (comparable({key: dump.get(key) for key in other}) for dump in (real, modelled))
        differing = {k: (wanted.get(k), found.get(k)) for k in wanted | found if wanted.get(k) != found.get(k)}
        assert differing == {}, f"{differing} (the script's, the model's)"
        expiring = {key: at for key, at in expiries.items() if at > 0}
        assert expiring.keys() == self.model.keys.expiries.keys()
        for key, at in expiring.items():
            assert abs(at - self.model.keys.expiries[key]) < APART_MS, key

    def drop(self, key: str) -> None:
        """Delete a key, as its expiry would."""
        self.client.delete(key)
        self.model.answer(("DEL", key))


def _told(error: Exception) -> str:
    """What an error reply says, without what servers add to it."""
    return str(error).removeprefix("ERR ").partition(" script: ")[0]


def _states(found: list[str]) -> list[str]:
    """The state of the key where a job stands."""
    names = {key: state for state, (key, _) in STATE_KEYS.items()} | {"paused": "waiting"}
    return [names[place] for place in found] or [NOWHERE]


@cache
def _reached(source: str, script: str) -> frozenset[str]:
    """Where the arrows of one script lead: one call may promote a job and then fetch it."""
    steps = {(step.source, step.target) for step in TRANSITIONS if script in step.scripts}
    reached = {source}
    while more := {target for start, target in steps if start in reached} - reached:
        reached |= more
    return frozenset(reached - {source})


def _with_hashes(script: str, reply: Any) -> Any:
    """A reply whose jobs hold their fields as a map: a large hash has no order on the server."""
    if script == "getJobs-1":
        return [[[job_id, _pairs(flat)] for job_id, flat in page] for page in reply]
    if script == "getJobScheduler-1":
        return [row and [_pairs(row[0]), row[1]] for row in reply]
    if script == "isFinished-3" and isinstance(reply, list):
        return [reply[0], _pairs(reply[1])]
    if script in FETCHING and isinstance(reply, list):
        place = FETCHING[script]
        return [*reply[:place], [[_pairs(flat), *rest] for flat, *rest in reply[place]], *reply[place + 1 :]]
    return reply


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Queues(RuleBasedStateMachine):
    """What clients can do to one queue, in any order."""

    client: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.client)
        self.now = T0
        self.taken: list[TakenJob] = []
        self.fetches = 0

    @initialize(family=FLAGS, policy=st.sampled_from(["", "fpof", "cpof", "idof", "rdof"]), delayed=FLAGS)
    def begin(self, family, policy, delayed):
        """Jobs that run, wait and wait for each other: from nothing a short walk would not come far."""
        for job_id in ("a", "b"):
            self.pair.ask(calls.add_job(KEYS, new_job(job_id, nonce="n"), timestamp_ms=self.now))
        if family:
            self.add_family("c", ["d", "e"], policy, 700 if delayed else 0, 0)
        self.pair.ask(calls.add_job(KEYS, new_job("f", delay_ms=500, nonce="n"), timestamp_ms=self.now))
        self.fetch(3, None)

    def an_id(self, place: str, job_id: str) -> str:
        """A job that stands there, when there is one."""
        ids = sorted(self.pair.dump.get(place, ("", ()))[1])
        return ids[ord(job_id) % len(ids)] if ids and job_id > "b" else job_id

    def an_iteration(self, job_id: str, wanted: int) -> str:
        """At times a job of a schedule, whose id has colons in it, when there is one."""
        ids = sorted(short for short in self.pair.dump if ITERATION.fullmatch(short))
        return ids[ord(job_id) % len(ids)] if ids and wanted == 0 else job_id

    def a_run(self, pick: int) -> TakenJob:
        """A run that is under way; at times one that was, whose end must then be refused."""
        active = self.pair.dump.get("active", ("list", ()))[1]
        live = [job for job in self.taken if job.id in active and self.pair.started(job.id) == str(job.ats)]
        runs_of = live if live and pick > 1 else self.taken
        return runs_of[pick % len(runs_of)]

    def took(self, found: Any) -> None:
        """Keep the runs of a reply."""
        if found is not None:
            self.taken = [*self.taken, *getattr(found, "fetched", found).jobs][-8:]

    def then(self, more: bool, count: int) -> runs.Take | None:
        """A fetch with a token of its own, when there is to be one."""
        self.fetches += 1
        return take(f"N{self.fetches}", count, "w") if more else None

    @rule(ms=st.sampled_from([1, 100, 500, 5_000, 90_000]))
    def wait(self, ms: int) -> None:
        self.now += ms

    # -- adds ---------------------------------------------------------------------------------------------

    @rule(
        job_id=st.one_of(IDS, st.just("")), delay=st.sampled_from([0, 0, 1000, 60_000]),
        priority=st.sampled_from([0, 0, 1, 7]), lifo=FLAGS, nonce=st.sampled_from(["", "n1", "n2"]), rerun=FLAGS,
        eta=st.sampled_from([None, None, -5, 400]),
    )  # fmt: skip
    def add(self, job_id, delay, priority, lifo, nonce, rerun, eta):
        job = new_job(
            job_id, delay_ms=delay, priority=priority, lifo=lifo, nonce=nonce, rerun=rerun,
            eta_ms=None if eta is None else self.now + eta,
        )  # fmt: skip
        self.pair.ask(calls.add_job(KEYS, job, timestamp_ms=self.now))

    @rule(ids=st.lists(IDS, min_size=1, max_size=4), delay=st.sampled_from([0, 0, 700]),
          priority=st.sampled_from([0, 0, 3]), nonce=st.sampled_from(["", "n1"]))  # fmt: skip
    def add_many(self, ids, delay, priority, nonce):
        jobs = [new_job(job_id, delay_ms=delay, priority=priority, nonce=nonce) for job_id in ids]
        self.pair.ask(add_all(KEYS, jobs, timestamp_ms=self.now))

    @rule(job_id=IDS, ttl=st.sampled_from([None, 600_000]), extend=FLAGS, replace=FLAGS, hold=FLAGS,
          delay=st.sampled_from([0, 800]))  # fmt: skip
    def add_deduplicated(self, job_id, ttl, extend, replace, hold, delay):
        wanted = {"id": "D", "ttl": ttl, "extend": extend, "replace": replace, "keepLastIfActive": hold}
        dedup = {name: value for name, value in wanted.items() if value}
        job = new_job(job_id, opts={"de": dedup}, dedup_id="D", nonce="n", delay_ms=delay)
        self.pair.ask(calls.add_job(KEYS, job, timestamp_ms=self.now))

    @rule(job_id=IDS, children=st.lists(IDS, min_size=1, max_size=3, unique=True),
          policy=st.sampled_from(["", "fpof", "cpof", "idof", "rdof"]), delay=st.sampled_from([0, 0, 900]),
          priority=st.sampled_from([0, 4]))  # fmt: skip
    def add_family(self, job_id, children, policy, delay, priority):
        if children == [job_id]:
            return
        parent = new_job(job_id, has_children=True, nonce="p", delay_ms=delay, priority=priority)
        self.pair.ask(calls.add_job(KEYS, parent, timestamp_ms=self.now))
        for child in children:
            if child != job_id:
                job = new_job(child, parent_key=KEYS.key(job_id), parent_policy=policy, nonce="c")
                self.pair.ask(calls.add_job(KEYS, job, timestamp_ms=self.now))

    # -- runs ---------------------------------------------------------------------------------------------

    @rule(count=st.sampled_from([0, 1, 2, 3]), limit=st.sampled_from([None, None, (2, 600_000)]))
    def fetch(self, count, limit):
        self.fetches += 1
        found = self.pair.ask(
            runs.move_to_active(KEYS, take(f"F{self.fetches}", count, "w", limit), ts_ms=self.now)
        )
        self.took(found)

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), failed=FLAGS, keep=FLAGS, more=FLAGS,
          field=st.sampled_from(["result", "returnvalue"]), few=FLAGS, metrics=st.sampled_from([None, 3]),
          follow=FLAGS)  # fmt: skip
    def finish(self, pick, failed, keep, more, field, few, metrics, follow):
        job = self.a_run(pick)
        next_one = [["g", "work", b"p", {}, "args"]] if follow else []
        kind = {} if failed else {"field": field}
        end = ended(job, "why" if failed else b"{}", failed=failed, keep=keep, follow=next_one, **kind)
        found = self.pair.ask(
            runs.move_to_finished(
                KEYS, end, self.then(more, 2), FEW if few else KEEP_ALL, ts_ms=self.now, metrics=metrics
            )
        )
        self.took(found)

    @precondition(lambda self: self.taken)
    @rule(picks=st.lists(st.integers(0, 7), min_size=1, max_size=3), failed=FLAGS, keep=FLAGS, more=FLAGS,
          few=FLAGS, metrics=st.sampled_from([None, 3]))  # fmt: skip
    def finish_many(self, picks, failed, keep, more, few, metrics):
        ends = [
            ended(self.a_run(pick), failed=failed and n == 0, keep=keep, extra={"err": "{}"})
            for n, pick in enumerate(picks)
        ]
        retention = FEW if few else KEEP_ALL
        found = self.pair.ask(
            runs.finish_many(KEYS, ends, self.then(more, 2), retention, ts_ms=self.now, metrics=metrics)
        )
        self.took(found)

    @rule(failed=FLAGS)
    def run_three(self, failed):
        """A consumer at work: three jobs taken and ended at once."""
        self.fetches += 1
        found = self.pair.ask(runs.move_to_active(KEYS, take(f"R{self.fetches}", 3), ts_ms=self.now))
        for job in found.jobs if found else ():
            self.pair.ask(runs.move_to_finished(KEYS, ended(job, failed=failed), None, KEEP_ALL, ts_ms=self.now))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), delay=st.sampled_from([0, 10, 2000]), eta=st.sampled_from([None, 50]),
          counted=FLAGS, more=FLAGS)  # fmt: skip
    def put_off(self, pick, delay, eta, counted, more):
        job = self.a_run(pick)
        eta_ms = None if eta is None else self.now + eta
        run = PutOff(job.id, job.token, job.ats, delay, eta_ms, counted, {"failedReason": "x"})
        self.took(self.pair.ask(runs.move_to_delayed(KEYS, run, take=self.then(more, 1), ts_ms=self.now)))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), lifo=FLAGS)
    def retry(self, pick, lifo):
        job = self.a_run(pick)
        run = PutOff(job.id, job.token, job.ats, extra={"failedReason": "x"})
        self.pair.ask(runs.retry_job(KEYS, run, ts_ms=self.now, lifo=lifo))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), child=IDS, policy=st.sampled_from(["", "fpof", "cpof", "idof", "rdof"]),
          how=st.sampled_from(["", "added", "ahead", "one"]))  # fmt: skip
    def wait_for_children(self, pick, child, policy, how):
        """A run that adds a child and waits for it, or that finds what there is open before it begins."""
        job = self.a_run(pick)
        if how != "ahead":
            fence = {"token": job.token, "ats": str(job.ats)}
            added = new_job(child, parent_key=KEYS.key(job.id), parent_policy=policy, nonce="w", within=fence)
            self.pair.ask(calls.add_job(KEYS, added, timestamp_ms=self.now))
        self.pair.ask(
            runs.move_to_waiting_children(
                KEYS, job.id, job.token, job.ats, added=how == "added", begun=how != "ahead",
                child=KEYS.key(child) if how == "one" else "", ts_ms=self.now,
            )
        )  # fmt: skip

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), limit=st.sampled_from([None, None, 600_000]))
    def hand_back(self, pick, limit):
        job = self.a_run(pick)
        self.pair.ask(runs.hand_back(KEYS, job.id, job.token, job.ats, limit_ms=limit))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), worst=st.integers(0, 2))
    def lose(self, pick, worst):
        job = self.a_run(pick)
        self.pair.ask(runs.lose_job(KEYS, job.id, job.token, job.ats, max_stalled=worst, reason="SIGKILL"))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7))
    def say(self, pick):
        job = self.a_run(pick)
        self.pair.ask(runs.update_progress(KEYS, job.id, '{"done":1}', job.token, job.ats))
        self.pair.ask(runs.add_log(KEYS, job.id, f"line {self.now}", 2, job.token, job.ats))
        self.pair.ask(control.update_data(KEYS, job.id, b"new", "args", job.token, job.ats))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), lose=FLAGS)
    def locks(self, pick, lose):
        job = self.a_run(pick)
        if lose:
            self.pair.drop(KEYS.key(f"{job.id}:lock"))
        self.pair.ask(runs.extend_lock(KEYS, job.id, job.token, LOCK_MS))
        self.pair.ask(runs.extend_locks(KEYS, [(run.id, run.token, run.ats) for run in self.taken], LOCK_MS))
        self.pair.ask(runs.reclaim(KEYS, job.token, LOCK_MS))
        self.pair.ask(runs.get_owned(KEYS, job.token[:1]))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), release=FLAGS, worst=st.integers(0, 2))
    def recover(self, pick, release, worst):
        job = self.a_run(pick)
        if release:
            self.pair.ask(runs.release_lock(KEYS, job.id, job.token))
        self.pair.drop(KEYS.key("stalled-check"))
        for _ in range(2):  # the second one is held back
            self.pair.ask(
                runs.recover_stalled(
                    KEYS, max_stalled=worst, interval_ms=600_000, cursor=0, retention=FEW, ts_ms=self.now
                )
            )

    # -- from outside -------------------------------------------------------------------------------------

    @rule(job_id=IDS, children=FLAGS, iteration=SELDOM, seldom=SELDOM)
    def remove(self, job_id, children, iteration, seldom):
        if seldom:
            return
        job_id = self.an_iteration(job_id, iteration)
        self.pair.ask(calls.remove_job(KEYS, job_id, children=children, ts_ms=self.now))

    @rule(job_id=IDS, state=st.sampled_from(["completed", "failed"]))
    def reprocess(self, job_id, state):
        job_id = self.an_id(state, job_id)
        stored = self.pair.dump.get(job_id, ("", {}))[1]
        field = "returnvalue" if "returnvalue" in stored else "result"
        self.pair.ask(calls.reprocess_job(KEYS, job_id, state, result_field=field))

    @rule(job_id=IDS)
    def promote(self, job_id):
        self.pair.ask(calls.promote_job(KEYS, self.an_id("delayed", job_id)))

    @rule(paused=FLAGS, event=FLAGS, seldom=SELDOM)
    def pause(self, paused, event, seldom):
        if seldom:
            return
        self.pair.ask(calls.pause(KEYS) if paused else calls.resume(KEYS, event=event))

    @rule(job_id=IDS, delay=st.sampled_from([0, 5000]), priority=st.sampled_from([0, 2]), lifo=FLAGS)
    def change(self, job_id, delay, priority, lifo):
        self.pair.ask(control.change_delay(KEYS, self.an_id("delayed", job_id), delay, ts_ms=self.now))
        self.pair.ask(control.change_priority(KEYS, self.an_id("wait", job_id), priority, lifo=lifo))
        self.pair.ask(control.update_data(KEYS, job_id, b"other", "args"))

    @rule(limits=st.sampled_from([
        {"concurrency": 2}, {"concurrency": None}, {"x:maxlen": 3}, {"x:maxlen": None},
        {"max": 2, "duration": 500_000}, {"max": None, "duration": None},
    ]), seldom=SELDOM)  # fmt: skip
    def limit(self, limits, seldom):
        if seldom:
            return
        self.pair.ask(control.set_limits(KEYS, limits))

    @rule(job_id=IDS, nonce=st.sampled_from(["c1", "c2"]), iteration=SELDOM, seldom=SELDOM)
    def cancel(self, job_id, nonce, iteration, seldom):
        if seldom > 1:
            return
        job_id = self.an_iteration(job_id, iteration)
        self.pair.ask(control.cancel_job(KEYS, job_id, nonce, ts_ms=self.now))

    @rule(state=st.sampled_from(["failed", "completed", "delayed"]), count=st.integers(1, 3), seldom=SELDOM)
    def move_many(self, state, count, seldom):
        if seldom > 1:
            return
        self.pair.ask(control.move_jobs_to_wait(KEYS, state, count, ts_ms=self.now))

    @rule(state=st.sampled_from(["completed", "failed", "delayed", "prioritized", "wait"]),
          limit=st.integers(0, 2), age=st.sampled_from([0, 10_000]), seldom=SELDOM)  # fmt: skip
    def clean(self, state, limit, age, seldom):
        if seldom:
            return
        self.pair.ask(control.clean(KEYS, state, age, limit=limit, ts_ms=self.now))

    @rule(delayed=FLAGS, seldom=SELDOM)
    def drain(self, delayed, seldom):
        if seldom:
            return
        self.pair.ask(control.drain(KEYS, delayed=delayed, ts_ms=self.now))

    @rule(force=FLAGS, count=st.sampled_from([1, 3, control.BATCH]), seldom=SELDOM)
    def obliterate(self, force, count, seldom):
        if seldom:
            return
        self.pair.ask(control.obliterate(KEYS, force=force, count=count, ts_ms=self.now))

    # -- schedules ----------------------------------------------------------------------------------------

    @rule(
        sid=st.sampled_from(["s", "t"]), every=st.sampled_from([None, 1000, 60_000]),
        offset=st.sampled_from([None, 250]), limit=st.sampled_from([None, None, 2]),
        start=st.sampled_from([None, 2_000]), end=st.sampled_from([None, 90_000]),
        priority=st.sampled_from([0, 0, 5]), ahead=st.sampled_from([1, 5_000]),
        payload=st.sampled_from([b"p", b"q"]), seldom=SELDOM)  # fmt: skip
    def schedule(self, sid, every, offset, limit, start, end, priority, ahead, payload, seldom):
        if seldom > 1:
            return
        timing = Timing(
            cron=None if every else "* * * * *", every_ms=every, offset_ms=offset if every else None, limit=limit,
            start_ms=start and T0 + start, end_ms=end and T0 + end,
        )  # fmt: skip
        made = Schedule(sid, timing, "work", payload, "args", {"priority": priority} if priority else {}, "code")
        slot = None if every else self.now + ahead
        self.pair.ask(scheduling.add_scheduler(KEYS, made, slot, ts_ms=self.now))

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 7), ahead=st.sampled_from([1, 5_000]))
    def next_iteration(self, pick, ahead):
        taken = self.a_run(pick).id
        for sid in ("s", "t"):
            self.pair.ask(scheduling.next_iteration(KEYS, sid, taken, self.now + ahead, ts_ms=self.now))

    @rule(sid=st.sampled_from(["s", "t"]), seldom=SELDOM)
    def unschedule(self, sid, seldom):
        if seldom:
            return
        self.pair.ask(scheduling.get_schedulers(KEYS, ["s", "t"]))
        self.pair.ask(scheduling.remove_scheduler(KEYS, sid))

    # -- looking ------------------------------------------------------------------------------------------

    @rule(job_id=IDS, oldest_first=FLAGS, start=st.integers(0, 2), seldom=SELDOM)
    def look(self, job_id, oldest_first, start, seldom):
        if seldom > 1:
            return
        self.pair.ask(calls.is_finished(KEYS, job_id))
        self.pair.ask(calls.get_state(KEYS, job_id))
        self.pair.ask(
            calls.get_counts(KEYS, ("waiting", "delayed", "prioritized", "active", "completed", "failed"))
        )
        self.pair.ask(control.get_cancelled(KEYS, [job_id, "a", "b"]))
        for state in ("waiting", "completed"):
            self.pair.ask(calls.get_jobs(KEYS, state, start, start + 1, oldest_first=oldest_first))

    @invariant()
    def the_rules_hold(self) -> None:
        found = [wrong for wrong in violations(self.pair.dump) if (wrong.rule, wrong.kind) not in MADE_HERE]
        assert found == [], found


def test_every_script_has_a_model():
    """No script is left out but those for damage, which no model has; and none is there that does not exist."""
    assert {*BY_ARGUMENTS, *BY_KEYS, *FOR_DAMAGE} == {script.name for script in all_scripts()}


LONG = int(os.environ.get("EMQ_TEST_LONG") or 0)
SETTINGS = settings(
    max_examples=(20_000 if LONG == 1 else LONG) or 200,
    stateful_step_count=30,
    derandomize=not LONG,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_model_answers_as_the_scripts_do(client):
    Queues.client = client
    run_state_machine_as_test(Queues, settings=SETTINGS)
    client.flushall()
