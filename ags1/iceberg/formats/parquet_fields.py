"""The ids of fields of Parquet's structures, under the names of parquet.thrift, and the types of
those that a footer has."""

from __future__ import annotations

from .thrift import BINARY, I16, I32, I64, LIST, STRUCT, Types


class FileMetaData:
    SCHEMA, NUM_ROWS, ROW_GROUPS = 2, 3, 4
    ENCRYPTION_ALGORITHM, FOOTER_SIGNING_KEY_METADATA = 8, 9


class SchemaElement:
    REPETITION_TYPE, NAME, NUM_CHILDREN, FIELD_ID, LOGICAL_TYPE = 3, 4, 5, 9, 10
    REQUIRED, REPEATED = 0, 2


class LogicalType:
    VARIANT = 16


class VariantType:
    SPECIFICATION_VERSION = 1


class RowGroup:
    COLUMNS, TOTAL_BYTE_SIZE, NUM_ROWS = 1, 2, 3
    FILE_OFFSET, TOTAL_COMPRESSED_SIZE, ORDINAL = 5, 6, 7


class ColumnChunk:
    FILE_PATH, FILE_OFFSET, META_DATA = 1, 2, 3
    # The field after each of these two is its length.
    OFFSET_INDEX_OFFSET, COLUMN_INDEX_OFFSET = 4, 6
    CRYPTO_METADATA, ENCRYPTED_COLUMN_METADATA = 8, 9


class ColumnCryptoMetaData:
    WITH_FOOTER_KEY, WITH_COLUMN_KEY = 1, 2


class ColumnMetaData:
    ENCODINGS, CODEC, NUM_VALUES = 2, 4, 5
    TOTAL_UNCOMPRESSED_SIZE, TOTAL_COMPRESSED_SIZE = 6, 7
    DATA_PAGE_OFFSET, INDEX_PAGE_OFFSET, DICTIONARY_PAGE_OFFSET = 9, 10, 11
    ENCODING_STATS, BLOOM_FILTER_OFFSET, BLOOM_FILTER_LENGTH = 13, 14, 15


class PageEncodingStats:
    PAGE_TYPE = 1


class PageType:
    DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3


class PageHeader:
    TYPE, UNCOMPRESSED_PAGE_SIZE, COMPRESSED_PAGE_SIZE, CRC = 1, 2, 3, 4
    DATA_PAGE_HEADER, DATA_PAGE_HEADER_V2 = 5, 8


class DataPageHeader:
    NUM_VALUES, ENCODING, DEFINITION_LEVEL_ENCODING, REPETITION_LEVEL_ENCODING = 1, 2, 3, 4
    STATISTICS = 5


class DataPageHeaderV2:
    NUM_VALUES, ENCODING = 1, 4
    DEFINITION_LEVELS_SIZE, REPETITION_LEVELS_SIZE, IS_COMPRESSED, STATISTICS = 5, 6, 7, 8


class OffsetIndex:
    PAGE_LOCATIONS = 1


class PageLocation:
    OFFSET, COMPRESSED_PAGE_SIZE = 1, 2


class BloomFilterHeader:
    NUM_BYTES = 1


class FileCryptoMetaData:
    ENCRYPTION_ALGORITHM = 1


class EncryptionAlgorithm:
    AES_GCM_V1 = 1


class AesGcmV1:
    AAD_PREFIX, AAD_FILE_UNIQUE, SUPPLY_AAD_PREFIX = 1, 2, 3


_COLUMN_METADATA_TYPES: Types = {
    **dict.fromkeys((1, 4, 15), I32),
    **dict.fromkeys((5, 6, 7, 9, 10, 11, 14), I64),
    2: (LIST, I32),
    3: (LIST, BINARY),
    13: (LIST, (STRUCT, dict.fromkeys((1, 2, 3), I32))),
}
_COLUMN_CHUNK_TYPES: Types = {
    **dict.fromkeys((1, 9), BINARY),
    **dict.fromkeys((5, 7), I32),
    **dict.fromkeys((2, 4, 6), I64),
    3: (STRUCT, _COLUMN_METADATA_TYPES),
    8: (STRUCT, {}),
}
_ROW_GROUP_TYPES: Types = {
    1: (LIST, (STRUCT, _COLUMN_CHUNK_TYPES)),
    **dict.fromkeys((2, 3, 5, 6), I64),
    7: I16,
}
_SCHEMA_ELEMENT_TYPES: Types = {**dict.fromkeys((1, 2, 3, 5, 6, 7, 8, 9), I32), 4: BINARY}
# Parsers skip a field of another type than these, or read it as if it had the right one.
FILE_METADATA_TYPES: Types = {
    1: I32,
    2: (LIST, (STRUCT, _SCHEMA_ELEMENT_TYPES | {10: (STRUCT, {})})),
    3: I64,
    4: (LIST, (STRUCT, _ROW_GROUP_TYPES)),
    9: BINARY,
}
