"""`python -m tests.mutation`: which changes of the Lua scripts no test notices. Source: reliability §3.5"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.mutation.mutants import Mutant, equivalent, files, mutants_of
from tests.mutation.runner import Runner, Verdict, start

#: Share of the mutants that the tests must find. Source: design G12
NEEDED = 0.95


def main() -> int:
    """Run the mutants that are asked for; returns 1 when too many survive."""
    asked = _arguments()
    texts = files()
    known = equivalent()
    every = [mutant for file, text in texts.items() for mutant in mutants_of(file, text)]
    stale = known.keys() - {mutant.name for mutant in every}
    if stale:
        print("equivalent.toml names mutants that are none:", *sorted(stale), sep="\n  ")
        return 1
    chosen = [mutant for mutant in every if not asked.file or any(part in str(mutant) for part in asked.file)]
    chosen = [mutant for mutant in chosen if mutant.name not in known]
    if asked.sample and asked.sample < len(chosen):
        chosen = sorted(random.Random(asked.seed).sample(chosen, asked.sample), key=lambda m: (m.file, m.start))
    verdicts: list[Verdict] = []

    def work(runner: Runner) -> None:
        began = time.monotonic()
        failing = runner.record(asked.record)
        if not runner.reached:
            sys.exit("the tests could not be run on the scripts as they are")
        print(f"{len(runner.reached)} tests recorded in {time.monotonic() - began:.0f} s")
        if failing:
            print(f"{len(failing)} fail already, and judge none; the first:", *failing[:5], sep="\n  ")
        for n, mutant in enumerate(chosen, 1):
            verdict = runner.judge(mutant)
            if verdict is None:
                print(f"{n}/{len(chosen)} {mutant}: no Lua, not counted")
                continue
            verdicts.append(verdict)
            _tell(n, len(chosen), verdict, texts[mutant.file], asked.verbose)

    status = start(Runner(texts, work, asked.limit))
    if status or not verdicts:
        return status or 1
    return _score(verdicts, len(known), asked.need)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("file", nargs="*", help="only mutants whose `file:line kind` has this in it")
    parser.add_argument("--sample", type=int, help="so many, chosen at random")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--limit", type=float, default=25, help="seconds of tests for one mutant (25)")
    parser.add_argument("--record", type=Path, help="a file to keep what each test runs; new tests are added")
    parser.add_argument("--need", type=float, default=NEEDED, help=f"share that must be killed ({NEEDED})")
    parser.add_argument("--verbose", action="store_true", help="tell of those that are killed too")
    return parser.parse_args()


def _tell(n: int, count: int, verdict: Verdict, text: str, verbose: bool) -> None:
    mutant: Mutant = verdict.mutant
    if verdict.killer is None:
        seen = f"{verdict.tests} tests" if verdict.complete else f"the first of {verdict.tests} tests"
        print(f"{n}/{count} SURVIVES {mutant} ({seen}, {verdict.seconds:.1f} s)\n{mutant.diff(text)}")
    elif verbose:
        print(f"{n}/{count} {mutant}: {verdict.killer} ({verdict.seconds:.1f} s)")
    elif n % 100 == 0:
        print(f"{n}/{count}")
    sys.stdout.flush()


def _score(verdicts: list[Verdict], equivalents: int, needed: float) -> int:
    killed = sum(verdict.killer is not None for verdict in verdicts)
    share = killed / len(verdicts)
    print(
        f"{killed} of {len(verdicts)} mutants killed: {share:.1%} ({needed:.0%} are needed; "
        f"{equivalents} reviewed as equivalent are left out)"
    )
    return int(share < needed)


sys.exit(main())
