"""NVTX ranges for a training loop: `annotate` names a phase, `captured_steps` numbers the steps and captures some.

The capture's two ends are here too. Ranges cost well under a microsecond each while nothing
records. They go to ``torch.cuda.nvtx`` when torch was imported before the first range and has CUDA,
else to the ``nvtx`` package, else nowhere. Under ``torch.compile``, put them around compiled calls,
not inside: a range breaks the graph.
"""

import atexit
import contextlib
import functools
import importlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, TypeVar

from nsyspipe.capture.status import facts, loaded_torch

# What `nsys profile --capture-range=nvtx --nvtx-capture=...` waits for where there is no CUDA.
CAPTURE_RANGE = "nsyspipe.capture"
# How long the end of a capture waits for the device: when the loop has broken off; when nothing is
# known of the program.
_SETTLE_S = 5.0
_SETTLE_ALONE_S = 60.0
_POLL_S = 0.001
# How this process's capture stands: the handle is that of the capture's range without CUDA.
_window = SimpleNamespace(is_open=False, has_cuda=False, handle=None)
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")
# Steps of this process, over all its loops: a second epoch goes on counting, and with the capture.
_progress = SimpleNamespace(n_begun=0, n_captured=0, is_open=False, is_done=False)
_NO_ITEM: Any = object()


class Backend(NamedTuple):
    """Functions that make ranges: `push` and `pop` on the calling thread's stack, `start` and `end` by a handle."""

    push: Callable[[str], object]
    pop: Callable[[], object]
    start: Callable[[str], Any]
    end: Callable[[Any], object]


@functools.cache
def backend() -> Backend:
    """Return where ranges go. It is chosen at the first call, for good: a range must end where it began."""
    nvtx = getattr(getattr(loaded_torch(), "cuda", None), "nvtx", None)
    if nvtx is not None:
        with contextlib.suppress(RuntimeError):
            nvtx.mark("nsyspipe")  # a build without CUDA has the functions, and each of them raises
            return Backend(nvtx.range_push, nvtx.range_pop, nvtx.range_start, nvtx.range_end)
    # Ranges of nvtx 0.2.12 and later do not reach nsys 2024.2: torch's functions come first.
    with contextlib.suppress(AttributeError, ImportError, OSError):  # missing, or of another kind
        nvtx = importlib.import_module("nvtx")
        return Backend(nvtx.push_range, nvtx.pop_range, nvtx.start_range, nvtx.end_range)
    return Backend(*[lambda *_: None] * 4)


def start_capture(*, is_alone: bool = False) -> None:
    """Start the capture. Every rank must call it at the same place. A second call does nothing.

    `start_capture` waits for the GPU before and after the start. In a distributed job, it also
    waits for all ranks. Ranks take up to 100 ms to start. Without the second wait, the first
    captured step would contain this time, as if the step were waiting for gradients.

    If CUDA is available, the capture starts by ``cudaProfilerStart`` (``nsys profile
    --capture-range=cudaProfilerApi``). Otherwise it starts by an NVTX range named
    ``nsyspipe.capture``. If the profiler cannot be started, you get a warning, not an error.

    Parameters
    ----------
    is_alone
        Do not wait for other ranks, and wait for the GPU only for a limited time. The launchers use
        it for programs that they do not know.
    """
    if _window.is_open:
        return
    facts.announce()
    wait = functools.partial(settle, is_alone=True) if is_alone else meet
    wait()
    _window.is_open, torch = True, loaded_torch()
    _window.has_cuda = torch is not None and torch.cuda.is_available()
    atexit.register(stop_capture, is_cut_off=True)
    if _window.has_cuda:
        _tell_profiler("start")
    else:
        _window.handle = backend().start(CAPTURE_RANGE)
    wait()


def stop_capture(*, is_cut_off: bool = False, is_alone: bool = False) -> None:
    """Stop the capture after the GPU has finished what was launched. Without a capture it does nothing.

    Parameters
    ----------
    is_cut_off
        The loop ended early. Wait only a few seconds, because other ranks may be gone.
    is_alone
        Wait for the GPU only for a limited time, as in `start_capture`.
    """
    if not _window.is_open:
        return
    _window.is_open = False
    atexit.unregister(stop_capture)
    settle(is_cut_off=is_cut_off, is_alone=is_alone)
    if _window.has_cuda:
        _tell_profiler("stop")
    else:
        backend().end(_window.handle)
    facts.write()


def meet() -> None:
    """Wait for the device and for all ranks."""
    settle()
    torch = loaded_torch()
    # Builds without torch.distributed have the module, and nothing in it.
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        # NCCL may guess another GPU else.
        is_nccl = "nccl" in str(torch.distributed.get_backend())
        torch.distributed.barrier(
            **({"device_ids": [torch.cuda.current_device()]} if is_nccl else {})
        )
        settle()


def settle(*, is_cut_off: bool = False, is_alone: bool = False) -> None:
    """Wait until the device has done what was launched; after a break-off, or alone, for a limited time."""
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_initialized():
        return
    if not (is_cut_off or is_alone):
        torch.cuda.synchronize()
        return
    deadline = time.monotonic() + (_SETTLE_S if is_cut_off else _SETTLE_ALONE_S)
    try:
        event = torch.cuda.current_stream().record_event()
        while not event.query() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except RuntimeError:
        return  # the device failed: that error is on its way to the user already


def _tell_profiler(action: str) -> None:
    torch = loaded_torch()
    try:
        getattr(torch and torch.cuda.profiler, action)()
    except (AttributeError, RuntimeError) as error:
        message = f"cudaProfiler{action.title()} failed, the training goes on: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


class annotate:  # noqa: N801 - reads as the statement and the decorator that it is
    """A named NVTX range, as a context manager or a decorator.

    Put it around what ``torch.compile`` makes, never inside. You can enter one object many times,
    also inside itself and on several threads. An exception ends the range and is passed on.

    The range of a decorated ``async`` function includes its awaits. Do not use ``await`` inside a
    ``with`` block, because the range would include what other tasks do in the meantime.

    Parameters
    ----------
    name
        Name of the phase. ``analyze`` recognizes ``data``, ``forward``, ``backward`` and
        ``optimizer``.
    number
        Number after the name: ``annotate("step", 7)`` is the range ``step 7``.

    Raises
    ------
    TypeError
        If it decorates a generator function, because the body of a generator runs in pieces.

    Examples
    --------
    >>> with annotate("forward"):
    ...     pass
    >>> @annotate("backward")
    ... def run_backward(loss): ...
    """

    __slots__ = ("text",)

    def __init__(self, name: str, number: int | None = None) -> None:
        self.text = name if number is None else f"{name} {number}"
        if number is None:
            facts.saw(name)

    def __enter__(self) -> Self:
        backend().push(self.text)
        return self

    def __exit__(self, *_error: object) -> None:
        backend().pop()

    def __call__(self, function: F) -> F:
        """Return the function, in this range."""
        import inspect  # noqa: PLC0415 - only decorators need it, and it takes a while

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            fix = "Put 'with annotate(...)' inside it, around what lies between yields"
            what = f"annotate({self.text!r}) cannot decorate the generator {function.__qualname__}"
            raise TypeError(f"{what}: its body runs in pieces. {fix}")

        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function says
            with self:
                return function(*arguments, **named)

        async def call_awaiting(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function says
            ranges = backend()  # not on the thread's stack: tasks of one thread end in any order
            handle = ranges.start(self.text)
            try:
                return await function(*arguments, **named)
            finally:
                ranges.end(handle)

        wrapper = call_awaiting if inspect.iscoroutinefunction(function) else call
        return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def captured_steps(
    iterable: Iterable[T],
    *,
    warmup: int = 10,
    steps: int = 20,
    stop: bool = False,
    capture: bool = True,
) -> Iterator[T]:
    """Yield the items of a loader, each in a range ``step N``, and capture the steps after the warm-up once.

    N counts the steps of this process from 0, warm-up included, also over several loops: wrap the
    loader of each epoch. Each item is fetched inside its step, in a range ``data``. The capture
    starts and stops as with `start_capture` and `stop_capture`, even if the loop ends early or
    raises. After the capture, the steps are only labeled.

    If an epoch ends during the capture, the capture continues in the next epoch, and includes the
    work between the two epochs. If there is no next epoch, the capture ends with the program. All
    ranks of a job must use it in the same way.

    Parameters
    ----------
    iterable
        A data loader, or anything else that you can iterate over.
    warmup, steps
        Number of steps before the capture, and number of captured steps.
    stop
        End the loop after the captured steps, and also end later loops.
    capture
        Whether the profiler starts. If you pass False, nsyspipe still labels the steps and waits in
        the same way. Use it to time a run without the profiler.

    Returns
    -------
    Iterator
        The items of `iterable`.

    Raises
    ------
    ValueError
        If `warmup` is negative or `steps` is not positive.

    Examples
    --------
    >>> for batch in captured_steps([1, 2, 3], warmup=1, steps=1, stop=True):
    ...     print(batch)
    1
    2
    """
    if warmup < 0 or steps < 1:
        raise ValueError(
            f"captured_steps needs warmup >= 0 and steps >= 1, got warmup={warmup}, steps={steps}"
        )
    return _numbered(iterable, range(warmup, warmup + steps), is_last=stop, has_capture=capture)


def _numbered(
    iterable: Iterable[T], window: range, *, is_last: bool, has_capture: bool
) -> Iterator[T]:
    if has_capture:
        facts.warmup, facts.steps_asked = window.start, len(window)
    facts.announce()
    source = iter(iterable)
    n_items = None
    n_taken = 0
    with contextlib.suppress(TypeError):  # a generator, or a loader of a stream
        n_items = len(iterable)  # type: ignore[arg-type]
    begin, end = (start_capture, stop_capture) if has_capture else (meet, settle)
    item = None
    try:
        while not (is_last and _progress.is_done):
            # Past its stated length a loader has nothing, as a rule: no step begins for that.
            item = next(source, _NO_ITEM) if n_taken == n_items else None
            if item is _NO_ITEM:
                return
            if (
                _progress.n_begun >= window.start
                and not _progress.is_done
                and not _progress.is_open
            ):
                _progress.is_open = True
                begin()
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
            facts.n_captured_steps += has_capture and _progress.is_open
            _progress.n_captured += _progress.is_open
            if _progress.is_open and _progress.n_captured >= len(window):
                _progress.is_open, _progress.is_done = False, True
                end()
    finally:
        if item is _NO_ITEM:
            facts.epoch_steps = n_taken
        elif _progress.is_open:
            _progress.is_open, _progress.is_done = False, True
            end(is_cut_off=True)
        facts.loop_ended = is_last and _progress.is_done
        facts.write()


class MarkedSteps:
    """Steps of a loop that is somebody else's, by calls where they begin and end: ranges, and the capture of some.

    Parameters are those of `captured_steps` and `start_capture`, and how many have begun that
    nobody saw.
    """

    def __init__(
        self, warmup: int, steps: int, *, n_begun: int = 0, is_alone: bool = False
    ) -> None:
        if warmup < n_begun or steps < 1:
            raise ValueError(
                f"needs warmup >= {n_begun} and steps >= 1, got warmup={warmup}, steps={steps}"
            )
        self._window = range(warmup, warmup + steps)
        self._n_begun = n_begun
        self._is_alone = is_alone
        self._phase: Any = None
        self.is_in_step = self.is_over = False

    def begin(self) -> None:
        """Begin a step, and the capture with the first of those to capture."""
        facts.warmup, facts.steps_asked = self._window.start, len(self._window)
        facts.announce()
        if self._n_begun == self._window.start:
            start_capture(is_alone=self._is_alone)
        self._step = backend().start(f"step {self._n_begun}")
        self.is_in_step = True
        self._n_begun += 1

    def phase(self, name: str | None) -> None:
        """Begin a phase of the step, which ends the one before; None ends that only."""
        if self._phase is not None:
            backend().end(self._phase)
        self._phase = backend().start(annotate(name).text) if name and self.is_in_step else None

    def end(self) -> None:
        """End the step, and the capture with the last of those to capture; without a step one that nobody saw begin."""
        self.phase(None)
        facts.n_steps = self._n_begun
        if not self.is_in_step:
            return
        backend().end(self._step)
        self.is_in_step = False
        facts.n_captured_steps += self._n_begun - 1 in self._window
        if self._n_begun == self._window.stop:
            self.is_over = True
            stop_capture(is_alone=self._is_alone)
