"""The frame of all commands: lazy loading, common options, errors as a line and an exit code, signals."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent, indent
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from kgray.cli import printing
from kgray.domain import times
from kgray.errors import BUG, FAULTY, STOPPED, InputError, KgrayError, NoStore

if TYPE_CHECKING:
    from kgray.memory import AsyncMemory
    from kgray.settings import Settings

_T = TypeVar("_T")
Command = Callable[..., int | None]
# In the order of `kgray --help`: module:attribute, and =name if the command's name differs. A command is
# imported when it is run.
_PLACES = """
    folder:init changing:add backfill:backfill folder:up folder:down folder:scale folder:status
    folder:failures changing:retry folder:groups reading:search reading:context asking:ask reading:entities
    reading:history reading:show grouping:communities grouping:schedule changing:merge changing:split
    reading:duplicates changing:distinct changing:undo changing:retract changing:remove reading:dump
    reading:export declaring:ontology backups:backup backups:restore importing:copy
    importing:import_from=import evaluating:evaluate=eval serving:serve serving:keys serving:mcp
    upgrading:upgrade folder:doctor
""".split()
COMMANDS: Mapping[str, str] = {re.split("[:=]", place)[-1]: place.partition("=")[0] for place in _PLACES}


@dataclass(slots=True)
class Call:
    """One run of a command: the values of the common options, and the memory that they select."""

    data: str | None
    config: str | None
    as_json: bool
    debug: bool
    code: int = 0  # the exit code if the reader of standard output closes the pipe

    @property
    def folder(self) -> Path:
        """The data folder."""
        from kgray.settings import data_folder

        return data_folder(self.data, os.environ)

    def settings(self) -> Settings:
        """Read the settings."""
        from kgray.settings import config_file, load

        return load(config_file(self.config, self.folder, os.environ))

    def emitted(self, document: object) -> bool:
        """Print the document and return True if --json is set; else the caller prints text for people."""
        if self.as_json:
            printing.emit_json(document)
        return self.as_json

    def listed(self, name: str, document: object, rows: Sequence[Sequence[object]], **look: Any) -> None:  # noqa: ANN401
        """Print {name: document} as JSON, or the rows as a table; look: options of `printing.table`."""
        if not self.emitted({name: document}):
            printing.table(rows, **look)

    @contextmanager
    def memory(self, *, create: bool = False) -> Iterator[AsyncMemory]:
        """Open the memory, and close it at the end of the block."""
        from kgray.memory.opening import open_async as open_memory

        with closing(open_memory(self.data, config=self.config, create=create)) as memory:
            memory.on_wait = printing.note
            yield memory

    @contextmanager
    def trial(self) -> Iterator[AsyncMemory]:
        """Open the memory for a dry run; without a store, open an empty memory and delete it at the end."""
        from tempfile import TemporaryDirectory

        from kgray.memory.opening import open_with
        from kgray.settings import StoreSettings

        with ExitStack() as stack:
            try:
                memory = stack.enter_context(self.memory())
            except NoStore:
                settings = replace(self.settings(), store=StoreSettings())
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="kgray-")))
                memory = stack.enter_context(closing(open_with(settings, folder, create=True)))
            yield memory

    @contextmanager
    def reader(self, group: str | None, *, says_pending: bool = True) -> Iterator[AsyncMemory]:
        """Open the memory to read a group; at the end, note a missing group and pending entries."""
        from kgray.memory.answers import no_group

        with self.memory() as memory:
            yield memory
            if group is None:
                return
            if nothing := no_group(memory.store, group):
                printing.note(nothing)
            elif says_pending and (waiting := memory.store.pending_count(group)):
                entries = "1 entry" if waiting == 1 else f"{waiting} entries"
                pending = f"of group {group} {'is' if waiting == 1 else 'are'} pending"
                printing.note(f"{entries} {pending}: not in this answer yet")


class Signals:
    """SIGTERM and SIGINT. Inside `gentle` the first one requests a stop; any other interrupts the command."""

    stopped = False
    _gentle = False

    @classmethod
    def is_stopping(cls) -> bool:
        """Tell whether a signal has requested that the work stop."""
        return cls.stopped

    @classmethod
    @contextmanager
    def gentle(cls) -> Iterator[None]:
        """Let work in flight end after a first signal; a second one interrupts it (the store rolls back)."""
        cls._gentle = True
        try:
            yield
        finally:
            cls._gentle = False

    @classmethod
    @contextmanager
    def caught(cls) -> Iterator[None]:
        """Handle the two signals inside the block, if this is the main thread."""
        cls.stopped = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(*_: object) -> None:
            if not cls._gentle or cls.stopped:
                raise KeyboardInterrupt
            cls.stopped = True

        handlers = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


class KgrayGroup(click.Group):
    """Imports a command when it is run; turns its errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands' names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        imported: click.Command = getattr(importlib.import_module(f"kgray.cli.{module}"), name)
        return imported

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any  # noqa: ANN401, ARG002
    ) -> NoReturn:  # fmt: skip
        """Run a command and end the process with its exit code: 0, 1, 2 or 75; 70 is a defect of kgray."""
        words = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        debug = "--debug" in words
        if sys.stdout is None:
            # Refuse before any work: a file opened later could get the closed descriptor.
            printing.note("standard output is closed: send it to /dev/null if you do not need it")
            sys.exit(FAULTY)
        code, fault = STOPPED, None
        with suppress(KeyboardInterrupt), Signals.caught():  # a second signal may arrive meanwhile
            code = self._run_to_code(words, extra, debug=debug)
            fault = _flush(sys.stdout)
        if fault is not None:
            code = _unwritable(fault, code, debug=debug)
        if sys.stderr is not None:
            _flush(sys.stderr)
        sys.exit(code)

    def _run_to_code(self, words: list[str], extra: dict[str, Any], *, debug: bool) -> int:
        try:
            if os.environ.get("NO_COLOR"):  # https://no-color.org
                extra["color"] = False
            # The program's name is `kgray`, also for `python -m kgray`.
            result = super().main(args=words, prog_name="kgray", standalone_mode=False, **extra)
            return result if isinstance(result, int) else 0
        except click.ClickException as error:
            line, context = error.format_message(), getattr(error, "ctx", None)
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                error.show()  # the help
            elif context is None:
                printing.note(line)
            else:
                printing.note(f"{line} ({context.command_path} --help)")
            return error.exit_code
        except KgrayError as error:
            return _say_error(error, str(error), error.exit_code, debug=debug)
        except (KeyboardInterrupt, click.Abort) as error:
            from kgray.system.outages import OUTAGES

            waited = f" ({why})" if (why := OUTAGES.why()) else ""
            line = f"stopped{waited}; what was accepted is safe, run it again"
            return _say_error(error, line, STOPPED, debug=debug)
        except MemoryError as error:
            return _say_error(error, "out of memory; what was accepted is safe", STOPPED, debug=debug)
        except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user
            frames = traceback.walk_tb(error.__traceback__)
            printed = any(frame.f_code is click.echo.__code__ for frame, _ in frames)
            if isinstance(error, OSError) and printed:  # raised while printing
                _discard(sys.stdout)
                return _unwritable(error, 0, debug=debug)
            line = f"fault in kgray ({type(error).__name__}: {error}); --debug shows where"
            return _say_error(error, line, BUG, debug=debug)


def _unwritable(error: OSError, code: int, *, debug: bool) -> int:
    line = f"standard output cannot be written: {error.strerror or error}"
    return _say_error(error, line, STOPPED if code == STOPPED else FAULTY, debug=debug)


def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine of the library to its end; return its result."""
    from kgray.memory.face import run_to_end

    return run_to_end(work)


def _say_error(error: BaseException, line: str, code: int, *, debug: bool) -> int:
    with suppress(OSError):  # standard error may be closed; the exit code still tells
        if debug:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    printing.note(line)
    return code


def _flush(stream: TextIO) -> OSError | None:
    """Flush a stream; return the error, if any. A closed pipe is no error."""
    try:
        stream.flush()
    except OSError as error:
        _discard(stream)
        return None if isinstance(error, BrokenPipeError) else error
    return None


def _discard(stream: TextIO) -> None:
    """Send buffered output to /dev/null, so that the interpreter does not complain at exit."""
    with suppress(OSError, ValueError):  # standard output may be a buffer in memory
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def command(
    short_help: str, *, name: str | None = None, parent: click.Group | None = None
) -> Callable[[Command], click.Command]:
    """Make a command of a function that takes a Call and the arguments and options of its decorators.

    parent: the click group. The command also gets --data, --config, --json and --debug. The last
    paragraph of the docstring is printed as an example.
    """

    def decorate(work: Command) -> click.Command:
        @wraps(work)
        def run(**options: Any) -> int | None:  # noqa: ANN401
            from kgray.cli.waiting import report_waits

            call = Call(*(options.pop(name) for name in ("data", "config", "as_json", "debug")))
            try:
                with report_waits(call.folder, printing.note):
                    return work(call, **options)
            except BrokenPipeError:  # the reader of standard output went away
                _discard(sys.stdout)
                return call.code

        text = _with_example(cleandoc(work.__doc__ or ""))
        made = (click if parent is None else parent).command(name, short_help=short_help, help=text)(run)
        made.params.extend(_COMMON_OPTIONS)
        return made

    return decorate


def _with_example(text: str) -> str:
    """Return a help text whose last paragraph is printed as an example."""
    about, _, example = text.rpartition("\n\n")
    return f"{about}\n\n\b\nExample:\n{indent(dedent(example), '  ')}"  # \b: click wraps no text after it


def group_of(name: str, short_help: str, text: str) -> click.Group:
    """Return a group of commands. text: its help; the last paragraph is printed as an example."""
    return click.Group(name=name, short_help=short_help, help=_with_example(text))


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator that adds several options and arguments."""
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


_COMMON_OPTIONS = (
    click.Option(["--data"], metavar="DIR", help="Data folder. Default: KGRAY_DATA, else ./kgray-data."),
    click.Option(["--config"], metavar="FILE", help="Settings. Default: KGRAY_CONFIG, else kgray.toml."),
    click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on standard output."),
    click.Option(["--debug"], is_flag=True, help="Show a traceback with an error."),
)


class Checked(click.ParamType[Any]):
    """A parameter that a function parses; its InputError or ValueError refuses the text."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        """name: the parameter's name in the help."""
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the parsed text."""
        try:
            return self._read(value)
        except UnicodeEncodeError:  # a shell may pass any bytes
            self.fail("not valid UTF-8", param, ctx)
        except (InputError, ValueError) as error:
            self.fail(str(error).encode(errors="backslashreplace").decode(), param, ctx)


# A late import: `kgray --help` does not need uuid.
GROUP = Checked("group", lambda name: importlib.import_module("kgray.domain.records").check_group(name))
MOMENT = Checked("time", lambda text: times.to_datetime(times.parse(text)[0]))
TEXT = Checked("text", lambda text: text.encode().decode())
group_option = click.option("--group", type=GROUP, required=True, metavar="G", help="The group (tenant).")
any_group_option = click.option("--group", type=GROUP, metavar="G", help="One group only.")
as_of_option = click.option("--as-of", type=MOMENT, metavar="T", help="Facts that held then. Default: now.")
known_at_option = click.option(
    "--known-at", type=MOMENT, metavar="T", help="The memory's knowledge at T. Default: now."
)
several = partial(click.option, multiple=True, type=TEXT)  # the option may be repeated
number = partial(click.option, type=click.IntRange(min=1), metavar="N")
