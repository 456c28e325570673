"""Variants of tests that ``make test`` leaves to the slow tests.

Most take the path of a variant that stays, with another parameter, and cost seconds of CPU time. Of
eight tests nothing stays, because others of ``make test`` fail where they would: relocation to S3,
the corpus's generator and export, a killed history, Dask in another process, a commit that somebody
else comes before, a child of a process that speaks gRPC, and two of large ledgers. Nothing is left
out of the whole check, which has the slow tests too.
A pattern is a regular expression for a test's name with its class and its parameters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import pytest

# By file. The comment says what stays.
VARIANTS = {
    "cli/test_files.py": [
        # A file and its sidecar that are replaced, and a file that is new.
        r"test_no_crash_parts_a_file_from_its_key\[(damaged|without|only) sidecar-False\]",
        # By a pipe, a link and "-".
        r"test_standard_output_by_every_name\[/(dev/fd|proc/self/fd)/1\]",
        # Without Python's buffer, which is the harder way.
        r"test_output_that_does_not_block_is_written_whole\[(encrypt|text|errors)-buffered\]",
        r"test_output_that_does_not_fit_is_an_error\[buffered\]",
        # With two threads.
        r"test_an_interrupted_large_file_leaves_nothing\[1-.*\]",
    ],
    "cli/test_keys.py": [
        r"test_no_crash_of_rewrapping_loses_a_key\[(False-True|True-False)\]",
    ],
    "cli/test_table_write.py": [
        # The answer "y", and a signal at a question in the tests' own process.
        r"test_a_question_on_a_terminal\[\\x03-.*\]",
        # Each form of Parquet, and Arrow of Avro.
        r"test_what_scan_prints_append_reads\[avro-(csv|parquet)\]",
        # The conflicts of iceberg/write/test_conflicts.py.
        r"test_somebody_else_commits_first\[0\]",
    ],
    "format/test_corpus.py": [
        # Half of the ways; format/test_tamper.py has these with other faults.
        r"test_every_way_of_reading\[(decrypt_into|decrypt_many|read in threads|readinto|lines)\]",
        r"test_every_way_of_reading\[(read from an object|ags1 cat)\]",
        r"test_every_way_of_reading\[(pread|PythonFile|read1 and peek|fsspec's cat_file)\]",
        r"test_every_way_of_reading\[(ags1.arrow.filesystem|.* URL|ags1 decrypt( of a pipe)?)\]",
        r"test_every_way_of_reading\[a job that decrypts blocks\]",
        # Every case of the corpus through every way.
        r"test_the_generator_makes_the_corpus_again",
        r"test_the_export_has_the_form_of_iceberg_verification",
    ],
    "format/test_crash.py": [
        # A writer that works in threads.
        r"test_a_killed_process_leaves_the_target_whole_or_absent\[(?!decr.*new|.*threads-named).*\]",
        r"test_an_exit_amid_daemon_threads\[raise\]",
    ],
    "format/test_interrupts.py": [
        # A path, in three threads.
        r"test_children_forked_while_others_read\[(1-file|3-file)\]",
        r"test_reads_are_right_under_a_storm_of_interrupts\[(file-1|file-3)\]",
        # Three threads, on a path and on a file; for interrupts, a BytesIO is read as a file is.
        r"test_children_forked_while_others_read\[(1-path|1-BytesIO|3-BytesIO)\]",
        r"test_reads_are_right_under_a_storm_of_interrupts\[(path-1|BytesIO-1|BytesIO-3)\]",
    ],
    "format/test_stream_writer.py": [
        # One thread and four.
        r"test_a_fork_while_writing\[2-.*\]",
    ],
    "format/test_tamper.py": [
        # Files whose last block is full, in files of five blocks.
        r"test_every_change_is_refused\[(full-blocks|one-full-block)-.*-1\]",
        # Files of one block have no work for a second thread; each other shape through each way in
        # one thread or in two.
        r"test_every_change_is_refused\[(one-block|one-full-block|empty|full-blocks)-.*-2\]",
        r"test_every_change_is_refused\[(five-blocks|large)-.*-1\]",
        # Five blocks in two threads.
        r"test_every_change_is_refused\[large-(?!lines|pread|decrypt_file|from_ranges).*-2\]",
    ],
    "format/test_bulk.py": [
        # KeyboardInterrupt and RuntimeError.
        r"test_what_progress_raises_ends_the_call\[.*-(SystemExit|MemoryError)\]",
    ],
    "filesystem/test_abstract.py": [
        # The same cases in memory.
        r"TestCopy::test_copy_glob_edge_cases\[file-.*\]",
        r"TestGet::test_get_glob_edge_cases\[file-.*\]",
        r"TestPut::test_put_glob_edge_cases\[file-.*\]",
    ],
    "filesystem/test_readers.py": [
        # A changed byte through each library; these two faults through pyarrow.
        r"test_damage_raises\[(cut|another key)-with_(pandas|polars.*|duckdb.*|pyarrow_s_.*)\]",
        # Rows; Dask starts processes.
        r"test_damage_raises\[.*-with_dask\]",
    ],
    "iceberg/read/test_changes.py": [
        # Copy-on-write.
        r"test_any_history\[4-merge-on-read\]",
    ],
    "iceberg/read/test_dask.py": [
        # Dask's own processes in filesystem/test_readers.py, and frames within this one.
        r"test_a_graph_has_no_key_and_is_read_by_another_process",
    ],
    "iceberg/commit/test_histories.py": [
        # All histories with 48 kills are slow.
        r"test_every_history_is_explained\[sql-6\]",
    ],
    "iceberg/commit/test_model.py": [
        # The newest KEK, both ways to commit.
        r"test_others\[.*-old kek\]",
        # The same writers, whose pointer is swapped.
        r"test_two_writers_rotation_pruning_and_expiry\[writers1-rest\]",
    ],
    "iceberg/operations/test_erasure.py": [
        # What another writer does before each step.
        r"test_nothing_that_another_writer_does_meanwhile_is_lost\[True-.*\]",
        # The log of metadata files that is deleted, and every format and mode.
        r"test_no_file_has_a_deleted_value\[(gzip|unmerged|short log)\]",
    ],
    "iceberg/operations/test_migration.py": [
        # Each version, partitioned or not, with one of the key sizes.
        r"test_a_table_of_pyiceberg_is_encrypted\[(16-False-1|16-True-2|32-False-2|32-True-1)\]",
    ],
    "iceberg/operations/test_orphans.py": [
        # PyArrow's FileIO.
        r"test_a_table_on_s3\[fsspec.FsspecFileIO\]",
    ],
    "iceberg/operations/test_pruning.py": [
        # Each change first and second, over REST and over SQL.
        r"test_two_writers_who_both_prune\[(rest-[0-3]-[01]|sql-[0-3]-[23])\]",
        r"test_two_writers_who_both_prune\[(rest-(0-3|1-2|2-3|3-2)|sql-(0-1|1-0|2-1|3-0))\]",
        r"test_without_the_property_keys_stay\[sql-.*\]",
        r"test_thousands_of_keys_as_java_leaves_them\[rest\]",
    ],
    "iceberg/operations/test_relocation.py": [
        # To a folder, through both FileIOs; to S3 are the slow ones.
        r"test_to_s3_within_it_and_back\[pyarrow.PyArrowFileIO\]",
    ],
    "iceberg/operations/test_verify.py": [
        # Each damage to files of one table, and two to those of each.
        r"test_each_damaged_file_is_found_and_named\[(parquet_plain|stats)-.*"
        r"(byte|nothing|header|folder|pipe|Avro|Parquet|noise)(?<!cut by a byte)\]",
        r"test_no_byte_of_a_parquet_file_can_be_changed\[how[23]\]",
        # PyArrow's FileIO.
        r"test_a_table_on_s3\[fsspec.FsspecFileIO\]",
    ],
    "iceberg/storage/test_storage.py": [
        # Each table through one of the two FileIOs.
        r"test_a_table_of_java_s_moved_to_s3\[(mor_dv-fsspec|parquet_plain-fsspec|stats-pyarrow)\]",
    ],
    "iceberg/test_tables.py": [
        r"test_filters_in_nanoseconds\[(parquet-None|avro-day)\]",
        # Another seed; a bucket, a day and no partition.
        r"test_the_same_as_on_a_plain_table\[.*-1\]",
        r"test_filters_in_nanoseconds\[parquet-(hour|identity)\]",
        # Parquet in nanoseconds, Avro in microseconds.
        r"test_dates_that_became_times\[(avro-.*-timestamp_ns|parquet-(month|None)-timestamp)\]",
    ],
    "iceberg/write/test_copy_on_write.py": [
        r"test_files_are_what_pyiceberg_leaves\[whole-(no row|overwrite a column's values)\]",
        r"test_random_programs\[1-.*\]",
        # The same changes of a table that is not partitioned.
        r"test_files_are_what_pyiceberg_leaves\[by v-(no row|nulls|overwrite a column's values)\]",
    ],
    "iceberg/write/test_conflicts.py": [
        # Files that are added and removed.
        r"test_the_outcome_is_pyiceberg_s\[.* after delete elsewhere-merge-on-read-.*\]",
    ],
    "iceberg/read/test_filters.py": [
        # Each filter over Parquet and over deletes, one over each other table.
        r"test_nulls_are_what_sql_says\[(?!parquet-|deletes-).*-(?!NOT \(s IN).*\]",
        # A date and a timestamp with a zone; a long.
        r"test_filters_on_defaults\[(time|timestamp|double)\]",
    ],
    "iceberg/test_arrow_interchange.py": [
        # One batch, a stream and frames.
        r"test_rows_of_a_library_are_written\[(to_reader|polars_categories|OneArray)\]",
    ],
    "iceberg/read/test_metadata_columns.py": [
        # Each filter on all columns of Parquet, and on some of Avro.
        r"test_filters\[(parquet-\('(id|_row_id)'.*|avro-\('(\*|id)'.*)\]",
    ],
    "kms/test_gcp.py": [
        # A child's clients of each KMS, without gRPC.
        r"test_a_child_of_a_process_that_speaks_grpc_unwraps\[None-True\]",
    ],
    "spark/test_ledger.py": [
        # Smaller ledgers of each kind.
        r"test_facts_in_little_memory",
        # A ledger in a folder; objects in test_object_ledger.py.
        r"test_a_job_that_is_killed_at_any_step\[object\]",
    ],
    "spark/test_object_ledger.py": [
        # The same steps on objects in memory.
        r"test_a_kill_at_every_step\[moto-False\]",
        r"TestPromises::test_compacting_and_wrapping_again\[moto\]",
        r"TestClaims::test_(one_of_many_gets_it|a_change_that_arrives_late)\[moto\]",
    ],
}


def mark(items: Sequence[pytest.Item], root: str) -> None:
    """Mark the variants among collected tests as slow. ``root`` is the folder of the tests."""
    of_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        of_file.setdefault(str(item.path).removeprefix(root + os.sep), []).append(item)
    for file, patterns in VARIANTS.items():
        for item in of_file.get(file, ()):
            name = item.nodeid.partition("::")[2]
            if any(re.fullmatch(pattern, name) for pattern in patterns):
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.variant)
