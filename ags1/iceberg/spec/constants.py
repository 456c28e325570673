"""What the specifications fix: how files begin, reserved field ids, names."""

FORMAT_VERSION = 3  # of tables: the only one that can be encrypted

PUFFIN_MAGIC = b"PFA1"
PARQUET_MAGIC, ENCRYPTED_PARQUET_MAGIC = b"PAR1", b"PARE"
ORC_MAGIC = b"ORC"

# The key of a column's id in the metadata of Arrow's field.
PARQUET_FIELD_ID = b"PARQUET:field_id"

# The field ids of metadata columns, and of the columns of position delete files.
FILE_ID, POSITION_ID, SPEC_ID, PARTITION_ID = 2147483646, 2147483645, 2147483643, 2147483642
ROW_ID, LAST_UPDATED_ID = 2147483540, 2147483539
PATH_FIELD_ID, POSITION_FIELD_ID = 2147483546, 2147483545

MAIN_BRANCH = "main"
