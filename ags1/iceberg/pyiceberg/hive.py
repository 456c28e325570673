"""The Hive metastore: its client, its lock of a table, and its entry of a table."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, WaitingForLockException
from pyiceberg.typedef import Identifier


def hive_client(catalog: Any) -> AbstractContextManager[Any]:
    """Return a client of a Hive catalog's metastore, which the caller opens by ``with``. The
    catalog's own client is for one thread only."""
    client: AbstractContextManager[Any] = catalog._create_hive_client(catalog.properties)
    return client


def hive_table_lock(catalog: Any, client: Any, database: str, table: str) -> int:
    """Wait for Hive's lock of a table, as PyIceberg's writers do, and return its ID. Raises
    CommitFailedException if the lock is not granted."""
    from hive_metastore.ttypes import LockState, UnlockRequest

    lock = client.lock(catalog._create_lock_request(database, table))
    if lock.state == LockState.ACQUIRED:
        return int(lock.lockid)
    refused = f"Hive did not grant the lock of {database}.{table}"
    try:
        if lock.state == LockState.WAITING:
            catalog._wait_for_lock(database, table, lock.lockid, client)
            return int(lock.lockid)
        raise CommitFailedException(f"{refused}: {lock.state}")
    except BaseException as error:
        client.unlock(UnlockRequest(lockid=lock.lockid))
        if isinstance(error, WaitingForLockException):
            raise CommitFailedException(f"{refused}: another client holds it") from error
        raise


def hive_table(catalog: Any, identifier: str | Identifier, *, shared_client: bool) -> Any:
    """Return the entry of a table in the Hive metastore. With ``shared_client``, the catalog's
    own client asks, which is for one thread only. Raises NoSuchTableError."""
    database, name = Catalog.identifier_to_database_and_table(identifier)
    with catalog._client if shared_client else hive_client(catalog) as client:
        return catalog._get_hive_table(client, database, name)
