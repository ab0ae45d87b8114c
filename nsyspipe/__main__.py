"""``python -m nsyspipe`` and the console script: settings of the process before any import."""

import math
import os
import sys
from types import FrameType

from nsyspipe.nsys.programs import import_path, set_up_process

INTERRUPTED = 130
_SIGNALLED = 128
_AT_ONCE_S = 1.0  # some send a signal twice, to a program and to its group (timeout does)


def main() -> None:
    """Run the command line, and exit.

    If a signal asks the process to end, the process ends as after Ctrl-C. No file is half-written,
    and no worker process is left.
    """
    sys.path[:] = import_path()
    set_up_process()
    # Typer reads options with pydantic, which else looks through all that is installed for plugins,
    # and runs them.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        _catch_signals()
        from nsyspipe.cli.app import run  # noqa: PLC0415 - sys.path is set above

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: no file is half-written\n")
        _leave(INTERRUPTED)
    except SystemExit as end:
        _leave(end.code)


def _leave(code: object) -> None:
    """Exit with a code.

    If a thread still waits for a Dask scheduler that does not answer, end the process without the
    usual work at the end, because Dask would wait there too.
    """
    if _is_scheduler_silent():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)  # type: ignore[arg-type]


def _is_scheduler_silent() -> bool:
    """Tell whether a thread waits for a Dask scheduler that does not answer."""
    # Without these modules, no cluster was used.
    threading = sys.modules.get("threading")
    cluster = sys.modules.get("nsyspipe.run.cluster")
    if threading is None or cluster is None:
        return False
    return any(thread.name == cluster.SILENT_THREAD for thread in threading.enumerate())


def _catch_signals() -> None:
    """Make the program end cleanly at a signal: of Ctrl-C, a scheduler or a closed terminal.

    A signal that is ignored already (nohup), or has a handler already, stays as it is.
    """
    import signal  # noqa: PLC0415 - sys.path is set by `main`
    import time  # noqa: PLC0415 - sys.path is set by `main`

    # When the last signal came, by the monotonic clock. Before the first one, long ago.
    last_signal_s = -math.inf

    def silence() -> None:
        # Libraries may warn of objects that are half made when a signal comes. Nobody needs that.
        sys.unraisablehook = lambda _: None
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.disable()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        silence()
        raise KeyboardInterrupt

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal last_signal_s
        now_s = time.monotonic()
        is_sent_twice = now_s - last_signal_s < _AT_ONCE_S
        last_signal_s = now_s
        # After the first of two signals, the program ends already. A second exit would interrupt
        # its work at the end.
        if not is_sent_twice:
            silence()
            sys.exit(_SIGNALLED + number)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


if __name__ == "__main__":
    main()
