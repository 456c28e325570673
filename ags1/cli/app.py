"""The program: its groups of commands, exit codes and signals, and a quiet end of a pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from .. import __version__
from . import console
from .exits import (
    EXIT_STATUS,
    EXPECTED,
    NO_THREADS,
    DeclinedError,
    Exit,
    Group,
    ReaderGoneError,
    Terminated,
    describe,
    is_thread_limit,
    one_line,
)

_MODULES = {
    **dict.fromkeys(("encrypt", "decrypt", "cat", "verify", "inspect"), ".files.commands"),
    **dict.fromkeys(("key", "keygen"), ".keys.commands"),
    "info": ".info",
    "spark": ".spark.commands",
    "table": ".table.commands",
}


class App(Group):
    """A click group whose failures are one line and one of our exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line and exit."""
        console.occupy_descriptors()
        with _termination_as_interrupt():
            code = self._run(prog_name or "ags1", args=args, complete_var=complete_var, **extra)
        raise SystemExit(int(code))

    def _run(self, prog_name: str, **more: Any) -> int:
        try:
            code = super().main(prog_name=prog_name, standalone_mode=False, **more)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else prog_name
            # click lists the choices of a missing argument on lines of their own.
            message = one_line(error.format_message().replace("\n\t", " "))
            console.write_error(f"{command}: {message} (see: {command} --help)\n")
            return Exit.USAGE
        except ReaderGoneError:  # of the version
            console.forget_output()
            return Exit.READER_GONE
        except DeclinedError:
            console.print_error("nothing was changed")
            return Exit.DECLINED
        except click.Abort as error:  # from a prompt; its context has the reason
            if isinstance(error.__context__, Terminated):
                return Exit.TERMINATED
            console.print_error("interrupted")
            return Exit.INTERRUPTED
        except OSError as error:
            # click's own printing of help failed.
            console.forget_output()
            console.print_error(describe(error, console.STDOUT).message)
            return Exit.IO
        return int(code)

    def invoke(self, ctx: click.Context) -> int:
        """Run a command; turn what it raises into an exit code. ``main`` would be too late: there,
        click handles EOFError (of which TruncatedError is a subclass), KeyboardInterrupt and EPIPE
        in its own way."""
        try:
            code = int(super().invoke(ctx) or Exit.OK)
            return Exit.IO if code == Exit.OK and console.LOST_MESSAGE in ctx.meta else code
        except (click.UsageError, click.Abort, click.exceptions.Exit):
            raise
        except ReaderGoneError:
            console.forget_output()
            return Exit.READER_GONE
        except Terminated:
            return Exit.TERMINATED
        except KeyboardInterrupt:
            console.print_error("interrupted")
            return Exit.INTERRUPTED
        except EXPECTED as error:
            failure = describe(error)
            if failure.file == console.STDOUT:
                console.forget_output()
            console.print_error(failure.message)
            return failure.exit_code
        except Exception as error:
            if is_thread_limit(error):
                console.print_error(NO_THREADS)
                return Exit.IO
            if os.environ.get("AGS1_DEBUG"):
                import traceback  # imported late: help has to be quick

                traceback.print_exc()
            what = f"internal error: {type(error).__name__}: {error}. This is a bug in ags1."
            console.print_error(f"{what} Please report it with the output of AGS1_DEBUG=1")
            return Exit.INTERNAL


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP clean up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    # A signal that our parent had ignored (nohup) stays ignored.
    before = {
        number: signal.signal(number, terminate)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        console.print_line(f"ags1 {__version__}")
        ctx.exit(Exit.OK)


@click.group(
    "ags1",
    cls=App,
    modules=_MODULES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog=EXIT_STATUS
    + """
\b
Environment:
  AGS1_KEYRING     the keyring to use instead of the default one
  AGS1_KMS_TYPE    the KMS (--kms)
  AGS1_KMS_KEY     the master key (--key)
  AGS1_KMS_X__Y_Z  the KMS's property x.y-z: AGS1_KMS_CLIENT__REGION is client.region
  AGS1_CATALOG     the catalog of a table (--catalog)
  AGS1_CONFIG      the configuration file to use instead of the default one
  AGS1_DEBUG       1 shows tracebacks, and the messages of Spark and PyIceberg
  XDG_CONFIG_HOME  the folder that ags1/config.ini and ags1/keyring.json are in,
                   instead of ~/.config

\b
Configuration (an option overrides the environment, and the environment overrides
the configuration; settings for another KMS than the chosen one are ignored):
  [kms]
  type = aws
  key = arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab
  client.region = eu-west-1

\b
Files:
  ~/.config/ags1/config.ini    which KMS, and its properties
  ~/.config/ags1/keyring.json  master keys: whoever has it can decrypt all files
  FILE.ags1                    an encrypted file
  FILE.ags1.keys               its sidecar: the file's key, wrapped. If it is lost,
                               the file cannot be decrypted. Keep and move the
                               two together

\b
Examples:
  ags1 keygen
  ags1 encrypt flights.avro
  ags1 inspect flights.avro.ags1
  ags1 verify flights.avro.ags1
  ags1 cat flights.avro.ags1 | head -c 100
  ags1 decrypt flights.avro.ags1 -o copy.avro
  ags1 encrypt flights.avro --kms aws --key $KEY
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def app() -> None:
    """Encrypt, verify and decrypt files in Apache Iceberg's AES-GCM stream format (AGS1).

    Every file gets a fresh key. A sidecar beside the file holds that key, wrapped by a master key.
    Master keys are in a keyring, which 'ags1 keygen' makes, or in another KMS (--kms).
    """


@app.command(short_help="Print the script for completion in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options and files of ags1.

    Examples:
      eval "$(ags1 completion bash)"                                 in ~/.bashrc
      eval "$(ags1 completion zsh)"                                  in ~/.zshrc
      ags1 completion fish > ~/.config/fish/completions/ags1.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    completer = script(app, {}, "ags1", "_AGS1_COMPLETE")
    # Not its source(): that runs the shell to see its version.
    console.print_line(completer.source_template % completer.source_vars())
