"""What the commands on Spark share: the session, its master, and the KMS that is sent to executors.
PySpark is imported when a job begins."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from ... import errors
from ..console import Output, counted, print_error
from ..options import flag
from ..report import Report

if TYPE_CHECKING:
    from ...files.keys import KmsConfig
    from ...kms.settings import Settings
    from ...spark.jobs import Summary

_NO_PYSPARK = "PySpark is not installed: pip install 'ags1[spark]'"
# Any scheme: a cluster manager may be a plug-in.
_MASTER = re.compile(r"local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[.+\]|yarn|[a-z0-9]+://.+")

_REMOTE = "sc://"
# PySpark prints parts of a URL that it does not understand, and a token may be one.
_CONNECT_URL = re.compile(
    r"sc://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?(/?|/(;[\w-]+=[^=;/?#\s]+)+)"
)
_NO_CONNECT_URL = (
    "the URL is not one of Spark Connect: give one such as sc://host:15002 or "
    "'sc://host:15002/;use_ssl=true;user_id=me'. Write = ; / ? # in a value as %3D %3B %2F %3F %23"
)
_MAX_PORT = 65535
# PySpark's client tries for more than ten minutes to reach a server. This is about one: the pauses
# begin with 50 ms, each is four times as long as the one before, and these are ms.
_RETRIES = {"max_retries": 8, "max_backoff": 15_000}
_NO_CONNECT = "the client of Spark Connect is not installed: pip install 'ags1[connect]'"
_master = click.option(
    "--master",
    metavar="URL",
    help="Spark's master, such as local[4] or spark://host:7077.  [default: that of spark-submit "
    "or of Spark's configuration, or local[*]]",
)
_remote = click.option(
    "--remote",
    metavar="URL",
    help="A server of Spark Connect instead of a master, such as sc://host:15002. Put a token into "
    "the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN: in the URL, other users can see it "
    "in the list of processes.",
)


def master(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --master and --remote to a command, which takes either one as its argument ``master``."""

    @functools.wraps(command)
    def with_one(*arguments: Any, master: str | None, remote: str | None, **given: Any) -> Any:
        if master is not None and remote is not None:
            raise click.UsageError("--master and --remote cannot be used together")
        if remote is not None and not remote.startswith(_REMOTE):
            raise click.UsageError(_NO_CONNECT_URL)
        return command(*arguments, master=master if remote is None else remote, **given)

    return _master(_remote(with_one))


def kms_config(settings: Settings) -> KmsConfig:
    """Return the KMS of the settings in the form that is sent to executors. Raises
    KmsConfigurationError if a setting is a secret."""
    from ...files.keys import KmsConfig
    from ...kms import default_keyring_path
    from ...kms.settings import KEY_FILE, KEYRING, PASSPHRASE_FILE

    properties = dict(settings.properties)
    if settings.is_local:
        properties.setdefault(KEYRING, default_keyring_path())
    # An executor has another working directory, and may have another home.
    for name in (KEYRING, PASSPHRASE_FILE, KEY_FILE):
        if name in properties:
            properties[name] = os.path.abspath(properties[name])
    return KmsConfig(properties)


def build_report(summary: Summary, out: Output) -> Report:
    """Return a report of the files for which a command has failed. With ``--json`` they are printed
    only as JSON."""
    report = Report(out, once=True)
    for failure in summary.failures:
        kind: Any = getattr(errors, failure.kind, None)
        is_ours = isinstance(kind, type) and issubclass(kind, errors.Ags1Error)
        error: Exception = kind(failure.message) if is_ours else OSError(0, failure.message)
        report.failed(error, failure.path, failure.kind)
    if (more := summary.failed - len(summary.failures)) and not out.as_json:
        print_error(f"{counted(more, 'more file')} failed")
    return report


verbose = flag("-v", "--verbose", help="Show what Spark logs, on standard error.")


def check_session(master: str | None) -> None:
    """Raise click.UsageError for what would make ``session`` fail, without starting Spark: no
    PySpark, no client of Spark Connect, or a master that Spark would not understand."""
    if importlib.util.find_spec("pyspark") is None:
        raise click.UsageError(_NO_PYSPARK)
    master = _chosen(master)
    if master is not None and master.startswith(_REMOTE):
        if importlib.util.find_spec("grpc") is None:
            raise click.UsageError(_NO_CONNECT)
        url = _CONNECT_URL.fullmatch(master)
        if url is None or int(url["port"] or 0) > _MAX_PORT:
            raise click.UsageError(_NO_CONNECT_URL)
        return
    if master is not None and _MASTER.fullmatch(master) is None:
        message = f"{master.partition(';')[0]!r} is no master of Spark: give one such as local[4], "
        raise click.UsageError(message + "spark://host:7077, yarn or k8s://https://host:443")


@contextlib.contextmanager
def when_needed(master: str | None, *, verbose: bool = False) -> Iterator[Callable[[], Any]]:
    """Yield a function that returns a session, as ``session`` does; Spark starts when it is called
    first. Raises click.UsageError for what can be checked before."""
    check_session(master)
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(session(master, verbose=verbose)))


@contextlib.contextmanager
def session(master: str | None, *, verbose: bool = False) -> Iterator[Any]:
    """Return the session of Spark that is there, or a new one, which ends with the block.

    A server of Spark Connect that ``master`` names is never replaced by a session that is there.
    Nothing that Spark logs is shown, unless ``verbose`` or AGS1_DEBUG says so. Raises
    click.UsageError without PySpark, OSError when Spark does not start."""
    check_session(master)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None and not (master or "").startswith(_REMOTE):
        yield running
        return
    master = _chosen(master)
    if master is not None and master.startswith(_REMOTE):
        with _remote_session(master) as made:
            yield made
        return
    if master is None or master.startswith("local"):
        # On one machine, workers use this Python. spark-submit may have set the variable already.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ags1").config("spark.ui.showConsoleProgress", "false")
    verbose = verbose or bool(os.environ.get("AGS1_DEBUG"))
    if not verbose:
        builder = builder.config("spark.log.level", "FATAL")  # ags1 reports failures itself
    if master is not None:
        builder = builder.master(master)
    try:
        with contextlib.nullcontext() if verbose else _without_log():
            made = _undisturbed(builder.getOrCreate)
    except (PySparkRuntimeError, Py4JJavaError) as error:
        # Java's, for example, because it does not understand the master.
        java = getattr(error, "java_exception", None)
        message = error if java is None else java.getMessage()
        raise OSError(errno.EIO, f"Spark did not start: {message}") from None
    # Py4J logs a traceback when the JVM ends, to Python's root logger.
    silence = logging.NullHandler()
    if not verbose:
        logging.getLogger().addHandler(silence)
    try:
        yield made
    finally:
        logging.getLogger().removeHandler(silence)
        with contextlib.suppress(Exception):  # Spark itself may have ended
            made.stop()


def _chosen(master: str | None) -> str | None:
    """Return what an option names, or else the server of Spark Connect that PySpark would use."""
    remote = os.environ.get("SPARK_REMOTE", "")
    return remote if master is None and remote.startswith(_REMOTE) else master


@contextlib.contextmanager
def _remote_session(url: str) -> Iterator[Any]:
    """Return a session of Spark Connect; the server goes on when it ends. Raises
    click.UsageError without the client, OSError when the server does not answer."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", re.escape("[RETRIES_EXCEEDED]"))
        try:
            from pyspark.sql.connect.client.retries import DefaultPolicy

            made: Any = SparkSession.builder.remote(url).getOrCreate()
            retries: Any = DefaultPolicy(**_RETRIES)
            made.client.set_retry_policies([retries])
            _ = made.version  # the first request to the server
        except ImportError as error:
            raise click.UsageError(f"{_NO_CONNECT} ({error})") from None
        except (PySparkException, ValueError) as error:
            place = _place_of(url)
            cause = _without_parameters(str(error), url.removeprefix(place))
            message = (
                f"the server of Spark Connect at {place} cannot be used: check that it runs, and "
                f"that its URL is like sc://host:15002 or sc://host:15002/;token=... ({cause})"
            )
            raise OSError(errno.EIO, message) from None
        try:
            yield made
        finally:
            # The server may have ended. No request is tried again, not even one that is under way.
            retries.max_retries = 0
            with contextlib.suppress(Exception):
                made.stop()


def _place_of(url: str) -> str:
    """Return the beginning of a URL, up to where a password or a token may be."""
    match = re.match(r"[a-z]+://[^/;?#@]*(?=[/;?#]|$)", url)
    return "sc://..." if match is None else match[0]


def _without_parameters(text: str, parameters: str) -> str:
    """Return an error's text without any parameter of a URL: it may be a token."""
    for part in sorted(re.findall(r"[^/;=&?@:#]{4,}", parameters), key=len, reverse=True):
        for form in (part, unquote(part)):
            text = text.replace(form, "...")
    return text


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Have a JVM that starts in this block write to nowhere what it would write to standard error:
    Java and Spark print lines before any setting reaches them. If Spark does not start, the lines
    are printed after all."""
    with tempfile.TemporaryFile() as lines:
        if sys.stderr is not None:
            sys.stderr.flush()
        before = os.dup(2)
        os.dup2(lines.fileno(), 2)
        try:
            yield
        except Exception:
            lines.seek(0)
            os.write(before, lines.read())
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)


def _undisturbed(start: Callable[[], Any]) -> Any:
    """Return the session that ``start`` starts. A first Ctrl-C takes effect when it has started. If
    the start of a JVM is interrupted, PySpark forgets the JVM, which then never ends."""
    if threading.current_thread() is not threading.main_thread():
        return start()
    interrupted = False

    def note(number: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        made = start()
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        made.stop()
        raise KeyboardInterrupt
    return made
