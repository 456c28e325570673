"""The properties of a KMS client: their checked values, and which of them are secret.

If Iceberg has a name for a property, it is used. Messages name a property, and never its value.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence

from ..errors import KmsConfigurationError
from .secret import Secret

# Names of secrets, whose values are neither shown nor pickled. Callers often pass all properties of
# a catalog, so the names of Iceberg's file systems and REST client are here too. A longer name
# (token-file, token-expires-at) is another property.
_SECRET = re.compile(
    r"(^|[._:-])"
    r"(secret([._-](id|key|access[._-]key))?|password|passphrase|token|credentials?(-json)?|jwt"
    r"|saml[12]|cookie|authorization|signature|connection-string|(account|private|api|encryption|decryption)[._-]key|sse\.key)$"
    r"|^auth$"  # with what is nested in it
    r"|^encryption\.kms\.key\."
    r"|(^|[._-])account[._-]key\."  # then the account
    r"|^adls\.(sas-token|connection-string)\.",  # then the account
    re.IGNORECASE,
)
# Values that are secret under any name: https://user:password@host, https://token@host,
# jdbc:…?password=…, a shared access signature, {"password": "…"}. In other URLs, a single word
# before the @ is a user, or a container of Azure.
_PASSWORD_IN_URL = re.compile(
    r"://[^/\s]*:[^/\s]+@"
    r"|https?://[^/\s@]+@"
    r"|[?&;][^=&;]*(password|pwd|passphrase|sig|signature|token|secret"
    r"|(access|account|api|private)[._-]?key)="
    r"|\"(password|token|client_secret)\"\s*:",
    re.IGNORECASE,
)


class Properties(Secret):
    """A client's properties. An empty value counts as none. Every getter raises
    KmsConfigurationError, naming the property."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise KmsConfigurationError(f"the property {name!r} is not text")
        self._values = dict(values)

    def get(self, *names: str) -> str | None:
        """Return the value of the first of ``names`` that is set, None if none is."""
        return next((value for name in names if (value := self._values.get(name))), None)

    def require(self, name: str, *, hint: str = "") -> str:
        """Return a property's value, which must be there."""
        value = self.get(name)
        if value is None:
            raise KmsConfigurationError(f"the property {name!r} is missing{hint and ': '}{hint}")
        return value

    def number(self, name: str, *, default: int, minimum: int = 1, maximum: int = 3_600_000) -> int:
        """Return a property's value as an integer between the bounds."""
        text = self.get(name)
        if text is None:
            return default
        # Not \d, which takes other scripts' digits too.
        if not re.fullmatch(r"[0-9]{1,12}", text) or not minimum <= int(text) <= maximum:
            raise KmsConfigurationError(
                f"the property {name!r} is not a number from {minimum} to {maximum}"
            )
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a property's value as a boolean."""
        text = (self.get(name) or str(default)).lower()
        if text not in ("true", "false"):
            raise KmsConfigurationError(f"the property {name!r} is not 'true' or 'false'")
        return text == "true"

    def choice(self, name: str, *, default: str, choices: Sequence[str]) -> str:
        """Return a property's value, one of ``choices``."""
        value = self.get(name) or default
        if value not in choices:
            raise KmsConfigurationError(
                f"the property {name!r} is none of {', '.join(map(repr, choices))}"
            )
        return value

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the properties that begin with ``prefix``, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self._values.items()
            if name.startswith(prefix)
        }

    def check_names(self, prefix: str, known: Sequence[str]) -> None:
        """Raise KmsConfigurationError for a property that begins with ``prefix`` and is not among
        ``known``."""
        for name in sorted(self.with_prefix(prefix)):
            if prefix + name not in known:
                raise KmsConfigurationError(
                    f"the property {prefix + name!r} is unknown; there are {', '.join(known)}"
                )

    @property
    def connect_timeout_ms(self) -> int:
        """How long to wait for a connection."""
        return self.number("kms.connect-timeout-ms", default=3_000)

    @property
    def read_timeout_ms(self) -> int:
        """How long to wait for each read."""
        return self.number("kms.read-timeout-ms", default=10_000)

    @property
    def max_attempts(self) -> int:
        """The number of attempts at a call, the first one included."""
        return self.number("kms.max-attempts", default=4, maximum=100)

    def secrets(self) -> list[str]:
        """Return the names of the properties whose values are secret."""
        return sorted(
            name
            for name, value in self._values.items()
            if _SECRET.search(name) or _PASSWORD_IN_URL.search(value)
        )

    def to_pickle(self) -> dict[str, str]:
        """Return the properties for a pickle, which may be stored and sent around. Raises TypeError
        if one of them is secret."""
        if secrets := self.secrets():
            raise TypeError(
                f"a KMS client with {secrets[0]!r} in its properties is not pickled: let each "
                "process find its own credentials (a file, the environment, its identity)"
            )
        return dict(self._values)

    def __repr__(self) -> str:
        hidden = set(self.secrets())
        shown = {k: "<hidden>" if k in hidden else v for k, v in sorted(self._values.items())}
        return f"Properties({shown!r})"


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn. The warning names the last line outside of this library."""
    package = __name__.partition(".")[0]
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)
