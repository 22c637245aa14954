"""The header of each script is its contract: complete, with the flags of T3, and what the binding builds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import ModuleType

import msgpack
import pytest
import redis
from queue_kit import KEEP_ALL, LOCK_MS, add_all, lua_code, new_job, take

from tasks_emq.core import calls, control, flow, reading, runs, scheduling
from tasks_emq.core.calls import Call
from tasks_emq.core.doctor import calls as doctor
from tasks_emq.core.doctor.calls import Looked
from tasks_emq.core.doctor.facts import Subject
from tasks_emq.core.doctor.findings import Finding
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.runs import Ended, PutOff
from tasks_emq.core.schedule import Schedule, Timing
from tasks_emq.core.scripts import Script, all_scripts

KEYS = QueueKeys("q")
END = Ended("a", "T", 1, "result", b"r")
PUT_OFF = PutOff("a", "T", 1, 500)
JOB = Subject("job", "a")

#: Calls of every function that makes one, with and without what is optional.
EXAMPLES: dict[Callable[..., Call], list[Call]] = {
    calls.add_job: [
        calls.add_job(KEYS, new_job("a")),
        calls.add_job(KEYS, new_job("a", delay_ms=5, nonce="n")),
        calls.add_job(KEYS, new_job("a", eta_ms=5)),
        calls.add_job(KEYS, new_job("a", priority=5, parent_key=KEYS.key("p"))),
        calls.add_job(KEYS, new_job("a", has_children=True, admits=5)),
        calls.add_job(KEYS, new_job("a", parent_key=KEYS.key("p"), within={"an": "n"})),
    ],
    calls.add_many: [
        add_all(KEYS, [new_job("a")]),
        add_all(KEYS, [new_job(job_id, nonce="n", eta_ms=5) for job_id in ("a", "b", "c")]),
    ],
    calls.is_finished: [calls.is_finished(KEYS, "a")],
    calls.get_state: [calls.get_state(KEYS, "a")],
    calls.get_counts: [
        calls.get_counts(KEYS, ["waiting"]),
        calls.get_counts(KEYS, ["waiting", "active", "failed"]),
    ],
    calls.get_jobs: [calls.get_jobs(KEYS, "waiting", 0, 9, oldest_first=True)],
    reading.get_range: [
        reading.get_range(KEYS, "wait", 0, 9),
        reading.get_range(KEYS, "failed", 5, 9, oldest_first=True),
    ],
    reading.get_counts_per_priority: [
        reading.get_counts_per_priority(KEYS, [0]),
        reading.get_counts_per_priority(KEYS, [5, 0, 1]),
    ],
    reading.get_metrics: [reading.get_metrics(KEYS, "failed", 0, -1)],
    reading.get_dependency_counts: [reading.get_dependency_counts(KEYS, "a")],
    calls.remove_job: [calls.remove_job(KEYS, "a"), calls.remove_job(KEYS, "a", children=True)],
    flow.detach_child: [flow.detach_child(KEYS, KEYS.key("a"), KEYS.key("p"))],
    calls.reprocess_job: [calls.reprocess_job(KEYS, "a", "failed", result_field="result")],
    calls.promote_job: [calls.promote_job(KEYS, "a")],
    calls.pause: [calls.pause(KEYS)],
    calls.resume: [calls.resume(KEYS), calls.resume(KEYS, event=False)],
    runs.move_to_active: [runs.move_to_active(KEYS, take(worker="w", limit=(1, 1)))],
    runs.move_to_finished: [
        runs.move_to_finished(KEYS, END, None, KEEP_ALL),
        runs.move_to_finished(KEYS, END, take(), KEEP_ALL, metrics=5),
    ],
    runs.finish_many: [
        runs.finish_many(KEYS, [], take(), KEEP_ALL),
        runs.finish_many(KEYS, [END, END], None, KEEP_ALL, metrics=5),
    ],
    runs.move_to_delayed: [
        runs.move_to_delayed(KEYS, PUT_OFF),
        runs.move_to_delayed(KEYS, PutOff("a", "T", 1, eta_ms=5, extra={"f": "v"}), take=take()),
    ],
    runs.retry_job: [runs.retry_job(KEYS, PUT_OFF), runs.retry_job(KEYS, PUT_OFF, lifo=True)],
    runs.move_to_waiting_children: [
        runs.move_to_waiting_children(KEYS, "a", "T", 1),
        runs.move_to_waiting_children(KEYS, "a", "T", 1, child=KEYS.key("c")),
        runs.move_to_waiting_children(KEYS, "a", "T", 1, begun=False),
    ],
    runs.hand_back: [runs.hand_back(KEYS, "a", "T", 1), runs.hand_back(KEYS, "a", "T", 1, limit_ms=5)],
    runs.recover_stalled: [
        runs.recover_stalled(KEYS, max_stalled=1, interval_ms=4000, cursor=0, retention=KEEP_ALL)
    ],
    runs.extend_lock: [runs.extend_lock(KEYS, "a", "T", LOCK_MS)],
    runs.extend_locks: [runs.extend_locks(KEYS, [("a", "T", 1)], LOCK_MS)],
    runs.release_lock: [runs.release_lock(KEYS, "a", "T")],
    runs.reclaim: [runs.reclaim(KEYS, "T", LOCK_MS)],
    runs.lose_job: [runs.lose_job(KEYS, "a", "T", 1, max_stalled=2, reason="SIGSEGV")],
    runs.get_owned: [runs.get_owned(KEYS, "T")],
    runs.update_progress: [runs.update_progress(KEYS, "a", "50", "T", 1)],
    runs.add_log: [runs.add_log(KEYS, "a", "line", 10, "T", 1)],
    scheduling.add_scheduler: [
        scheduling.add_scheduler(KEYS, Schedule("s", Timing(every_ms=5), "work", b"p", "args", {}), None),
        scheduling.add_scheduler(KEYS, Schedule("s", Timing(cron="* * * * *"), "work", b"p", "data", {"a": 1}), 5),
    ],
    scheduling.next_iteration: [
        scheduling.next_iteration(KEYS, "s", "repeat:s:5", None),
        scheduling.next_iteration(KEYS, "s", "repeat:s:5", 6),
    ],
    scheduling.remove_scheduler: [scheduling.remove_scheduler(KEYS, "s")],
    scheduling.get_schedulers: [
        scheduling.get_schedulers(KEYS, ["s"]),
        scheduling.get_schedulers(KEYS, ["s", "t", "u"]),
    ],
    control.set_limits: [
        control.set_limits(KEYS, {"concurrency": 5}),
        control.set_limits(KEYS, {"max": None, "duration": None, "x:maxlen": 9}),
    ],
    control.cancel_job: [control.cancel_job(KEYS, "a", "n")],
    control.get_cancelled: [control.get_cancelled(KEYS, ["a"]), control.get_cancelled(KEYS, ["a", "b"])],
    control.change_priority: [control.change_priority(KEYS, "a", 5, lifo=True)],
    control.change_delay: [control.change_delay(KEYS, "a", 500)],
    control.update_data: [
        control.update_data(KEYS, "a", b"p", "args"),
        control.update_data(KEYS, "a", b"p", "args", "T", 1),
    ],
    control.move_jobs_to_wait: [
        control.move_jobs_to_wait(KEYS, "failed"),
        control.move_jobs_to_wait(KEYS, "delayed", 5),
    ],
    control.drain: [control.drain(KEYS, delayed=True)],
    control.clean: [control.clean(KEYS, "wait", 500), control.clean(KEYS, "failed", 0, limit=5, skip=1)],
    control.obliterate: [control.obliterate(KEYS, force=True)],
    doctor.get_facts: [
        doctor.get_facts(KEYS, [], None),
        doctor.get_facts(KEYS, [JOB, Subject("edge", "p", KEYS.key("a")), Subject("marker")], {}),
    ],
    doctor.get_strays: [doctor.get_strays(KEYS, "0")],
    doctor.mend: [
        doctor.mend(
            KEYS, Looked(JOB, [], "f"), Finding("I1", "unplaced", JOB, "a", "no", "yes", [("put", "wait")])
        )
    ],
}
#: How many arguments the last, repeated one of a header stands for, and the word in the header that says so.
GROUPS = {
    "addMany-10": (2, "two each"),
    "finishMany-15": (8, "eight each"),
    "getFacts-1": (3, "three each"),
    "setLimits-4": (2, "a name and a number above 0 each"),
}

SCRIPTS = all_scripts()
BUILT = [call for made in EXAMPLES.values() for call in made]
each_script = pytest.mark.parametrize("found", SCRIPTS, ids=[found.name for found in SCRIPTS])
each_call = pytest.mark.parametrize("call", BUILT, ids=[call.script.name for call in BUILT])


def header(found: Script) -> str:
    """What stands between the `#!lua` line and the end of the head comment, which must come first."""
    shebang, _, rest = found.text.partition("\n")
    assert shebang.startswith("#!lua")
    assert rest.startswith(f"--[[ {found.name}: ")
    return rest.partition("]]")[0]


@each_script
def test_the_keys_are_numbered_and_typed(found):
    """KEYS[1] to KEYS[N], N of the file name, each with one name and its Redis type."""
    lines = re.findall(r"^KEYS\[(\d+)\] +(\S+) +(\S+)", header(found), re.MULTILINE)
    assert [int(n) for n, _, _ in lines] == list(range(1, int(found.name.rpartition("-")[2]) + 1))
    assert found.keys == tuple(name for _, name, _ in lines)
    kinds = {"LIST", "ZSET", "SET", "HASH", "STRING", "STREAM"}
    assert [(name, kind) for _, name, kind in lines if kind not in kinds and name != "prefix"] == []


def test_a_key_has_the_same_type_in_every_header():
    """A header that says something else of a key than its neighbour is wrong in one of the two."""
    kinds: dict[str, set[str]] = {}
    for found in SCRIPTS:
        for name, kind in re.findall(r"^KEYS\[\d+\] +(\S+) +(\S+)", header(found), re.MULTILINE):
            kinds.setdefault(name, set()).add(kind)
    assert {name: kind for name, kind in kinds.items() if len(kind) > 1} == {}


@each_script
def test_the_arguments_are_numbered(found):
    """ARGV[1] to the last, which alone may repeat; each name once and with a word on it."""
    lines = re.findall(r"^ARGV\[(\d+)(\+?)\] +(\S+) +\S+", header(found), re.MULTILINE)
    assert [int(n) for n, _, _ in lines] == list(range(1, len(lines) + 1))
    assert found.args == tuple(name for _, _, name in lines)
    assert len(set(found.args)) == len(lines) > 0
    assert not any(plus for _, plus, _ in lines[:-1])
    assert found.open_ended == bool(lines[-1][1])


@each_script
def test_the_header_says_what_it_answers_and_costs(found):
    """Returns, Cost and Repeat, once each and in this order."""
    assert re.findall(r"^(Returns|Cost|Repeat) +\S", header(found), re.MULTILINE) == ["Returns", "Cost", "Repeat"]


@each_script
def test_the_flags(found):
    """T3: adds are refused at full memory, readers may run anywhere, every other write works at full memory."""
    first = found.text.partition("\n")[0]
    if found.name.startswith("add") and found.name != "addLog-2":
        assert first == "#!lua"
    elif re.match(r"get|is", found.name):
        assert first == "#!lua flags=no-writes"
    else:
        assert first == "#!lua flags=allow-oom"
    assert found.writes == ("no-writes" not in first)


@each_script
def test_it_uses_what_both_servers_have(found):
    """No `server.` (Valkey only), no `os.` (gone from Redis), and the clock in one place (T1)."""
    assert re.findall(r"\b(?:server|os|math\.random)\b\s*[.(]", lua_code(found.text)) == []
    assert re.findall(r"""['"]TIME['"]""", lua_code(found.text)) == (
        ["'TIME'"] if "read_clock" in found.text else []
    )


@each_script
def test_it_names_its_keys_at_the_top(found):
    """Every key and argument that is used is one that the header names, and every one without "unused" is used."""
    body = lua_code(found.text)
    for what, names in (("KEYS", found.keys), ("ARGV", found.args)):
        used = {int(n) for n in re.findall(rf"\b{what}\[(\d+)\]", body)}
        named = set(range(1, len(names) + 1))
        unused = {n for n in named if re.search(rf"^{what}\[{n}\].*unused", header(found), re.MULTILINE)}
        repeated = {len(names)} if what == "ARGV" and found.open_ended else set()
        assert used <= named, what
        assert named - unused - repeated <= used, what


@each_script
def test_a_server_takes_it(client, found):
    """Both servers load the text, under the name that we make for it."""
    assert client.script_load(found.text) == found.sha


def test_every_script_has_an_example():
    """The table of examples is complete: every script, and every function that makes a call."""
    assert {call.script.name for call in BUILT} == {found.name for found in SCRIPTS}
    modules = (calls, control, doctor, flow, reading, runs, scheduling)
    assert set(EXAMPLES) == {maker for module in modules for maker in makers(module)}


def makers(module: ModuleType) -> set[Callable[..., Call]]:
    """The public functions of a module that return a Call."""
    found = inspect.getmembers(module, inspect.isfunction)
    return {
        function
        for name, function in found
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and function.__annotations__["return"].startswith("Call[")
    }


@each_call
def test_a_call_builds_what_the_header_names(call):
    """As many keys as named, each with its name filled in, and as many arguments."""
    short = [key.removeprefix(KEYS.prefix) for key in call.keys]
    assert all(key.startswith(KEYS.prefix) for key in call.keys)
    for name, key in zip(call.script.keys, short, strict=True):
        if name == "prefix":
            assert key == ""
        elif set(name.split(":")) & {"job", "target", "source", "destination"}:
            assert re.sub(r"job|target|source|destination", "*", name) != name
            assert not {"job", "target", "source", "destination"} & set(key.split(":"))
        else:
            assert key == name
    fixed = len(call.script.args) - call.script.open_ended
    group, said = GROUPS.get(call.script.name, (1, ""))
    more = len(call.args) - fixed
    assert more % group == 0
    assert more >= 0 if call.script.open_ended else more == 0
    assert said in header(call.script)


@each_call
def test_a_call_sends_no_time_of_its_own(call):
    """T1: what a header calls ts is empty unless a test gives it."""
    if "ts" in call.script.args:
        assert call.args[call.script.args.index("ts")] == ""
    if "head" in call.script.args:
        assert msgpack.unpackb(call.args[0])[3] == ""


@each_call
def test_a_call_is_safe_when_its_header_says_so(call):
    """What is sent again after a lost reply (T5): nothing that fetches, and nothing that is said not to be."""
    says = re.search(r"^Repeat +(.*?)(?:;|:|\n|\.)", header(call.script), re.MULTILINE)
    assert says
    fetches = "fetch" in says[1] and (b"lockDuration" in b"".join(a for a in call.args if isinstance(a, bytes)))
    assert call.safe == (not says[1].startswith("not safe") and not fetches)


def test_an_add_that_leaves_nothing_behind_is_not_safe():
    """T5: a job that is not kept when done cannot be recognised, so its add is not sent again."""
    lone, kept = new_job("a", kept=False), new_job("b")
    assert not calls.add_job(KEYS, lone).safe
    assert not add_all(KEYS, [lone]).safe
    assert add_all(KEYS, [kept]).safe


def test_a_script_that_sets_a_global_is_refused(client):
    """Both servers refuse it at the first run, so that running each script (test_codes) shows that none does."""
    with pytest.raises(redis.exceptions.ResponseError):
        client.eval("#!lua\nleak = 1\nreturn leak\n", 0)
