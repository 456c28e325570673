"""A catalog around another one, which has the namespaces, the views and the list of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewVersion

if TYPE_CHECKING:
    import pyarrow as pa


class DelegatingCatalog(Catalog):
    """Calls ``inner`` for everything that does not concern the files of a table."""

    inner: Catalog

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return self.inner.list_tables(namespace)

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        return self.inner.namespace_exists(namespace)

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        self.inner.create_namespace(namespace, properties)

    def drop_namespace(self, namespace: str | Identifier) -> None:
        self.inner.drop_namespace(namespace)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        return self.inner.list_namespaces(namespace)

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        return self.inner.load_namespace_properties(namespace)

    def update_namespace_properties(
        self,
        namespace: str | Identifier,
        removals: set[str] | None = None,
        updates: Properties = EMPTY_DICT,
    ) -> PropertiesUpdateSummary:
        return self.inner.update_namespace_properties(namespace, removals, updates)

    def create_view(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> View:
        return self.inner.create_view(identifier, schema, view_version, location, properties)

    def view_exists(self, identifier: str | Identifier) -> bool:
        return self.inner.view_exists(identifier)

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        return self.inner.list_views(namespace)

    def load_view(self, identifier: str | Identifier) -> View:
        return self.inner.load_view(identifier)

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        return self.inner.register_view(identifier, metadata_location)

    def drop_view(self, identifier: str | Identifier) -> None:
        self.inner.drop_view(identifier)

    def supports_server_side_planning(self) -> bool:
        # This concerns the unencrypted tables. Scans of encrypted tables do not use it.
        return self.inner.supports_server_side_planning()
