"""``DynamoDbCommits``: commits to the DynamoDB table of PyIceberg's or Java's ``DynamoDbCatalog``.

A commit is one conditional update of the table's item. Its condition names the base's metadata
location, so it changes nothing if another commit was first. It also changes the item's version
``v``, which the commits of Java's ``DynamoDbTableOperations`` name in their condition. ``aws.py``
says what is trusted. Independent of metadata.
"""

from __future__ import annotations

import time
import uuid
from threading import Event
from typing import Any

from botocore.exceptions import ClientError
from pyiceberg.catalog import METADATA_LOCATION, Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.typedef import Identifier, Properties

from ..pyiceberg.dynamodb import (
    dynamodb_column,
    dynamodb_item,
    dynamodb_key,
    dynamodb_parameters,
    new_dynamodb_item,
    renamed_dynamodb_item,
)
from .aws import AwsCommits, error_code, updated_by_another, was_repeated
from .base import Base
from .file_commits import NewMetadata, catalog_parameters

_REFUSED = "ConditionalCheckFailedException"
_IS_NEW = "attribute_not_exists(identifier)"
_IS_BASE = "#location = :base"


class DynamoDbCommits(AwsCommits):
    """Commits to the tables of a DynamoDbCatalog."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._client: Any = catalog.dynamodb  # type: ignore[attr-defined]  # DynamoDbCatalog's
        self._table: str = catalog.dynamodb_table_name  # type: ignore[attr-defined]

    def parameters(self, name: Identifier, shared_client: bool) -> Properties:
        return dynamodb_parameters(dynamodb_item(self.catalog, name))

    def _swap(self, base: Base, new: NewMetadata, sent: Event) -> None:
        changes: dict[str, dict[str, str]] = {
            dynamodb_column(name): {"S": value}
            for name, value in catalog_parameters(new, base).items()
        }
        changes["v"] = {"S": str(uuid.uuid4())}
        changes["updated_at"] = {"N": str(round(time.time() * 1000))}
        numbered = list(enumerate(changes.items()))
        sent.set()
        try:
            self._client.update_item(
                TableName=self._table,
                Key=dynamodb_key(base.identifier),
                UpdateExpression="SET " + ", ".join(f"#n{i} = :v{i}" for i, _ in numbered),
                ConditionExpression=_IS_BASE,
                ExpressionAttributeNames={
                    "#location": dynamodb_column(METADATA_LOCATION),
                    **{f"#n{i}": name for i, (name, _) in numbered},
                },
                ExpressionAttributeValues={
                    ":base": {"S": base.location},
                    **{f":v{i}": value for i, (_, value) in numbered},
                },
            )
        except ClientError as error:
            if error_code(error) == _REFUSED and not was_repeated(error):
                raise updated_by_another(base.identifier) from error
            raise

    def _insert(self, identifier: Identifier, new: NewMetadata, sent: Event) -> None:
        item = new_dynamodb_item(self.catalog, identifier, catalog_parameters(new, None))
        sent.set()
        try:
            self._client.put_item(TableName=self._table, Item=item, ConditionExpression=_IS_NEW)
        except ClientError as error:
            if error_code(error) != _REFUSED:
                raise
            # The first of two equal requests may have made the table.
            if was_repeated(error) and self._current_location(identifier) == new.location:
                return
            raise TableAlreadyExistsError(f"Table {'.'.join(identifier)} already exists") from error

    def _current_location(self, identifier: Identifier) -> str | None:
        try:
            item = dynamodb_item(self.catalog, identifier)
        except NoSuchTableError:
            return None
        return dynamodb_parameters(item).get(METADATA_LOCATION)

    def rename(self, base: Base, identifier: str | Identifier) -> None:
        name = Catalog.identifier_to_tuple(identifier)
        item = renamed_dynamodb_item(
            self.catalog, dynamodb_item(self.catalog, base.identifier), name
        )
        column = dynamodb_column(METADATA_LOCATION)
        item[column] = {"S": base.location}
        delete = {
            "TableName": self._table,
            "Key": dynamodb_key(base.identifier),
            "ConditionExpression": _IS_BASE,
            "ExpressionAttributeNames": {"#location": column},
            "ExpressionAttributeValues": {":base": {"S": base.location}},
        }
        put = {"TableName": self._table, "Item": item, "ConditionExpression": _IS_NEW}
        try:
            self._client.transact_write_items(TransactItems=[{"Delete": delete}, {"Put": put}])
        except ClientError as error:
            # The first of two equal requests may have renamed the table.
            both = base.identifier, name
            found = map(self._current_location, both) if was_repeated(error) else ()
            if list(found) == [None, base.location]:
                return
            reasons = [r.get("Code") for r in error.response.get("CancellationReasons", ())]
            if reasons[:1] == ["ConditionalCheckFailed"]:
                raise updated_by_another(base.identifier) from error
            if reasons[1:] == ["ConditionalCheckFailed"]:
                raise TableAlreadyExistsError(f"Table {'.'.join(name)} already exists") from error
            raise
