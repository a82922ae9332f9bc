"""A process from the preloaded parent is what a fresh interpreter would be, but for the time."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sglang_spin.cpu import bootstrap
from tests.preloaded.parent import WORKERS
from tests.preloaded.process import UNUSED, Process, start, start_fresh

SET_BY_PACKAGES = {"TORCHINDUCTOR_CACHE_DIR"}
PARENT, SESSION = 1, 3  # fields of /proc/PID/stat after the name

REPORT = """
import json, os, sys
found = {
    "argv": sys.argv[1:],
    "name": __name__,
    "spec": __spec__.name,
    "main": sys.modules["__main__"].__spec__.name,
    "path": sys.path,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
    "stdin": sys.stdin.read(),
    "handlers": [str(__import__("signal").getsignal(n)) for n in (2, 15, 17)],
    "ours": sorted(m for m in sys.modules if m.startswith(("sglang", "sglang_spin", "numba"))),
}
preloaded = sorted({"torch", "transformers", "fastapi"} & set(sys.modules))
threads = __import__("torch").get_num_threads()
print(json.dumps([found, preloaded, threads]))
"""
HOOKED = """
import json, sys
known = "sglang.srt.managers.scheduler" in sys.modules
if not known:
    import sglang.launch_server, sglang.srt.managers.scheduler
early = set(sys.modules)
from sglang_spin.cpu.patches import PATCHES
from sglang_spin.engine.install import TARGETS
names = {target.name.partition(":")[0] for target in (*TARGETS, *PATCHES)}
print(json.dumps([known, sorted(names & early)]))
"""
SPAWNS = """
import json, multiprocessing, os, sys

def child(pipe, number):
    loaded = [name in sys.modules for name in ("torch", "sched")]
    pipe.send([os.getppid(), __name__, *loaded, os.environ["X"]])
    sys.exit(number)

if __name__ == "__main__":
    import sched
    os.environ["X"] = "set after the start"
    multiprocessing.set_start_method("spawn")
    answers = []
    for number in range(int(sys.argv[1])):
        mine, its = multiprocessing.Pipe()
        process = multiprocessing.Process(target=child, args=(its, number))
        process.start()
        told = mine.recv()
        process.join()
        answers.append([process.exitcode, told[0] == os.getpid(), *told[1:]])
    print(json.dumps(answers))
"""


def _module(folder: Path, text: str) -> tuple[str, dict[str, str]]:
    """A module to run, and the environment in which it is found."""
    (folder / "told.py").write_text(text)
    path = os.pathsep.join([str(folder), "/nowhere"])
    return "told", bootstrap.environment({**os.environ, "PYTHONPATH": path})


def _both(
    arguments: list[str], env: dict[str, str], sglang: bool = False
) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of a forked and of a fresh process."""
    seen = []
    for begin in (partial(start, sglang=sglang), start_fresh):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            status = begin(arguments, env, out, err).wait(120)
            seen.append((status, *[stream.seek(0) or stream.read() for stream in (out, err)]))
    return seen


@pytest.mark.parametrize("threads", ["1", "2"])
def test_it_is_given_the_same(tmp_path: Path, threads: str) -> None:
    """Arguments, environment, import path, session: none differs, and nothing of ours is loaded.

    Where a variable differs that the packages have read, it has not been forked.
    """
    name, env = _module(tmp_path, REPORT)
    env |= {"OMP_NUM_THREADS": threads, "TOLD": "yes"}
    forked, fresh = (json.loads(out) for _, out, _ in _both([name, "a", "b c"], env))
    more = forked[0]["environment"].keys() - fresh[0]["environment"].keys()
    assert more <= {UNUSED, *SET_BY_PACKAGES}
    for variable in more:
        del forked[0]["environment"][variable]
    assert forked[0] == fresh[0]
    assert forked[2] == fresh[2] == int(threads)
    assert fresh[0]["argv"] == ["a", "b c"]
    assert fresh[0]["ours"] == []
    assert fresh[1] == []
    assert forked[1] == (["fastapi", "torch", "transformers"] if threads == "1" else [])


def test_hooked_modules_are_imported_when_they_are_in_a_spawned_scheduler(tmp_path: Path) -> None:
    """The parent has those of the modules that plugins change that SGLang has imported by then."""
    name, env = _module(tmp_path, HOOKED)
    forked, fresh = (json.loads(out) for _, out, _ in _both([name], env, sglang=True))
    assert [forked[0], fresh[0]] == [True, False]
    assert forked[1] == fresh[1] != []


@pytest.mark.parametrize(
    "text",
    ["raise SystemExit('one line')", "raise ValueError(3)", "import os; os.kill(os.getpid(), 9)"],
)
def test_it_ends_alike(tmp_path: Path, text: str) -> None:
    """Exit status and last words are those of a fresh process."""
    name, env = _module(tmp_path, text)
    forked, fresh = _both([name], env)
    assert forked[:2] == fresh[:2]
    assert forked[2].splitlines()[-1:] == fresh[2].splitlines()[-1:]


def test_spawned_children_are_its_own_and_know_nothing_of_it(tmp_path: Path) -> None:
    """They are forked before it imports anything, take pipes and status; later ones are started."""
    name, env = _module(tmp_path, SPAWNS)
    count = WORKERS + 1
    forked, fresh = (json.loads(out) for _, out, _ in _both([name, str(count)], env))
    told = ["__mp_main__", False, False, "set after the start"]
    assert fresh == [[number, True, *told] for number in range(count)]
    told[1] = True
    assert forked[:WORKERS] == [[number, True, *told] for number in range(WORKERS)]
    assert forked[WORKERS] == fresh[WORKERS]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    """A forked process that says "up" and sleeps."""
    name, env = _module(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
    out = tmp_path / "out"
    with out.open("w") as sink:
        process = start([name], env, sink, sink)
    try:
        _wait(lambda: out.read_text() == "up\n")
        yield process
    finally:
        process.kill()


def test_killing_it_ends_what_it_started(sleeper: Process) -> None:
    """Also the children that wait to be spawned."""
    assert sleeper.poll() is None
    session = [pid for pid in _processes() if _stat(pid, SESSION) == sleeper.pid]
    assert len(session) == 1 + WORKERS
    sleeper.kill()
    assert sleeper.poll() == -signal.SIGKILL
    _wait(lambda: not set(session) & set(_processes()))


def test_the_parent_forks_from_one_thread(sleeper: Process) -> None:
    """No package that it imports has started a thread, which a fork would lose."""
    parent = _stat(_stat(sleeper.pid, PARENT), PARENT)
    assert "tests.preloaded.parent" in Path(f"/proc/{parent}/cmdline").read_text()
    assert len(list(Path(f"/proc/{parent}/task").iterdir())) == 1


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _stat(pid: int, field: int) -> int:
    """A field of /proc/PID/stat after the name, 0 where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[field])
