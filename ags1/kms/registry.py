"""Make the KMS client that properties name: Iceberg's ``encryption.kms-type`` and ``-impl``, or
PyIceberg's ``py-kms-impl``.

A client's library is imported when the client is made, not before. Follows Java's
``EncryptionUtil.createKmsClient``.
"""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..errors import KmsConfigurationError
from .adapter import PyIcebergKms, is_pyiceberg_client
from .client import KmsClient
from .properties import Properties

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

KMS_TYPE = "encryption.kms-type"
KMS_IMPL = "encryption.kms-impl"
PY_KMS_IMPL = "py-kms-impl"
ENTRY_POINT_GROUP = "ags1.kms"

_BUILT_IN = {
    "local": "ags1.kms.local:LocalKms",
    "file": "ags1.kms.key_file:KeyFileKms",
    "memory": "ags1.kms.memory:MemoryKms",
    "aws": "ags1.kms.aws:AwsKms",
    "vault": "ags1.kms.vault:VaultKms",
    "gcp": "ags1.kms.gcp:GcpKms",
    "azure": "ags1.kms.azure:AzureKms",
}
# Java's class names of built-in clients, so that a catalog's configuration works for both.
_JAVA = {
    "org.apache.iceberg.aws.AwsKeyManagementClient": "aws",
    "org.apache.iceberg.azure.keymanagement.AzureKeyManagementClient": "azure",
    "org.apache.iceberg.gcp.GcpKeyManagementClient": "gcp",
}
_PROTOCOL = ("wrap_key", "unwrap_key", "supports_key_generation", "generate_key", "close")
_REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*):(?P<name>\w+(?:\.\w+)*)")


def kms_types() -> list[str]:
    """Return the values of ``encryption.kms-type``: the built-in ones, and those that other
    packages have registered in the entry-point group ``ags1.kms``."""
    return sorted({*_BUILT_IN, *(entry.name for entry in _entries())})


def is_known_type(kms_type: str) -> bool:
    """Return whether ``kms_type`` is a value of ``encryption.kms-type``."""
    return kms_type.lower() in _BUILT_IN or kms_type in kms_types()


def check_type(properties: Mapping[str, str]) -> None:
    """Raise KmsConfigurationError if ``encryption.kms-type`` chooses the KMS and is unknown."""
    kms_type = properties.get(KMS_TYPE)
    if kms_type and not properties.get(KMS_IMPL) and not is_known_type(kms_type):
        raise KmsConfigurationError(
            f"{KMS_TYPE} is {kms_type!r}, which is unknown: it is one of {', '.join(kms_types())}"
        )


def names_kms(properties: Mapping[str, str]) -> bool:
    """Return whether ``properties`` name a KMS, known or not."""
    return any(properties.get(name) for name in (KMS_TYPE, KMS_IMPL, PY_KMS_IMPL))


def built_in_type(properties: Mapping[str, str]) -> str | None:
    """Return the type of the built-in client that ``properties`` name; None for any other."""
    if impl := properties.get(KMS_IMPL):
        return _JAVA.get(impl)
    kms_type = properties.get(KMS_TYPE, "").lower()
    return kms_type if kms_type in _BUILT_IN else None


def from_properties(properties: Mapping[str, str]) -> KmsClient:
    """Return the KMS client that ``properties`` describe. It connects when it is first used.

    Either ``encryption.kms-type`` is one of ``kms_types()``; capital letters do not matter in a
    built-in one. Or ``encryption.kms-impl`` is the Java class name of a client that is built in, or
    ``package.module:Name`` of a class or object whose ``from_properties(properties)`` returns a
    client, or of a class that was written for PyIceberg (``PyIcebergKms``). If neither is given,
    PyIceberg's ``py-kms-impl`` is the ``package.module.Name`` of one of these. No other callable is
    called: ``subprocess:Popen`` would run the properties as a command.

    The properties must come from the caller, and never from a table or a catalog server, because
    they name code to run. Raises KmsConfigurationError if neither or both of the two are given, a
    type is unknown or registered by two packages, a library is not installed, or a property is
    missing or wrong.
    """
    checked = Properties(properties)
    kms_type, impl = checked.get(KMS_TYPE), checked.get(KMS_IMPL)
    if kms_type and impl:
        raise KmsConfigurationError(f"both {KMS_TYPE} and {KMS_IMPL} are given: give one")
    if impl and impl not in _JAVA:
        return _make(impl, properties)
    kms_type = _JAVA[impl] if impl else kms_type
    if not kms_type and (py_impl := checked.get(PY_KMS_IMPL)):
        return _make(":".join(py_impl.rsplit(".", 1)), properties)
    if not kms_type:
        raise KmsConfigurationError(
            f"no KMS is configured: set {KMS_TYPE} to one of {', '.join(kms_types())}"
        )
    if reference := _BUILT_IN.get(kms_type.lower()):
        return _make(reference, properties)
    check_type(properties)
    # A value may name extras behind the reference: "package.module:Name [extra]".
    references = {
        entry.value.partition("[")[0].strip() for entry in _entries().select(name=kms_type)
    }
    if len(references) > 1:
        raise KmsConfigurationError(
            f"{KMS_TYPE} is {kms_type!r}, which is registered more than once: set {KMS_IMPL} to "
            f"one of {', '.join(sorted(references))}"
        )
    return _make(references.pop(), properties)


def _entries() -> EntryPoints:
    # Imported late: it takes a tenth of the start of a command, which seldom needs it.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP)


def _load(reference: str) -> Any:
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise KmsConfigurationError(
            f"the KMS client {reference!r} is neither of the form package.module:Name nor "
            f"one of {', '.join(sorted(_JAVA))}"
        )
    try:
        return operator.attrgetter(parts["name"])(importlib.import_module(parts["module"]))
    except (ImportError, AttributeError) as error:
        raise KmsConfigurationError(f"cannot load the KMS client {reference!r}: {error}") from error


def _make(reference: str, properties: Mapping[str, str]) -> KmsClient:
    named = _load(reference)
    make = getattr(named, "from_properties", None)
    if not callable(make) and is_pyiceberg_client(named):
        return PyIcebergKms(named, properties)
    if not callable(make):
        raise KmsConfigurationError(
            f"the KMS client {reference!r} has no method from_properties(properties), which makes "
            "a client (see ags1.kms.KmsClient), and is no class for PyIceberg either"
        )
    client = make(dict(properties))
    # Only check that the attribute exists. To read it could call the service.
    missing = [
        name for name in _PROTOCOL if not (hasattr(type(client), name) or hasattr(client, name))
    ]
    if missing:
        raise KmsConfigurationError(
            f"the KMS client {reference!r} is not complete: what its from_properties returns has "
            "no " + ", ".join(missing)
        )
    return cast("KmsClient", client)
