"""Runs code of others: in threads that nobody has to wait for, with its prints kept off the standard output."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, wait
from typing import Any, Final, Self, TypeVar, cast

from miniclaw.errors import ToolError
from miniclaw.gateway.protocol import plain_text

__all__ = [
    "contained",
    "finished",
    "in_thread",
    "is_cancelled",
    "kind_of",
    "prints_aside",
    "start",
    "tasks_contained",
    "text_of",
    "trace_of",
]

T = TypeVar("T")

PLACES: Final = 64
"""Calls of blocking functions at work at once; a further one waits within its time limit."""
LOADING: Final = 10.0
"""Seconds that loading one file or package may take."""

_at_work: set[Future[Any]] = set()
_abandoned: set[Future[Any]] = set()
_is_contained: contextvars.ContextVar[bool] = contextvars.ContextVar("tasks_contained", default=False)
_is_aside: contextvars.ContextVar[bool] = contextvars.ContextVar("prints_aside", default=False)


async def in_thread(call: Callable[[], T]) -> T:
    """Call it in a thread of its own: one that hangs keeps nobody waiting, nor the end of the program.

    Raises:
        ToolError: every place is held by a call that was given up and still hangs.
    """
    while len(_running(_at_work)) >= PLACES:
        if len(_running(_abandoned)) >= PLACES:
            raise ToolError(f"All {PLACES} threads of tools are hung; this works again when they end.")
        await asyncio.sleep(0.01)
    answer = start(call)
    _at_work.add(answer)
    try:
        return await asyncio.wrap_future(answer)
    except asyncio.CancelledError:
        _abandoned.add(answer)
        raise


def start(call: Callable[[], T]) -> Future[T]:
    """Begin it in a thread that does not keep the program from ending; whatever it raises is in the future."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            with prints_aside():
                result = call()
        except StopIteration as error:  # a future of asyncio cannot carry it: the caller would wait for ever
            answer.set_exception(ToolError(f"The tool failed inside (StopIteration: {error.value})."))
        except GeneratorExit as error:  # nor this, which would end the task that waits
            answer.set_exception(ToolError(f"The tool failed inside ({kind_of(error)})."))
        except BaseException as error:  # noqa: BLE001 - it is told where the call is awaited
            answer.set_exception(error)
        else:
            answer.set_result(result)

    threading.Thread(target=context.run, args=(work,), name="tool", daemon=True).start()
    return answer


def finished(call: Callable[[], T]) -> Future[T]:
    """Load something in a thread and wait for its end.

    Raises:
        ToolError: it takes too long.
    """
    answer = start(call)
    wait((answer,), LOADING)
    if not answer.done():
        raise ToolError(f"It took more than {LOADING:g} s to load.")
    return answer


def is_cancelled(error: BaseException) -> bool:
    """Whether the task itself is to end, and not just the code of others that says so."""
    task = asyncio.current_task()
    is_asked = task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and is_asked)


def kind_of(error: BaseException) -> str:
    """The class of an error, and what it would have done here: its text may hold a secret."""
    name = type(error).__name__
    return name if isinstance(error, Exception) else f"{name}: the tool tried to end the program"


def text_of(error: BaseException) -> str:
    """The text of an error, which may be of a class that cannot tell it."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - boundary: code of others
        return ""


def trace_of(error: BaseException) -> str:
    """The traceback as text, from which secrets can be taken; a logger that makes it itself shows them."""
    return plain_text("".join(traceback.format_exception(error)))


@contextlib.contextmanager
def tasks_contained() -> Iterator[None]:
    """A task that is begun inside cannot end the program: on its `SystemExit` asyncio would end the loop."""
    loop = asyncio.get_running_loop()
    if not isinstance(factory := loop.get_task_factory(), _Tasks):
        loop.set_task_factory(_Tasks(factory))  # and it stays, for tasks that begin others later
    before = _is_contained.set(True)
    try:
        yield
    finally:
        _is_contained.reset(before)


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """Await code of others, whose own `GeneratorExit` would end the task as if nobody wanted it any more."""
    return cast("T", await _Contained(work, GeneratorExit))


class _Tasks:
    """Makes the tasks of a loop, those of others' code with a contained coroutine."""

    def __init__(self, factory: Callable[..., Any] | None) -> None:
        self._make = factory or (lambda loop, work, **more: asyncio.Task(work, loop=loop, **more))

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> Any:
        return self._make(loop, _Contained(work) if _is_contained.get() else work, **more)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose try to end the program is an error like any other."""

    def __init__(self, inner: Coroutine[Any, Any, Any], *ends: type[BaseException]) -> None:
        self._inner = inner
        self._ends = ends or (SystemExit, KeyboardInterrupt)

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast("Generator[Any, Any, Any]", self)  # as an iterator, so that each step goes through here

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except self._ends as error:
            raise ToolError(f"A task of the tool failed inside ({kind_of(error)}).") from error


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """What is printed inside goes to the standard error: the other one is for what a program may read."""
    if sys.stdout is not None and not isinstance(sys.stdout, _Stdout):
        sys.stdout = cast("Any", _Stdout(sys.stdout))
    before = _is_aside.set(True)
    try:
        yield
    finally:
        _is_aside.reset(before)


class _Stdout:
    """The standard output for all but the code of others; threads and tasks are told apart by their context."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if _is_aside.get() else self._real, name)


def _running(calls: set[Future[Any]]) -> set[Future[Any]]:
    calls.difference_update([one for one in calls if one.done()])
    return calls
