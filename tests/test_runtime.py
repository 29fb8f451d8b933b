"""Threads: the same bits for any number, several callers, forks, interrupts, garbage, the end of the interpreter."""

from __future__ import annotations

import _thread
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import compiler
from compiler.codegen import brief
from compiler.runtime.threads import Pool
from tests.frontend.small import linear
from tests.models import lenet, mlp, tiny
from tests.test_api import T, X, bits, run_python
from tests.test_api_state import dropout
from tests.test_models import example

Arrays = dict[str, np.ndarray]
RANDOM = np.random.default_rng(0)
BATCH = {"x": RANDOM.normal(size=(16, 4)).astype(np.float32), "label": RANDOM.integers(0, 3, 16)}


BRIEF, MOST = 0, brief.MOST
"""In place of a number of threads: the step is brief, so one runs it."""


@pytest.fixture(autouse=True)
def steps_are_not_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small models run on as many threads as a test says."""
    monkeypatch.setattr(brief, "MOST", -1)


def compiled(model: onnx.ModelProto, threads: int) -> compiler.StepFunction:
    """A step on these threads; and until the next one all that is compiled is brief, or all is not."""
    brief.MOST = MOST if threads == BRIEF else -1
    return compiler.compile(model, threads=threads or 2)


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


# --- the same bits ---------------------------------------------------------------------------------------------------
def labels(count: int, classes: int) -> np.ndarray:
    return np.arange(count) * 7 % classes


def digits_batches() -> list[Arrays]:
    train, _ = example("digits").data()
    return [{n: a[16 * i : 16 * (i + 1)] for n, a in train.items()} for i in range(4)]


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[], list[Arrays]]]] = {
    "tiny": (tiny, lambda: [BATCH] * 4),
    "dropout": (dropout, lambda: [{"x": np.tile(X, (9, 1)), "t": np.tile(T, (9, 1))}] * 4),
    "mlp": (
        lambda: mlp((100, 70, 10)),
        lambda: [
            {"x": RANDOM.normal(size=(n, 100)).astype(np.float32), "label": labels(n, 10)} for n in (33, 33, 1, 7)
        ],
    ),
    "lenet": (
        lenet,
        lambda: [{"x": RANDOM.normal(size=(3, 1, 28, 28)).astype(np.float32), "label": labels(3, 10)}] * 3,
    ),
    "digits": (lambda: example("digits").build(), digits_batches),
}


@pytest.mark.filterwarnings("ignore:the model has no initialization graph")
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_for_any_number_of_threads(name: str) -> None:
    build, data = MODELS[name]
    model, batches = build(), data()

    def run(threads: int) -> list[Any]:
        step = compiled(model, threads)
        step.initialize(1)
        found = [bits(step(feeds)) for feeds in batches]
        inference = {v.name for v in model.graph.input}
        found.append(bits(step.infer({n: a for n, a in batches[0].items() if n in inference})))
        return [*found, bits(step.state)]

    one = run(1)
    assert run(1) == one
    for threads in (BRIEF, 2, 3):
        assert run(threads) == one


# --- several callers -------------------------------------------------------------------------------------------------
def in_threads(*work: Callable[[], Any]) -> None:
    problems: list[BaseException] = []

    def guarded(f: Callable[[], Any]) -> None:
        try:
            f()
        except BaseException as e:  # noqa: BLE001 - shown below
            problems.append(e)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in work]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "hangs"
    assert not problems, problems


@pytest.mark.parametrize("threads", [BRIEF, 1, 2])
def test_calls_from_several_threads_take_turns(threads: int) -> None:
    step, alone = compiled(tiny(), threads), compiler.compile(tiny())
    halves = [{n: a[:8] for n, a in BATCH.items()}, BATCH]

    def work() -> None:
        for _ in range(50):
            step(BATCH)

    def other() -> None:
        for i in range(50):
            step.infer(x=halves[i % 2]["x"])
            step.state["fc1.bias"].sum()

    in_threads(work, work, other)
    for _ in range(100):
        alone(BATCH)
    assert bits(step.state) == bits(alone.state)


@pytest.mark.parametrize("threads", [BRIEF, 1, 2])
def test_steps_run_side_by_side(threads: int) -> None:
    steps = [compiled(tiny(seed=s), threads) for s in (0, 1)]
    alone = [compiler.compile(tiny(seed=s)) for s in (0, 1)]

    def worker(step: compiler.StepFunction) -> Callable[[], None]:
        return lambda: [step(BATCH) for _ in range(100)] and None

    in_threads(*map(worker, steps))
    for a, b in zip(steps, alone, strict=True):
        for _ in range(100):
            b(BATCH)
        assert bits(a.state) == bits(b.state)


def test_compiling_in_several_threads() -> None:
    found: list[Any] = []

    def work() -> None:
        step = compiler.compile(mlp((5, 4, 3), activation="Sigmoid"), threads=2)
        step(x=np.ones((2, 5), np.float32), label=[0, 1])
        found.append(bits(step.state))

    in_threads(work, work, work)
    assert found[0] == found[1] == found[2]


def test_a_step_cannot_be_called_from_within_its_own_call() -> None:
    step = compiler.compile(linear())
    step(x=X, t=T)
    found, refused = step._recent["step"], list[Any]()
    run = found._run

    def interrupted() -> None:  # as by a signal handler, in the middle
        found._runs_by(run)
        for call, feeds in ((step, {"x": X, "t": T}), (step.infer, {"x": X})):
            with pytest.raises(compiler.OnnxcError, match="cannot be called from within its own call"):
                call(feeds)
            refused.append(call)
        run()

    found._runs_by(interrupted)
    step(x=X, t=T)
    step(x=X, t=T)
    assert len(refused) == 2
    assert step.state["n"] == 3


# --- forks -----------------------------------------------------------------------------------------------------------
def in_fork(work: Callable[[], bytes]) -> bytes:
    """What `work` gives in a forked child, which must end by itself."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            with open(write, "wb") as f:
                f.write(work())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    timer = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
    timer.start()
    with open(read, "rb") as f:
        data = f.read()
    _, status = os.waitpid(pid, 0)
    timer.cancel()
    assert status == 0, f"status {status}"
    return data


def contents(step: compiler.StepFunction) -> bytes:
    return b"".join(a.tobytes() for a in step.state.values())


@pytest.mark.parametrize("threads", [BRIEF, 1, 3])
def test_a_forked_child_goes_on_by_itself(threads: int) -> None:
    step = compiled(tiny(), threads)
    for _ in range(3):
        step(BATCH)

    def train() -> bytes:
        for _ in range(3):
            step(BATCH)
        small = {n: a[:5] for n, a in BATCH.items()}
        step(small)  # another size is compiled
        return contents(step)

    child = in_fork(train)
    assert train() == child
    # and a child of a child, and a child that never runs
    assert in_fork(lambda: in_fork(train)) == train()
    assert in_fork(lambda: contents(step)) == contents(step)


@needs_proc
def test_a_forked_child_has_workers_of_its_own() -> None:
    step = compiler.compile(tiny(), threads=3)
    step(BATCH)

    def count() -> bytes:
        before = threads_of_this_process()
        step(BATCH)
        return f"{before} {threads_of_this_process()}".encode()

    assert in_fork(count) == b"1 3"


def test_multiprocessing_with_fork() -> None:
    step = compiler.compile(tiny(), threads=2)
    step(BATCH)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def work() -> None:
        for _ in range(3):
            step(BATCH)
        queue.put(contents(step))

    processes = [context.Process(target=work) for _ in range(2)]
    for p in processes:
        p.start()
    found = [queue.get(timeout=60) for _ in processes]
    for p in processes:
        p.join(60)
        assert p.exitcode == 0
    for _ in range(3):
        step(BATCH)
    assert found == [contents(step)] * 2


def test_a_fork_waits_for_the_steps_of_other_threads() -> None:
    """The child finds whole states: each is one that a number of steps gives."""
    step, alone = compiler.compile(tiny(), threads=2), compiler.compile(tiny())
    states = []
    for _ in range(4000):
        alone(BATCH)
        states.append(contents(alone))
    stop = threading.Event()

    def work() -> None:
        for _ in range(2000):
            if stop.is_set():
                return
            step(BATCH)

    step(BATCH)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        before, after = (lambda data: (data[: len(data) // 2], data[len(data) // 2 :]))(
            in_fork(lambda: contents(step) + (step(BATCH), contents(step))[1])
        )
        at = states.index(before)
        assert states[at + 1] == after
    stop.set()
    thread.join()


# --- interrupts ------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:the model has no initialization graph")
@pytest.mark.parametrize("threads", [BRIEF, 1, 2])
def test_interrupts_at_any_time_leave_a_step_that_works(threads: int) -> None:
    step = compiled(tiny(), threads)
    step(BATCH)
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupts = 0
    try:
        for k in range(150):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.00003 * (k % 50))
                for _ in range(100000):
                    step(BATCH)
                    step.state["iteration"] = 0
            interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert interrupts == 150
    in_threads(lambda: step(BATCH))
    step.initialize()
    in_fork(lambda: contents(step))


# --- garbage and the end ---------------------------------------------------------------------------------------------
@needs_proc
def test_collected_steps_end_their_threads() -> None:
    compiler.compile(tiny(), threads=3)  # now its kernels are there
    gc.collect()
    before = threads_of_this_process()
    steps = [compiler.compile(tiny(), threads=3) for _ in range(4)]
    for step in steps:
        step(BATCH)
    assert threads_of_this_process() == before + 8
    last = weakref.ref(steps[-1])
    del steps, step
    gc.collect()
    assert last() is None
    assert wait_for(lambda: threads_of_this_process() == before)


def test_a_system_that_gives_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, step = compiler.compile(tiny()), compiler.compile(tiny(), threads=4)
    start, given = _thread.start_new_thread, [1]

    def meagre(*args: Any) -> int:
        if not given:
            raise RuntimeError("can't start new thread")
        given.pop()
        return start(*args)

    monkeypatch.setattr(_thread, "start_new_thread", meagre)
    for _ in range(3):
        assert bits(step(BATCH)) == bits(alone(BATCH))
    assert not given


def test_a_pool_without_code() -> None:
    with pytest.raises(ValueError, match="native code"):
        Pool(2, None)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "del step",
        "threading.Thread(target=lambda: [step(feeds) for _ in range(200)]).start()",
        "threading.Thread(target=lambda: [step(feeds) for _ in range(10**9)], daemon=True).start(); time.sleep(0.1)",
        "atexit.register(lambda: step(feeds))",
        "step.self = step",
        "os.fork() or [step(feeds), sys.exit(0)]; os.wait()",
        "compiler.compile(tiny(), threads=2)",
    ],
)
def test_the_interpreter_ends_with_live_workers(end: str) -> None:
    run_python(f"""
        import atexit, os, sys, threading, time
        import numpy as np
        import compiler
        from compiler.codegen import brief
        from tests.models import tiny

        brief.MOST = -1
        feeds = {{"x": np.ones((4, 4), np.float32), "label": np.zeros(4, int)}}
        step = compiler.compile(tiny(), threads=3)
        step(feeds)
        {end}
    """)


def test_thread_ids_are_not_needed() -> None:
    """A step that one thread made, another runs, and a third collects."""
    made: list[compiler.StepFunction] = []
    in_threads(lambda: made.append(compiler.compile(tiny(), threads=2)))
    in_threads(lambda: made[0](BATCH))
    in_threads(lambda: made[0](BATCH))
    in_threads(lambda: made.pop() and gc.collect() and None)
    assert not made
    assert sys.exc_info() == (None, None, None)
