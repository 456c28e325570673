"""Jobs' files in S3, through s3fs.

A target is a multipart upload, which the driver begins before the tasks and completes when the
ledger has the key: nothing is visible until then. Tasks upload parts of whole blocks, under numbers
of their attempt, and a completed upload consists of the parts that are named, by number and ETag:
a late attempt's are none of them. The ids of the uploads under way are in the ledger's folder, so
that those of a killed job are aborted; what was begun in the moment of the kill is left to the
bucket's life cycle. Reads name the version by its ETag.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ... import layout
from ...errors import Ags1Error
from ...kms.process import PerProcess
from ..bulk.planning import BLOCK_SIZE, Item, Piece
from .protocol import (
    CHANGED,
    Attempt,
    NothingStagedError,
    Output,
    Source,
    Staging,
    Status,
    UnknownOutcomeError,
)
from .remote import NAMELESS, RemoteSource, RemoteStorage, in_pool, os_errors

if TYPE_CHECKING:
    from ..ledger import Row

# S3's own limits: 5 MiB, but for the last part, and 10,000 parts.
_PART_BLOCKS = 8
_MAX_PARTS = 10_000
# Part numbers for as many attempts at a piece. The one after them uses the first one's again: what
# that overwrites cannot be completed any more.
_ATTEMPTS = 3
# Parts on their way at a time, for each file and each process.
_UPLOADS_PER_FILE, _UPLOADS = 2, 16
_TRIES = 3
_ATTEMPT_KEY = "ags1-attempt"
# What S3 says of an upload that can be completed neither now nor later.
_NEVER = frozenset({"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall"})
_uploaders = PerProcess(lambda: ThreadPoolExecutor(_UPLOADS, "ags1-upload"))


class _S3Source(RemoteSource):
    """An object that is read by ranges, all of one ETag."""

    def __init__(self, storage: S3Storage, path: str, size: int, version: str) -> None:
        self._storage, self._path = storage, path
        self._s3 = storage
        self.size, self.version = size, version

    def read(self, offset: int, size: int) -> bytes:
        return self._s3.get(self._path, offset, size, self.version) if size else b""

    def check_unchanged(self) -> None:
        # What was read was of this version.
        if not self.size:
            super().check_unchanged()


class _PartsOutput:
    """The parts that one attempt uploads."""

    fd = -1

    def __init__(self, storage: S3Storage, piece: Piece, attempt: Attempt) -> None:
        assert piece.shared is not None
        self.staged = ""
        self._upload = {**storage.place(piece.target), "UploadId": piece.shared}
        self._storage = storage
        self._index = piece.first_block // piece.unit
        self._slot = 1 + attempt.number % _ATTEMPTS
        self._under_way: deque[Future[dict[str, Any]]] = deque()
        self._parts: list[dict[str, Any]] = []

    def write(self, data: bytes | memoryview) -> None:
        while len(self._under_way) >= _UPLOADS_PER_FILE:
            self._parts.append(self._under_way.popleft().result())
        number = self._index * _ATTEMPTS + self._slot
        self._index += 1
        self._under_way.append(_uploaders.get().submit(self._put, number, bytes(data)))

    def _put(self, number: int, data: bytes) -> dict[str, Any]:
        answer = self._storage.call("upload_part", **self._upload, PartNumber=number, Body=data)
        # The checksums that the SDK has made are asked for again.
        sums = {name: text for name, text in answer.items() if name in _CHECKSUMS and text}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    def finish(self) -> None:
        if not self._under_way and not self._parts:
            self.write(b"")  # there is no upload of no parts
        self._parts += [future.result() for future in self._under_way]
        self._under_way.clear()
        self.staged = json.dumps(self._parts)

    def give_up(self) -> None:
        for future in self._under_way:
            future.cancel()


_CHECKSUMS = frozenset(
    f"Checksum{name}" for name in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
)


class S3Storage(RemoteStorage):
    """S3; see ``Storage``. What attempts share is an upload's id; what an attempt has staged are
    its parts, JSON; ``Row.attempt`` is JSON with both, and the attempt's name, which the object
    gets as metadata: so it is known who made it."""

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of S3's client. Raises OSError."""
        with os_errors(arguments.get("Key", arguments.get("Bucket", ""))):
            answer: dict[str, Any] = self.fs.call_s3(method, **arguments)
        return answer

    def place(self, path: str) -> dict[str, str]:
        """Return the arguments that name an object."""
        bucket, key = self._parted(path)
        return {"Bucket": bucket, "Key": key}

    def _parted(self, path: str) -> tuple[str, str]:
        # s3fs would end the key at "?versionId=": a name as any other, and another object's.
        name = self.name(path)
        bucket: str = self.fs.split_path(name)[0]
        return bucket, name[len(bucket) + 1 :]

    def status(self, path: str) -> Status:
        head = self.call("head_object", **self.place(path))
        return Status(head["ContentLength"], head["ETag"])

    def get(self, path: str, offset: int, size: int, version: str) -> bytes:
        """Return bytes of an object. Raises Ags1Error when it is another version, OSError."""
        from fsspec.asyn import sync

        arguments = (self.fs, self.place(path), offset, size, version)
        tries = 1
        while True:
            try:
                with os_errors(path):
                    data: bytes = sync(self.fs.loop, _get, *arguments)
                return data
            except OSError as error:
                # S3's own answers were tried again by s3fs; a body that breaks off was not.
                if _code(error) or tries == _TRIES:
                    raise
            tries += 1

    def listing(self, folder: str, *, deep: bool) -> Iterable[Mapping[str, Any]]:
        """List page by page: a page of facts is large, and few are needed of each."""
        bucket, key = self._parted(folder)
        where: dict[str, Any] = {"Bucket": bucket, "Prefix": key and key.rstrip("/") + "/"}
        if not deep:
            where["Delimiter"] = "/"
        while True:
            page = self.call("list_objects_v2", **where)
            for found in page.get("CommonPrefixes", ()):
                name = f"{bucket}/{found['Prefix'].removesuffix('/')}"
                yield {"name": name, "type": NAMELESS if name.endswith("/") else "directory"}
            for found in page.get("Contents", ()):
                name = f"{bucket}/{found['Key']}"
                yield {
                    "name": name,
                    "type": "file",
                    "size": found["Size"],
                    "ETag": found["ETag"],
                }
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = page["NextContinuationToken"]

    def make_root(self, root: str) -> None:
        bucket, key = self._parted(root)
        self.call("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)

    def unit(self, plaintext_size: int) -> int:
        blocks = layout.block_count(plaintext_size, BLOCK_SIZE)
        return max(_PART_BLOCKS, -(-blocks // (_MAX_PARTS // _ATTEMPTS)))

    def stage(
        self, staging: Staging, items: Sequence[Item], cut: Collection[int]
    ) -> Mapping[int, str | OSError | None]:
        staged: dict[int, str | OSError | None] = {}

        def begin(item: Item) -> None:
            name = _attempt_name(staging.job_id, item)
            upload = self.call(
                "create_multipart_upload", **self.place(item.target), Metadata={_ATTEMPT_KEY: name}
            )
            staged[item.number] = upload["UploadId"]

        for item, error in in_pool(begin, items):
            if error is not None:
                staged[item.number] = error
        return staged

    @contextlib.contextmanager
    def open(self, path: str, size: int, version: str) -> Iterator[Source]:
        yield _S3Source(self, path, size, version)

    @contextlib.contextmanager
    def output(self, piece: Piece, attempt: Attempt, mode: int, begin: int) -> Iterator[Output]:
        output = _PartsOutput(self, piece, attempt)
        try:
            yield output
            output.finish()
        except BaseException:
            output.give_up()
            raise

    def gather(
        self,
        staging: Staging,
        item: Item,
        shared: str | None,
        results: Sequence[tuple[int, str]],
        check: Callable[[str], object],
    ) -> str:
        parts = [part for _, staged in results for part in json.loads(staged)]
        parts.sort(key=lambda part: part["PartNumber"])
        name = _attempt_name(staging.job_id, item)
        return json.dumps({"name": name, "upload": shared, "parts": parts})

    def discard(
        self, target: str, shared: str | None, results: Iterable[tuple[int, str]], *, all_: bool
    ) -> bool:
        if all_ and shared is not None:
            try:
                self._end(target, shared)
            except OSError:
                return False
        return True

    def _end(self, target: str, upload: str) -> None:
        """See that an upload is not under way. Raises OSError where that cannot be told."""
        try:
            self.call("abort_multipart_upload", **self.place(target), UploadId=upload)
        except OSError as error:
            if _code(error) not in ("NoSuchUpload", "NoSuchBucket"):
                raise

    def publish(self, row: Row, *, again: bool) -> None:
        attempt = _parsed(row)
        arguments = {
            **self.place(row.target),
            "UploadId": attempt["upload"],
            "MultipartUpload": {"Parts": attempt["parts"]},
        }
        try:
            try:
                condition = {} if row.replaces else {"IfNoneMatch": "*"}
                self.call("complete_multipart_upload", **arguments, **condition)
            except OSError as error:
                if row.replaces or _code(error) not in ("NotImplemented", "501"):
                    raise
                # A store that knows no such condition: the check is all that can be had.
                if self._status_or_none(row.target) is not None:
                    raise FileExistsError(
                        errno.EEXIST, os.strerror(errno.EEXIST), row.target
                    ) from None
                self.call("complete_multipart_upload", **arguments)
        except OSError as error:
            # An answer that was lost on its way, or a job that was killed.
            code = _code(error)
            exists = code in ("PreconditionFailed", "412") or isinstance(error, FileExistsError)
            if not again and not exists:
                self._end_or_doubt(row.target, attempt["upload"], error)
            if self._has_its_name_or_doubt(row, error, again=again):
                return
            if exists:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), row.target) from None
            if code in _NEVER:
                raise NothingStagedError(error.errno, error.strerror or str(error)) from error
            raise

    def _end_or_doubt(self, target: str, upload: str, error: OSError) -> None:
        try:
            # S3 may be about to complete it.
            self._end(target, upload)
        except OSError:
            raise _doubt(target, error) from None

    def _has_its_name_or_doubt(self, row: Row, error: OSError, *, again: bool) -> bool:
        try:
            return self.has_its_name(row)
        except OSError:
            if again:
                raise
            raise _doubt(row.target, error) from None

    def withdraw(self, row: Row) -> None:
        with contextlib.suppress(OSError):
            self._end(row.target, _parsed(row)["upload"])

    def has_its_name(self, row: Row) -> bool:
        name = _parsed(row)["name"]
        try:
            head = self.call("head_object", **self.place(row.target))
        except FileNotFoundError:
            return False
        made_by = head.get("Metadata", {}).get(_ATTEMPT_KEY)
        size: int = head["ContentLength"]
        return made_by == name and size == row.target_size

    def clear(
        self,
        job_id: str,
        root: str,
        folders: Iterable[str] | None,
        staged: Iterable[tuple[str, str]],
    ) -> bool:
        ended = [error is None for _, error in in_pool(lambda upload: self._end(*upload), staged)]
        return all(ended)


async def _get(fs: Any, place: Mapping[str, str], offset: int, size: int, version: str) -> bytes:
    answer = await fs._call_s3("get_object", **place, Range=f"bytes={offset}-{offset + size - 1}")
    try:
        if answer["ETag"] != version:
            raise Ags1Error(CHANGED)
        if answer["ContentLength"] > size:
            raise OSError(errno.EIO, "the storage sends more than it was asked for")
        data: bytes = await answer["Body"].read()
        return data
    finally:
        answer["Body"].close()


def _attempt_name(job_id: str, item: Item) -> str:
    return f"{job_id}-{item.number:x}"


def _parsed(row: Row) -> dict[str, Any]:
    try:
        attempt = json.loads(row.attempt or "")
        if isinstance(attempt, dict) and attempt.keys() >= {"name", "upload", "parts"}:
            return attempt
    except (ValueError, RecursionError):
        pass
    raise NothingStagedError(errno.EINVAL, "the ledger names no upload", row.target)


def _doubt(target: str, error: OSError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"S3 has not told what became of an upload: {error}", file=target)


def _code(error: OSError) -> str:
    """Return S3's own word for what went wrong."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
