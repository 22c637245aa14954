# ruff: noqa: E501 -- rows of a table
"""Every fault of the matrix: how it is made, what must hold, which tests show it. Source: reliability §2, §5"""

from __future__ import annotations

from dataclasses import dataclass

_C = "tests/chaos/test_faults_"
_I = "tests/integration/test_"
_L = "tests/lua/test_"


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the page.

    Args:
        number: `F01`. what: the fault. made: how. holds: what must hold. tests: files or node ids.
        missing: what is not made here, and why; empty when all of it is.
    """

    number: str
    what: str
    made: str
    holds: str
    tests: tuple[str, ...] = ()
    missing: str = ""


FAULTS = (
    Fault("F01", "kill -9 in the middle of a job", "SIGKILL at random moments of runs; also with the default settings",
          "runs again within lock + interval + 1 s (20 s at the defaults), with a higher fence",
          (f"{_C}worker.py::test_killed_in_the_middle_of_a_job", f"{_C}worker.py::test_killed_with_the_default_settings",
           f"{_I}recovery.py")),
    Fault("F02", "killed between the fetch and the run", "the proxy drops the reply of the fetch, then SIGKILL",
          "the job runs", (f"{_C}worker.py::test_killed_between_the_fetch_and_the_run",)),
    Fault("F03", "killed between the end of a run and its write", "the body kills its process in its last line",
          "runs exactly twice; the second result counts",
          (f"{_C}worker.py::test_killed_between_the_end_of_the_run_and_its_write",)),
    Fault("F04", "stopped for longer than the lock", "SIGSTOP, another consumer runs the job, SIGCONT",
          "every late write is refused and changes nothing",
          (f"{_C}worker.py::test_a_stale_run_writes_nothing", f"{_I}recovery.py")),
    Fault("F05", "blocked for longer than the lock", "`time.sleep` in a coroutine; a C call that holds the interpreter",
          "one result is accepted; a blocked loop loses no lock",
          (f"{_C}worker.py::test_a_process_that_is_blocked_for_longer_than_its_lock",)),
    Fault("F06", "SIGTERM, short jobs", "under load", "running jobs end, exit 0, no lock left",
          (f"{_C}worker.py::test_terminated_under_load", f"{_I}shutdown.py")),
    Fault("F07", "SIGTERM, job longer than the grace", "SIGTERM, then the grace runs out",
          "back to the head, in order, no attempt counted", (f"{_I}shutdown.py", f"{_I}stop_in_process.py")),
    Fault("F08", "a second signal; a signal during the start", "random moments",
          "no job is left in nobody's hands", (f"{_C}worker.py::test_two_signals_at_any_moment", f"{_I}shutdown.py")),
    Fault("F09", "a job for which its process is killed, as for lack of memory", "`RLIMIT_AS`; SIGKILL of its process",
          "failed after max_stalled + 1 runs", (f"{_I}isolated.py::test_memory_has_a_limit", f"{_I}recovery.py")),
    Fault("F10", "a job that crashes its process", "`ctypes.string_at(0)`, once per job, among the random load",
          "the other jobs all complete; the slot is free within 1 s",
          (f"{_I}isolated.py::test_a_crash_costs_one_job_one_lost_owner",
           f"{_I}isolated.py::test_a_slot_is_free_within_a_second_of_a_crash", "tests/chaos/test_conservation.py")),
    Fault("F11", "`os._exit`, `sys.exit`, BaseException", "raised by tasks, and `os._exit(0)` among the random load",
          "never taken for a success", (f"{_I}misbehaving_tasks.py", "tests/chaos/test_conservation.py")),
    Fault("F12", "a run without an end", "a coroutine and a function that wait", "`timeout` frees the slot",
          (f"{_I}isolated.py::test_time_limits_hold", f"{_I}supervisor.py::test_a_blocked_loop_is_ended_at_the_limit_of_its_job",
           f"{_I}context.py")),
    Fault("F13", "the parent dies, the child lives on; and the reverse",
          "SIGKILL of the supervisor; of any child, among the random load", "no child is left",
          (f"{_I}supervisor.py::test_no_orphan_is_left_when_the_supervisor_is_killed",)),
    Fault("F14", "fork after the first call", "`os.fork`, three children", "nobody reads the reply of another",
          (f"{_C}worker.py::test_forked_after_the_first_call", f"{_I}results.py")),
    Fault("F15", "a task of the loop is cancelled in the middle of a command", "`cancel` at random moments",
          "the connection is not used again", (f"{_C}worker.py::test_cancelled_in_the_middle_of_a_command",)),
    Fault("F16", "renewals fail", "their replies are dropped, among the random load and alone",
          "no lock is lost; a renewing thread that has ended turns health red",
          (f"{_I}lost_wakeups.py", f"{_I}health.py::test_a_dead_renewer_is_red", "tests/chaos/test_conservation.py")),
    Fault("F17", "the log cannot be written", "a pipe without a reader; /dev/full", "jobs are as ever",
          (f"{_C}worker.py::test_the_log_cannot_be_written",)),
    Fault("F18", "too few files or connections", "RLIMIT_NOFILE; `maxclients` among the random load",
          "no lock is lost for it", (f"{_C}worker.py::test_too_few_files", "tests/chaos/test_conservation.py")),
    Fault("F19", "the reply of an add is lost", "the proxy drops it; sync, asyncio, bulk, workflow",
          "one job, the caller is told so", (f"{_C}network.py::test_an_add_whose_reply_is_lost", f"{_I}lost_adds.py")),
    Fault("F20", "the reply of a fetch is lost", "the proxy drops it", "the job runs once, uncharged",
          (f"{_C}network.py::test_a_fetch_or_an_end_whose_reply_is_lost", f"{_I}lost_replies.py",
           "tests/unit/test_reclaim.py")),
    Fault("F21", "the reply of an end is lost", "the proxy drops it, with the next job in it",
          "ended once, and the next job runs once",
          (f"{_C}network.py::test_a_fetch_or_an_end_whose_reply_is_lost", f"{_I}lost_replies.py")),
    Fault("F22", "the marker is lost", "the reply of BZPOPMIN is dropped; the marker is deleted",
          "picked up within the park + 0.5 s",
          (f"{_C}network.py::test_a_park_whose_reply_is_lost", f"{_C}network.py::test_every_marker_is_lost",
           f"{_I}lost_wakeups.py")),
    Fault("F23", "the marker goes to a frozen consumer", "SIGSTOP of a parked one",
          "another one picks the job up within its park + 0.5 s",
          (f"{_C}network.py::test_the_marker_is_given_to_a_frozen_consumer",)),
    Fault("F24", "outages: black hole, silence, reset, refusal, restart, kill", "the proxy; SIGSTOP of the server",
          "goes on by itself within 3 s, red meanwhile", (f"{_C}network.py::test_a_consumer_goes_on_by_itself",
           "tests/chaos/test_returns.py::test_it_goes_on_each_time",
           "tests/chaos/test_returns.py::test_it_goes_on_after_each_failover",
           f"{_C}network.py::test_random_moments", f"{_I}outages.py", f"{_I}late_replies.py")),
    Fault("F25", "a reply is cut at any byte", "the proxy, byte by byte", "each job runs once and ends once",
          (f"{_C}network.py::test_replies_cut_at_every_byte",)),
    Fault("F26", "a slow line", "200 ms and jitter; a thin line and a busy machine among the random load",
          "no job is taken for lost", (f"{_C}network.py::test_a_slow_line",)),
    Fault("F27", "a slow reader of events", "events are trimmed while it does not read",
          "it goes on, or is told of the gap", (f"{_I}events.py",),
          "the server's memory under `client-output-buffer-limit`: readers ask for pages, so nothing is pushed"),
    Fault("F28", "the server is slower than the client's timeout", "DEBUG SLEEP", "no job twice; the caller is told",
          (f"{_C}network.py::test_a_server_that_is_slower_than_the_client",)),
    Fault("F29", "a sleep longer than a socket's timeout", "idle", "no connection breaks",
          (f"{_C}network.py::test_an_idle_consumer_keeps_its_connections",)),
    Fault("F30", "many connections come back at once", "60 queues of one consumer, the server restarts",
          "jittered, and served within 10 s", (f"{_C}network.py::test_two_hundred_connections_come_back",),
          "a server that moves to another address: tests of Sentinel"),
    Fault("F31", "the server is killed under load", "SIGKILL; log always, everysec (no sync under way), snapshots, none",
          "always and everysec: nothing acknowledged is lost; the state is legal",
          (f"{_C}server.py::test_killed_while_jobs_are_added_and_run",)),
    Fault("F32", "the end of the log is cut or damaged", "cut through two transitions; a byte flipped",
          "the state before a transition or after it",
          (f"{_C}server.py::test_the_end_of_the_log_is_cut_off", f"{_C}server.py::test_a_damaged_log")),
    Fault("F33", "power cut", "SIGKILL, and the log is cut to what strace saw it sync", "always: 0 lost; everysec: at most 2 s",
          ("tests/chaos/test_power_cut.py::test_the_power_is_cut",)),
    Fault("F34", "disk full", "a snapshot that cannot be written (MISCONF)", "refused with a typed error, no half add",
          (f"{_C}server.py::test_it_cannot_write_to_its_disk",), "a full file system: mounting one needs root"),
    Fault("F35", "memory full", "`maxmemory` below what is used, jobs running",
          "they keep their locks and end; adds raise QueueFull", (f"{_C}server.py::test_memory_is_full_while_jobs_run",
           f"{_I}no_server.py", f"{_L}wrong_types.py::test_full_memory")),
    Fault("F36", "a policy that evicts", "CONFIG SET before the start, and while a consumer runs",
          "refused or warned of at the start, and told of when it changes",
          (f"{_C}server.py::test_a_policy_that_evicts_comes_while_a_consumer_runs", f"{_I}no_server.py"),
          "producers do not look: their servers are those of consumers"),
    Fault("F37", "scripts are forgotten", "SCRIPT FLUSH every 20 ms under load", "nobody notices",
          (f"{_I}outages.py::test_scripts_that_are_forgotten_again_and_again",)),
    Fault("F38", "scripts are evicted", "600 scripts of another client, again and again", "nobody notices",
          (f"{_C}server.py::test_scripts_are_evicted",)),
    Fault("F39", "failover with lag", "a replica that a proxy has cut off for a while takes over; Sentinel and Cluster under load",
          "by level of durability; ids are not used again",
          ("tests/chaos/test_failovers.py::test_a_replica_that_is_behind_takes_over", f"{_I}topologies.py",
           f"{_I}durability.py")),
    Fault("F40", "failover that rewinds", "the replica still sees jobs run that have ended", "nothing is stuck",
          ("tests/chaos/test_failovers.py::test_a_failover_that_rewinds",)),
    Fault("F41", "READONLY, NOREPLICAS, LOADING", "a replica of nobody; `min-replicas-to-write`; a slow load",
          "what is refused was not done", (f"{_C}server.py::test_it_refuses_writes_for_a_while",),
          "slots that move: tests of Cluster"),
    Fault("F42", "the server is busy for longer than the locks", "a foreign script, CLIENT PAUSE, DEBUG SLEEP",
          "one accepted end per job", (f"{_C}server.py::test_it_is_busy_for_longer_than_the_locks",)),
    Fault("F43", "an error at each command of each script", "a wrapped `redis.call`; keys of a wrong type; garbage",
          "nothing torn", (f"{_L}injection.py", f"{_L}wrong_types.py")),
    Fault("F44", "wrong clocks", "consumers off by an hour and a day; the server's clock jumps ten minutes",
          "no early start; nothing lost", (f"{_C}server.py::test_the_clock_of_a_consumer_is_wrong",
           f"{_C}server.py::test_the_clock_of_the_server_jumps", f"{_L}clock.py")),
    Fault("F45", "an operator's hands", "hashes, locks, ids, markers deleted; FLUSHALL, at work",
          "consumers go on, the state is legal at the end; the doctor finds and mends",
          (f"{_C}data.py::test_what_an_operator_may_do", f"{_I}doctor_under_load.py", f"{_L}doctor.py")),
    Fault("F46", "a herd", "20,000 delayed jobs due at once, 51 parked queues, after a restart",
          "other clients are served meanwhile", (f"{_C}server.py::test_a_herd",)),
    Fault("F47", "one id from many producers", "50 threads; while another thread removes it", "one live job per id",
          (f"{_C}data.py::test_one_id_from_fifty_producers",)),
    Fault("F48", "writes after a removal", "hash, lock and id are deleted under a run", "no ghost",
          (f"{_C}data.py::test_writes_of_a_run_whose_job_was_removed",)),
    Fault("F49", "ten recovery passes at once", "threads", "each job is recovered once",
          (f"{_C}data.py::test_ten_look_for_lost_jobs_at_once",)),
    Fault("F50", "pause, resume and limits under load", "as fast as they go", "nothing starts while paused",
          (f"{_C}data.py::test_paused_and_resumed_under_load", f"{_C}data.py::test_limits_are_held")),
    Fault("F51", "parked for a far job, a nearer one comes", "60 s, then up to 1 s", "starts within 0.1 s of its time",
          (f"{_C}data.py::test_a_nearer_job_while_parked_for_a_far_one",)),
    Fault("F52", "schedules", "consumers killed, missed slots, lost replies, DST", "one job per slot",
          (f"{_I}schedule_faults.py", "tests/unit/test_cron.py")),
    Fault("F53", "workflows", "kills, lost ends, removed parents and children", "no parent waits in vain",
          (f"{_L}random_edges.py", f"{_L}flow_runs.py", "tests/chaos/test_random_flows.py")),
    Fault("F54", "large things", "bulk of 50,000; 7,999 and 8,000; 1 byte to over the cap",
          "no script over 10 ms; over the cap nothing is sent", (f"{_C}data.py::test_large_things",)),
    Fault("F55", "strange ids and data", "generated texts and values", "byte-equal, or refused at the add",
          ("tests/unit/test_codec.py", "tests/unit/test_keys.py")),
    Fault("F56", "two versions at once", "", "they go together, or one refuses", (), "there is no other version yet"),
    Fault("F57", "unknown task, what cannot be decoded", "raw writes of another client", "failed with a code; or it waits",
          (f"{_I}bad_input.py", f"{_I}bad_calls.py")),
    Fault("F58", "growth", "what is remembered is at its limit, and more comes", "memory stays as it is",
          (f"{_C}data.py::test_growth",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and the commands that print its figure."""

    number: str
    what: str
    short: str
    long: str


_CHAOS = "pytest -m chaos tests/chaos"
GOALS = (
    Goal("G1", "nothing lost, nothing unexpected, no rule broken under random faults",
         f"{_CHAOS}/test_conservation.py", "python -m tests.chaos --jobs 1000000 --minutes 60"),
    Goal("G2", "add, fetch and end are safe to repeat", f"{_CHAOS}/test_faults_network.py -k whose_reply", "EMQ_TEST_LONG=1"),
    Goal("G3", "a stale run writes nothing", f"{_CHAOS}/test_faults_worker.py -k stale", "EMQ_TEST_LONG=1"),
    Goal("G4", "kill -9 to the next start, default settings", f"{_CHAOS}/test_faults_worker.py -k default", "EMQ_TEST_LONG=1"),
    Goal("G5", "poison", "pytest tests/integration/test_isolated.py tests/integration/test_recovery.py", "the same"),
    Goal("G6", "wake-ups and outages", "pytest -m chaos tests/chaos -k 'marker or park or goes_on'", "EMQ_TEST_LONG=1"),
    Goal("G7", "an error at each command tears nothing", "pytest tests/lua/test_injection.py tests/lua/test_wrong_types.py",
         "the same; all scripts, all commands"),
    Goal("G8", "at the memory limit", f"{_CHAOS}/test_faults_server.py -k memory", "EMQ_TEST_LONG=1"),
    Goal("G9", "levels of durability", "pytest -m chaos tests/chaos -k 'killed_while or power or behind'", "EMQ_TEST_LONG=1"),
    Goal("G10", "SIGTERM", f"{_CHAOS}/test_faults_worker.py -k 'terminated or signals'", "EMQ_TEST_LONG=1"),
    Goal("G11", "the model answers as the scripts do", "pytest tests/lua/test_model.py", "EMQ_TEST_LONG=1"),
    Goal("G12", "mutants of the scripts are found", "python -m tests.mutation --sample 30", "python -m tests.mutation"),
    Goal("G13", "memory stays as it is", f"{_CHAOS}/test_faults_data.py -k growth", "EMQ_TEST_LONG=1"),
    Goal("G14", "other clients are served meanwhile", f"{_CHAOS}/test_faults_server.py -k herd", "EMQ_TEST_LONG=1"),
    Goal("G16", "clocks", f"{_CHAOS}/test_faults_server.py -k clock", "EMQ_TEST_LONG=1"),
    Goal("G18", "the doctor finds and mends", "pytest tests/lua/test_doctor.py", "EMQ_TEST_LONG=1"),
)  # fmt: skip
