"""Requests to a REST catalog's server.

PyIceberg's parsing drops the parts of the answers that encryption needs, so they are parsed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyiceberg import exceptions
from pyiceberg.catalog import Catalog
from pyiceberg.typedef import Identifier

from ...errors import MetadataIntegrityError
from ...host import strict_json
from ..spec.parsable import parsable, without_nulls
from ..spec.properties import number_in
from .redirection import refuse_foreign_code

# A server's status codes for a token that has expired.
_EXPIRED = (401, 419)
# Timeouts of requests: the properties have Java's names, the default values are ours.
_REST_TIMEOUTS_MS = {"connection": 30_000, "socket": 300_000}

# A REST server's answer about a table: the metadata as sent, its location, the table's
# configuration, and the configuration with the credentials for the storage.
RestTable: TypeAlias = tuple[dict[str, Any], str, dict[str, str], dict[str, str]]


def snapshot_loading_mode(catalog: Any) -> str | None:
    """Return which snapshots the catalog's property asks for: ``all``, ``refs`` or None. Raises
    ValueError for another value."""
    from pyiceberg.catalog.rest import SNAPSHOT_LOADING_MODE

    mode: str | None = catalog.properties.get(SNAPSHOT_LOADING_MODE)
    if mode and mode not in ("all", "refs"):
        raise ValueError(f"Invalid {SNAPSHOT_LOADING_MODE}: {mode}")
    return mode or None


def ask_rest_server(
    catalog: Any, identifier: str | Identifier, snapshots: str | None = None
) -> RestTable:
    """Ask a REST server for a table. ``snapshots`` is a value of ``snapshot_loading_mode``. The
    server's answer is trusted more than the metadata file, because others may be able to write to
    the storage. Raises what ``catalog.load_table`` raises."""
    from pyiceberg.catalog.rest import Capability, Endpoints

    catalog._check_endpoint(Capability.V1_LOAD_TABLE)
    url = catalog.url(
        Endpoints.load_table, prefixed=True, **catalog._split_identifier_for_path(identifier)
    )
    params = {"snapshots": snapshots} if snapshots else {}
    response = catalog._session.get(url, params=params)
    if not response.ok:
        # This raises PyIceberg's own errors, or renews an expired token.
        catalog.load_table(identifier)
        response = catalog._session.get(url, params=params)
        response.raise_for_status()
    return _rest_table(catalog, response)


def register_rest_table(
    catalog: Any, identifier: str | Identifier, metadata_location: str, overwrite: bool
) -> RestTable:
    """Register a metadata.json as a table of a REST server; return the server's answer. Raises what
    ``catalog.register_table`` raises."""
    from pyiceberg.catalog.rest import Capability, Endpoints

    catalog._check_endpoint(Capability.V1_REGISTER_TABLE)
    path = catalog._split_identifier_for_path(identifier)
    request = {
        "name": Catalog.table_name_from(identifier),
        "metadata-location": metadata_location,
        "overwrite": overwrite,
    }
    url = catalog.url(Endpoints.register_table, namespace=path["namespace"])
    return _made_by_rest_server(catalog, url, request, {409: exceptions.TableAlreadyExistsError})


def _rest_table(catalog: Any, response: Any) -> RestTable:
    from pyiceberg.catalog.rest import TableResponse

    try:
        answer = strict_json.parse(response.text)
    except ValueError as error:
        raise MetadataIntegrityError(f"the REST server's answer {error}") from None
    metadata = without_nulls(answer["metadata"])
    parsed = TableResponse.model_validate({**answer, "metadata": parsable(metadata)})
    location = parsed.metadata_location or ""
    credentials = catalog._resolve_storage_credentials(
        parsed.storage_credentials, location or metadata.get("location")
    )
    storage = {**parsed.config, **credentials}
    refuse_foreign_code(storage, catalog.properties, location)
    return metadata, location, parsed.config, storage


def check_rest_commits(catalog: Any) -> None:
    """Raise NotImplementedError if the REST server does not support commits."""
    from pyiceberg.catalog.rest import Capability

    catalog._check_endpoint(Capability.V1_CREATE_TABLE)
    catalog._check_endpoint(Capability.V1_UPDATE_TABLE)


def stage_rest_table(catalog: Any, identifier: Identifier, request: Mapping[str, Any]) -> RestTable:
    """Send a REST server the request to create a table; return the server's answer. Raises
    TableAlreadyExistsError, NoSuchNamespaceError, and PyIceberg's errors of REST."""
    from pyiceberg.catalog.rest import Endpoints

    path = catalog._split_identifier_for_path(identifier)
    url = catalog.url(Endpoints.create_table, namespace=path["namespace"])
    errors = {409: exceptions.TableAlreadyExistsError, 404: exceptions.NoSuchNamespaceError}
    return _made_by_rest_server(catalog, url, request, errors)


def _made_by_rest_server(
    catalog: Any, url: str, request: Mapping[str, Any], errors: Mapping[int, type[Exception]]
) -> RestTable:
    try:
        response = _post(catalog, url, request, {})
    except NotSentError as error:
        raise error.__cause__ or error from None
    if not response.ok:
        raise refused_by_rest_server(response, errors)
    return _rest_table(catalog, response)


class NotSentError(Exception):
    """A request did not reach the REST server, because there was no connection."""


def post_to_rest_server(
    catalog: Any, identifier: Identifier, config: Mapping[str, str], body: Mapping[str, Any]
) -> Any:
    """Send a commit of a table to a REST server; return the response with any status code.
    ``config`` is the table's configuration. Raises NotSentError, and RequestException of the
    library requests if there is no answer."""
    from pyiceberg.catalog.rest import Endpoints

    path = catalog._split_identifier_for_path(identifier)
    token = config.get("token")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return _post(catalog, catalog.url(Endpoints.update_table, **path), body, headers)


def _post(catalog: Any, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    from requests.exceptions import ConnectionError, ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    data = json.dumps(body).encode()
    limits = [
        number_in(catalog.properties, f"rest.client.{name}-timeout-ms", default) / 1000
        for name, default in _REST_TIMEOUTS_MS.items()
    ]
    try:
        for attempt in range(2):
            # A redirected POST becomes a GET, whose answer says nothing about the commit.
            response = catalog._session.post(
                url, data=data, headers=dict(headers), timeout=tuple(limits), allow_redirects=False
            )
            if attempt or response.status_code not in _EXPIRED:
                break
            try:
                catalog._refresh_token()
            except Exception as error:
                raise NotSentError(f"no new token: {type(error).__name__}") from error
    except ConnectTimeout as error:
        raise NotSentError(str(error)) from error
    except ConnectionError as error:
        if error.args and isinstance(getattr(error.args[0], "reason", None), NewConnectionError):
            raise NotSentError(str(error)) from error
        raise
    return response


def refused_by_rest_server(
    response: Any, errors: Mapping[int, type[Exception]] | None = None
) -> Exception:
    """Return PyIceberg's exception for the response of a REST server that refuses a request."""
    from pyiceberg.catalog.rest.response import _handle_non_200_response
    from requests import HTTPError

    of_commits = {404: exceptions.NoSuchTableError, 409: exceptions.CommitFailedException}
    known = of_commits if errors is None else dict(errors)
    try:
        _handle_non_200_response(HTTPError(response=response), known)
    except Exception as error:
        return error
    raise AssertionError(response.status_code)
