"""NVTX ranges for a training loop, and the start and end of its capture.

`annotate` names a phase. `captured_steps` numbers the steps, and captures some.

A range takes well under a microsecond while nothing records. Ranges go to ``torch.cuda.nvtx`` if
torch was imported before the first range and has CUDA, else to the ``nvtx`` package, else nowhere.
Under ``torch.compile``, put them around compiled calls, not inside, because a range breaks the
graph.
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

# `nsys profile --capture-range=nvtx --nvtx-capture=...` waits for this range if there is no CUDA.
CAPTURE_RANGE = "nsyspipe.capture"
# How long the end of a capture waits for the device if the loop was cut off, or if nothing is known
# of the program.
_MAX_WAIT_AFTER_CUT_OFF_S = 5.0
_MAX_WAIT_ALONE_S = 60.0
_POLL_S = 0.001
# The capture of this process. The handle is that of the capture's range without CUDA.
_window = SimpleNamespace(is_open=False, has_cuda=False, handle=None)
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")
# The steps of this process in all its loops: a second epoch continues the numbers and the capture.
# `n_in_window` counts the steps to capture that have ended, also if nothing is captured.
_progress = SimpleNamespace(n_begun=0, n_in_window=0, is_open=False, is_done=False)
_NO_ITEM: Any = object()


class Backend(NamedTuple):
    """Functions that make ranges.

    `push` and `pop` use the stack of the calling thread. `start` and `end` use a handle.
    """

    push: Callable[[str], object]
    pop: Callable[[], object]
    start: Callable[[str], Any]
    end: Callable[[Any], object]


@functools.cache
def backend() -> Backend:
    """Return where ranges go.

    The first call chooses it for good, because a range must end where it began.
    """
    cuda = getattr(loaded_torch(), "cuda", None)
    nvtx = getattr(cuda, "nvtx", None)
    if nvtx is not None:
        with contextlib.suppress(RuntimeError):
            # A build without CUDA has the functions, but they raise. So try one, and go on to the
            # package nvtx if it raises.
            nvtx.mark("nsyspipe")
            return Backend(nvtx.range_push, nvtx.range_pop, nvtx.range_start, nvtx.range_end)
    # The package comes second, because ranges of nvtx 0.2.12 and later do not reach nsys 2024.2.
    # It may be missing, or be another package of this name.
    with contextlib.suppress(AttributeError, ImportError, OSError):
        nvtx = importlib.import_module("nvtx")
        return Backend(nvtx.push_range, nvtx.pop_range, nvtx.start_range, nvtx.end_range)
    return Backend(_do_nothing, _do_nothing, _do_nothing, _do_nothing)


def _do_nothing(*_arguments: object) -> None:
    pass


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
    _window.is_open = True
    torch = loaded_torch()
    _window.has_cuda = torch is not None and torch.cuda.is_available()
    # If the program ends before `stop_capture`, it was cut off.
    atexit.register(stop_capture, is_cut_off=True)
    if _window.has_cuda:
        _call_profiler("start")
    else:
        _window.handle = backend().start(CAPTURE_RANGE)
    wait()


def stop_capture(*, is_cut_off: bool = False, is_alone: bool = False) -> None:
    """Stop the capture after the GPU has finished its work. It does nothing without a capture.

    Parameters
    ----------
    is_cut_off
        The loop ended early. Wait only a few seconds, because other ranks may be gone.
    is_alone
        Wait for the GPU only for a limited time, as in `start_capture`.
    """
    if not _window.is_open:
        return
    # The exit of the program must not stop it a second time.
    _window.is_open = False
    atexit.unregister(stop_capture)
    settle(is_cut_off=is_cut_off, is_alone=is_alone)
    if _window.has_cuda:
        _call_profiler("stop")
    else:
        backend().end(_window.handle)
    facts.ask_memory()
    facts.write()


def meet() -> None:
    """Wait for the device and for all ranks."""
    settle()
    torch = loaded_torch()
    # Builds without torch.distributed have the module, but it is empty.
    if torch is None or not torch.distributed.is_available():
        return
    if not torch.distributed.is_initialized():
        return
    options = {}
    if "nccl" in str(torch.distributed.get_backend()):
        # Otherwise NCCL may guess another GPU.
        options["device_ids"] = [torch.cuda.current_device()]
    torch.distributed.barrier(**options)
    settle()


def settle(*, is_cut_off: bool = False, is_alone: bool = False) -> None:
    """Wait until the device has finished its work.

    The wait is limited in two cases: the loop ended early (`is_cut_off`), or nothing is known of
    the program (`is_alone`). Then the device may never finish.
    """
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_initialized():
        return
    if not (is_cut_off or is_alone):
        torch.cuda.synchronize()
        return
    max_wait_s = _MAX_WAIT_AFTER_CUT_OFF_S if is_cut_off else _MAX_WAIT_ALONE_S
    deadline_s = time.monotonic() + max_wait_s
    # A device that failed raises. The program itself then gets that error, so it is dropped here.
    with contextlib.suppress(RuntimeError):
        event = torch.cuda.current_stream().record_event()
        while not event.query() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


def _call_profiler(action: str) -> None:
    """Call ``start`` or ``stop`` of torch's profiler. Warn if this is not possible."""
    torch = loaded_torch()
    try:
        # Without torch, `getattr` of None raises an AttributeError.
        profiler = None if torch is None else torch.cuda.profiler
        getattr(profiler, action)()
    except (AttributeError, RuntimeError) as error:
        message = f"cudaProfiler{action.title()} failed, the training goes on: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


class annotate:  # noqa: N801 - used as a statement and a decorator
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
        import inspect  # noqa: PLC0415 - slow, and only decorators need it

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            problem = (
                f"annotate({self.text!r}) cannot decorate the generator {function.__qualname__}: "
                "its body runs in pieces"
            )
            fix = "Put 'with annotate(...)' inside it, around what lies between yields"
            raise TypeError(f"{problem}. {fix}")

        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            with self:
                return function(*arguments, **named)

        async def call_awaiting(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            # Tasks of one thread end in any order, so their ranges cannot be on its stack. A
            # handle says which range ends.
            ranges = backend()
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
    tokens_per_step: int | None = None,
    samples_per_step: int | None = None,
    flops_per_step: int | None = None,
) -> Iterator[T]:
    """Yield the items of a loader in ranges ``step N``, and capture those after the warm-up once.

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
    tokens_per_step, samples_per_step
        Tokens and samples of one step of the whole job, over all ranks and micro-batches. The
        launcher writes them into the sidecar.
    flops_per_step
        FLOPs of one step on this rank, over all micro-batches, as
        ``torch.utils.flop_counter.FlopCounterMode`` counts them.

    Returns
    -------
    Iterator
        The items of `iterable`.

    Raises
    ------
    ValueError
        If `warmup` is negative or `steps` is not positive. Also if tokens, samples or FLOPs are not
        a positive integer.

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
    facts.count_work(tokens=tokens_per_step, samples=samples_per_step, flops=flops_per_step)
    return _numbered(iterable, range(warmup, warmup + steps), is_last=stop, has_capture=capture)


def _numbered(
    iterable: Iterable[T], window: range, *, is_last: bool, has_capture: bool
) -> Iterator[T]:
    """Yield the items of a loader in ranges of steps, and capture the steps of a window once.

    `window` has the numbers of the steps to capture. If `is_last`, the loop ends with the capture.
    Without `has_capture`, nothing is captured, but the loop waits at the same places.
    """
    if has_capture:
        facts.warmup = window.start
        facts.steps_asked = len(window)
    facts.announce()
    source = iter(iterable)
    length = _length(iterable)
    n_taken = 0
    capture = _LoopCapture(window, has_profiler=has_capture)
    item = None
    try:
        while not (is_last and _progress.is_done):
            # Let go of the last item while the next one is fetched.
            item = None
            # Mostly, a step begins before its item is fetched. But after as many items as its
            # length, a loader is probably at its end. Then the item is fetched first, because
            # there must be no step without an item.
            is_fetched_before_step = n_taken == length
            if is_fetched_before_step:
                item = next(source, _NO_ITEM)
                if item is _NO_ITEM:
                    return
            capture.begin_if_due()
            number = _progress.n_begun
            _progress.n_begun += 1
            with annotate("step", number):
                if not is_fetched_before_step:
                    with annotate("data"):
                        item = next(source, _NO_ITEM)
                    if item is _NO_ITEM:
                        return
                n_taken += 1
                facts.n_steps += 1
                yield item  # type: ignore[misc]
            capture.count_step()
    finally:
        # Otherwise the loop has ended early, or an exception has ended it.
        has_run_out = item is _NO_ITEM
        if has_run_out:
            # An open capture goes on in the next epoch.
            facts.epoch_steps = n_taken
        elif _progress.is_open:
            capture.end(is_cut_off=True)
        facts.loop_ended = is_last and _progress.is_done
        facts.write()


def _length(iterable: Iterable[T]) -> int | None:
    """Return the length of a loader; None if it has none, such as a generator or a stream."""
    with contextlib.suppress(TypeError):
        return len(iterable)  # type: ignore[arg-type]
    return None


class _LoopCapture:
    """The capture of a window of steps, or the same waits without the profiler."""

    def __init__(self, window: range, *, has_profiler: bool) -> None:
        self._window = window
        self._has_profiler = has_profiler

    def begin_if_due(self) -> None:
        """Begin the capture if the warm-up is over, and if there was no capture yet."""
        has_begun = _progress.is_open or _progress.is_done
        if has_begun or _progress.n_begun < self._window.start:
            return
        _progress.is_open = True
        if self._has_profiler:
            start_capture()
        else:
            # `start_capture` would wait for all ranks too.
            meet()

    def count_step(self) -> None:
        """Count a step that has ended, and end the capture after the last one."""
        if not _progress.is_open:
            return
        _progress.n_in_window += 1
        if self._has_profiler:
            facts.n_captured_steps += 1
        if _progress.n_in_window >= len(self._window):
            self.end()

    def end(self, *, is_cut_off: bool = False) -> None:
        """End the capture for good. A later loop begins no other one."""
        _progress.is_open = False
        _progress.is_done = True
        if self._has_profiler:
            stop_capture(is_cut_off=is_cut_off)
        else:
            settle(is_cut_off=is_cut_off)


class MarkedSteps:
    """The steps of a loop that somebody else runs, and the capture of some of them.

    Whoever watches the loop calls `begin` and `end` for each step. `warmup` and `steps` are those
    of `captured_steps`, and `is_alone` is that of `start_capture`. `n_begun` is the number of steps
    that began before anybody watched, and so the number of the first step that `begin` begins.
    """

    def __init__(
        self, warmup: int, steps: int, *, n_begun: int = 0, is_alone: bool = False
    ) -> None:
        if warmup < n_begun or steps < 1:
            raise ValueError(
                f"needs warmup >= {n_begun} and steps >= 1, got warmup={warmup}, steps={steps}"
            )
        # The numbers of the steps to capture.
        self._window = range(warmup, warmup + steps)
        self._n_begun = n_begun
        self._is_alone = is_alone
        # The handle of the range of the current phase.
        self._phase: Any = None
        self.is_in_step = False
        self.is_over = False

    @property
    def next_step(self) -> int:
        """The number of the step that begins next."""
        return self._n_begun

    def begin(self) -> None:
        """Begin a step. The capture begins with the first step to capture."""
        # A loop asks for steps only when it begins one. A loop without steps asks for none.
        facts.warmup = self._window.start
        facts.steps_asked = len(self._window)
        facts.announce()
        if self._n_begun == self._window.start:
            start_capture(is_alone=self._is_alone)
        self._step = backend().start(f"step {self._n_begun}")
        self.is_in_step = True
        self._n_begun += 1

    def phase(self, name: str | None) -> None:
        """End the current phase, and begin another one if it has a name."""
        if self._phase is not None:
            backend().end(self._phase)
            self._phase = None
        if name and self.is_in_step:
            # `annotate` also remembers the name of the phase for the sidecar.
            phase_range = annotate(name)
            self._phase = backend().start(phase_range.text)

    def end(self) -> None:
        """End the step. The capture ends with the last step to capture.

        A step for which `begin` was not called has no range. Its end is only counted.
        """
        self.phase(None)
        facts.n_steps = self._n_begun
        if not self.is_in_step:
            return
        backend().end(self._step)
        self.is_in_step = False
        # The steps are counted from 0.
        number = self._n_begun - 1
        if number in self._window:
            facts.n_captured_steps += 1
        is_last_captured = number == self._window[-1]
        if is_last_captured:
            self.is_over = True
            stop_capture(is_alone=self._is_alone)
