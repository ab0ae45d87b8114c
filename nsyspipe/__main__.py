"""``python -m nsyspipe`` and the console script: settings of the process before any import."""

import os
import sys
from types import FrameType

from nsyspipe.nsys.programs import import_path, set_up_process

INTERRUPTED = 130
_SIGNALLED = 128
_AT_ONCE_S = 1.0  # some send a signal twice, to a program and to its group (timeout does)


def main() -> None:
    """Run the command line.

    If a signal asks the process to end, it ends as after Ctrl-C: no file is half-written, and no
    process is left.
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
    """Exit. Exit at once if a thread waits for a silent scheduler, because Dask would wait too."""
    threading = sys.modules.get("threading")
    cluster = sys.modules.get("nsyspipe.run.cluster")
    threads = [] if threading is None or cluster is None else threading.enumerate()
    if cluster is not None and any(thread.name == cluster.SILENT_THREAD for thread in threads):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)  # type: ignore[arg-type]


def _catch_signals() -> None:
    """Exit on signals of a scheduler or a closed terminal, unless they are ignored (nohup)."""
    import signal  # noqa: PLC0415 - as above
    import time  # noqa: PLC0415

    asked_at = [-_AT_ONCE_S]

    def silence() -> None:
        # What a library says of objects that are half made when it is interrupted is of no use to
        # anybody.
        sys.unraisablehook = lambda _: None
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.disable()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        silence()
        raise KeyboardInterrupt

    def end(number: int, _frame: FrameType | None) -> None:
        is_again = time.monotonic() - asked_at[0] < _AT_ONCE_S
        asked_at[0] = time.monotonic()
        if not is_again:
            silence()
            sys.exit(_SIGNALLED + number)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


if __name__ == "__main__":
    main()
