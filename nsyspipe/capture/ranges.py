"""NVTX ranges for a training loop: `annotate` names a phase, `captured_steps` numbers the steps and captures some.

Ranges cost well under a microsecond each while nothing records. They go to ``torch.cuda.nvtx`` when torch was imported
before the first range and has CUDA, else to the ``nvtx`` package, else nowhere. Under ``torch.compile``, put them
around compiled calls, not inside: a range breaks the graph.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from nsyspipe.capture.backends import backend
from nsyspipe.capture.facts import facts
from nsyspipe.capture.window import meet, settle, start_capture, stop_capture

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["annotate", "captured_steps"]

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class annotate:  # noqa: N801 - reads as the statement and the decorator that it is
    """A named NVTX range, as a context manager or a decorator.

    One object may be entered many times, also within itself and on several threads; an exception
    ends the range and goes on. A decorated ``async`` function's range spans its awaits; within a
    ``with`` there must be no ``await``, for what other tasks do in between would end up in it.

    Parameters
    ----------
    name
        The phase: ``data``, ``forward``, ``backward`` and ``optimizer`` are known to ``analyze``.
    number
        Put behind the name: ``annotate("step", 7)`` is the range ``step 7``.

    Raises
    ------
    TypeError
        When it decorates a generator function, whose body runs in pieces.

    Examples
    --------
    >>> with annotate("forward"):
    ...     pass
    >>> @annotate("backward")
    ... def run_backward(loss): ...
    """

    __slots__ = ("text",)

    def __init__(self, name: str, number: int | None = None) -> None:
        if number is None:
            facts.saw(name)
            self.text = name
        else:
            self.text = f"{name} {number}"

    def __enter__(self) -> annotate:
        backend().push(self.text)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> Literal[False]:
        backend().pop()
        return False

    def __call__(self, function: F) -> F:
        """Return the function, in this range."""
        import inspect  # noqa: PLC0415 - only decorators need it, and it takes a while

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            message = (
                f"annotate({self.text!r}) cannot decorate the generator {function.__qualname__}: its "
                "body runs in pieces. Put 'with annotate(...)' inside it, around what lies between yields"
            )
            raise TypeError(message)
        wrapper = self._awaiting if inspect.iscoroutinefunction(function) else self._calling
        return wrapper(function)  # type: ignore[no-any-return]

    def _calling(self, function: Callable[..., Any]) -> Any:  # noqa: ANN401 - what functools.wraps gives
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function says
            with self:
                return function(*arguments, **named)

        return call

    def _awaiting(self, function: Callable[..., Any]) -> Any:  # noqa: ANN401 - what functools.wraps gives
        @functools.wraps(function)
        async def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function says
            # Not on the thread's stack: tasks of one thread end in any order.
            ranges = backend()
            handle = ranges.start(self.text)
            try:
                return await function(*arguments, **named)
            finally:
                ranges.end(handle)

        return call


class _Progress:
    """Steps of this process, over all its loops: a second epoch goes on counting."""

    n_begun = 0
    is_done = False


_progress = _Progress()
_NO_ITEM: Any = object()


def captured_steps(
    iterable: Iterable[T],
    *,
    warmup: int = 10,
    steps: int = 20,
    stop: bool = False,
    capture: bool = True,
) -> Iterator[T]:
    """Yield the items of a loader, each in a range ``step N``; capture the steps after the warm-up, once.

    N counts this process's steps from 0, warm-up included, over several loops too: wrap each
    epoch's loader. The item is fetched inside its step, in a range ``data``. The capture begins and
    ends as `start_capture` and `stop_capture` say, also when the loop breaks off, raises, or runs
    out of items; afterwards the steps are labelled only. All ranks of a job must use it alike.

    Parameters
    ----------
    iterable
        A data loader, or anything else to iterate.
    warmup, steps
        Steps before the capture, and steps in it.
    stop
        End after the captured steps, in later loops too.
    capture
        False: label and wait as ever, and leave the profiler alone, to time a run without it.

    Returns
    -------
    Iterator

    Raises
    ------
    ValueError
        When ``warmup`` is negative or ``steps`` is not positive.

    Examples
    --------
    >>> for batch in captured_steps([1, 2, 3], warmup=1, steps=1, stop=True):
    ...     print(batch)
    1
    2
    """
    if warmup < 0 or steps < 1:
        message = (
            f"captured_steps needs warmup >= 0 and steps >= 1, got warmup={warmup}, steps={steps}"
        )
        raise ValueError(message)
    return _numbered(iterable, range(warmup, warmup + steps), is_last=stop, has_capture=capture)


def _numbered(
    iterable: Iterable[T], window: range, *, is_last: bool, has_capture: bool
) -> Iterator[T]:
    if has_capture:
        facts.warmup, facts.n_asked = window.start, len(window)
    facts.announce()
    source, n_items, n_taken = iter(iterable), _length(iterable), 0
    measured = _Measured(len(window), has_capture=has_capture)
    try:
        while not (is_last and _progress.is_done):
            # Past its stated length a loader has nothing, as a rule: no step begins for that.
            item = next(source, _NO_ITEM) if n_taken == n_items else None
            if item is _NO_ITEM:
                return
            if _progress.n_begun >= window.start and not _progress.is_done:
                measured.begin()
            number, _progress.n_begun = _progress.n_begun, _progress.n_begun + 1
            with annotate("step", number):
                if n_taken != n_items:
                    with annotate("data"):
                        item = next(source, _NO_ITEM)
                    if item is _NO_ITEM:
                        return
                n_taken += 1
                facts.n_steps += 1
                yield item  # type: ignore[misc]
            measured.count()
    finally:
        measured.end(is_cut_off=True)
        facts.has_ended = is_last and _progress.is_done
        facts.write()


class _Measured:
    """The steps of one loop that are captured."""

    def __init__(self, n_steps: int, *, has_capture: bool) -> None:
        self._n_left = n_steps
        self._has_capture = has_capture
        self._is_open = False

    def begin(self) -> None:
        if not self._is_open:
            self._is_open = True
            start_capture() if self._has_capture else meet()

    def count(self) -> None:
        """Count a completed step; the last one ends the capture."""
        if self._is_open:
            facts.n_captured_steps += self._has_capture
            self._n_left -= 1
            if not self._n_left:
                self.end()

    def end(self, *, is_cut_off: bool = False) -> None:
        if self._is_open:
            self._is_open = False
            _progress.is_done = True
            ending = stop_capture if self._has_capture else settle
            ending(is_cut_off=is_cut_off)


def _length(iterable: Iterable[Any]) -> int | None:
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:  # none, as a generator or a loader of a stream
        return None
