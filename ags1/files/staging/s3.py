"""Jobs' files in S3, through s3fs.

A target is a multipart upload. The driver begins it before the tasks run, and completes it after
the ledger has the key. Nothing is visible until then. Tasks upload parts of whole blocks. Each
attempt has part numbers of its own, and the driver completes the upload with a list of part numbers
and ETags. So an attempt that was given up does no harm if it still uploads.

The ledger's folder has the IDs of the uploads, so that the next job can abort those of a killed
job. If a job is killed while it begins an upload, only the bucket's life cycle rule aborts that.
Reads ask for one version, by its ETag.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from ...engine import layout
from ...errors import Ags1Error
from ...host.atomic import already_exists
from ...host.process import OncePerProcess
from ..filesystems import os_errors
from ..ledger import Row
from ..storage.protocol import Status
from .pieces import BLOCK_SIZE, Item, Piece
from .protocol import (
    CHANGED,
    Attempt,
    Check,
    NothingStagedError,
    Output,
    Prepared,
    Results,
    Source,
    Staging,
    UnknownOutcomeError,
    Uploads,
)
from .remote import NAMELESS, RemoteSource, RemoteStorage, in_pool

# S3's limits: a part but the last has 5 MiB at least, and an upload 10,000 parts at most.
_PART_BLOCKS = 8
_MAX_PARTS = 10_000
# Each piece has part numbers for so many attempts. After that, the numbers of the first attempt are
# used again, which was given up.
_ATTEMPTS = 3
# Parts uploaded at a time, by file and by process.
_UPLOADS_PER_FILE, _UPLOADS = 2, 16
_TRIES = 3
# Bytes that are read by one request, however few of them are asked for first.
_SMALL = 1 << 20
_ATTEMPT_KEY = "ags1-attempt"
_CHECKSUMS = frozenset(f"Checksum{name}" for name in "CRC32 CRC32C CRC64NVME SHA1 SHA256".split())
# S3's codes for an upload that can never be completed.
_NEVER = frozenset({"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall"})
# S3's codes for a request that it will not do, now or later. The cause is not the caller's
# rights, a conflict or the load.
_REFUSALS = frozenset({"EntityTooLarge", "InvalidArgument", "InvalidRequest", "MalformedXML"})
_uploaders = OncePerProcess(lambda: ThreadPoolExecutor(_UPLOADS, "ags1-upload"))


class _S3Source(RemoteSource):
    """An object that is read by ranges of one ETag, or whole if it is small."""

    def __init__(self, storage: S3Storage, path: str, size: int, version: str) -> None:
        self._storage, self._path = storage, path
        self._s3 = storage
        self._whole: bytes | None = None
        self.size, self.version = size, version

    def read(self, offset: int, size: int) -> bytes:
        if self.size > _SMALL:
            return self._s3.get(self._path, offset, size, self.version) if size else b""
        if self._whole is None:
            whole = self._s3.get(self._path, 0, self.size, self.version) if self.size else b""
            self._whole = whole
        return self._whole[offset : offset + size]

    def check_unchanged(self) -> None:
        # Each read has asked for this version, unless there was nothing to read.
        if not self.size:
            super().check_unchanged()


class _PartsOutput:
    """The parts that one attempt uploads."""

    fd = -1

    def __init__(self, storage: S3Storage, piece: Piece, attempt: Attempt) -> None:
        assert piece.shared is not None
        self.staged = ""
        self._upload = {**storage.object_of(piece.target), "UploadId": piece.shared}
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
        # To complete the upload, S3 wants the checksums that the SDK has sent.
        sums = {name: text for name, text in answer.items() if name in _CHECKSUMS and text}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    def finish(self) -> None:
        if not self._under_way and not self._parts:
            self.write(b"")  # an upload needs a part
        self._parts += [future.result() for future in self._under_way]
        self._under_way.clear()
        self.staged = json.dumps(self._parts)

    def give_up(self) -> None:
        for future in self._under_way:
            future.cancel()


class S3Storage(RemoteStorage):
    """S3; see ``JobStorage``. Attempts share an upload's id; what an attempt has staged is JSON
    with its parts. ``Row.attempt`` is JSON with both and a name, which the object gets as metadata:
    it tells which job made the object."""

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of S3's client. Raises OSError."""
        with os_errors(arguments.get("Key", arguments.get("Bucket", ""))):
            answer: dict[str, Any] = self.fs.call_s3(method, **arguments)
        return answer

    def object_of(self, path: str) -> dict[str, str]:
        """Return the arguments that name an object."""
        bucket, key = self._parted(path)
        return {"Bucket": bucket, "Key": key}

    def _parted(self, path: str) -> tuple[str, str]:
        # s3fs would cut the key at "?versionId=", and so name another object.
        name = self.name(path)
        bucket: str = self.fs.split_path(name)[0]
        return bucket, name[len(bucket) + 1 :]

    def status(self, path: str) -> Status | None:
        try:
            head = self.call("head_object", **self.object_of(path))
        except FileNotFoundError:
            return None
        return Status(head["ContentLength"], head["ETag"])

    def get(self, path: str, offset: int, size: int, version: str) -> bytes:
        """Return bytes of an object. Raises Ags1Error if it has another version, OSError."""
        from fsspec.asyn import sync  # optional

        arguments = (self.fs, self.object_of(path), offset, size, version)
        tries = 1
        while True:
            try:
                with os_errors(path):
                    return bytes(sync(self.fs.loop, _get, *arguments))
            except OSError as error:
                # s3fs has retried after errors of S3, but not after a body that broke off.
                if _code(error) or tries == _TRIES:
                    raise
            tries += 1

    def listing(self, folder: str, *, deep: bool) -> Iterable[Mapping[str, Any]]:
        """List page by page, and keep few of the facts on each page."""
        bucket, key = self._parted(folder)
        where: dict[str, Any] = {"Bucket": bucket, "Prefix": key and key.rstrip("/") + "/"}
        if not deep:
            where["Delimiter"] = "/"
        while True:
            page = self.call("list_objects_v2", **where)
            for entry in page.get("CommonPrefixes", ()):
                name = f"{bucket}/{entry['Prefix'].removesuffix('/')}"
                yield {"name": name, "type": NAMELESS if name.endswith("/") else "directory"}
            for entry in page.get("Contents", ()):
                name = f"{bucket}/{entry['Key']}"
                yield {"name": name, "type": "file", "size": entry["Size"], "ETag": entry["ETag"]}
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = page["NextContinuationToken"]

    def make_root(self, root: str) -> None:
        bucket, key = self._parted(root)
        self.call("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)

    def mark_paths(self, job_id: str, root: str) -> list[str]:
        return []

    def unit(self, plaintext_size: int) -> int:
        blocks = layout.block_count(plaintext_size, BLOCK_SIZE)
        return max(_PART_BLOCKS, -(-blocks // (_MAX_PARTS // _ATTEMPTS)))

    def stage(self, staging: Staging, items: Sequence[Item], cut: Collection[int]) -> Prepared:
        staged: dict[int, str | OSError | None] = {}

        def begin(item: Item) -> None:
            where = self.object_of(item.target)
            name = {_ATTEMPT_KEY: _attempt_name(staging.job_id, item)}
            upload = self.call("create_multipart_upload", **where, Metadata=name)
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
        self, staging: Staging, item: Item, shared: str | None, results: Results, check: Check
    ) -> str:
        parts = [part for _, staged in results for part in json.loads(staged)]
        parts.sort(key=lambda part: part["PartNumber"])
        name = _attempt_name(staging.job_id, item)
        return json.dumps({"name": name, "upload": shared, "parts": parts})

    def discard(self, target: str, shared: str | None, results: Results, *, whole: bool) -> bool:
        if whole and shared is not None:
            try:
                self._end(target, shared)
            except OSError:
                return False
        return True

    def _end(self, target: str, upload: str) -> None:
        """End an upload, if it has not ended. Raises OSError if that is not certain."""
        try:
            self.call("abort_multipart_upload", **self.object_of(target), UploadId=upload)
        except OSError as error:
            if _code(error) not in ("NoSuchUpload", "NoSuchBucket"):
                raise

    def publish(self, row: Row, *, again: bool) -> None:
        attempt = _parsed(row)
        complete = partial(
            self.call,
            "complete_multipart_upload",
            **self.object_of(row.target),
            UploadId=attempt["upload"],
            MultipartUpload={"Parts": attempt["parts"]},
        )
        try:
            try:
                complete(**({} if row.replaces else {"IfNoneMatch": "*"}))
            except OSError as error:
                if row.replaces or _code(error) not in ("NotImplemented", "501"):
                    raise
                # The store has no conditional writes, so a check has to do.
                if self.status(row.target) is not None:
                    raise already_exists(row.target) from None
                complete()
        except OSError as error:
            # The answer may have been lost, or a killed job has completed the upload.
            code = _code(error)
            exists = code in ("PreconditionFailed", "412") or isinstance(error, FileExistsError)
            try:
                if not exists and (not again or code in _REFUSALS):
                    # S3 may still be completing it. With ``again``, what may pass is not given up.
                    self._end(row.target, attempt["upload"])
                if self.has_its_name(row):
                    return
            except OSError:
                if again:
                    raise
                raise _doubt(row.target, error) from None
            if exists:
                raise already_exists(row.target) from None
            if code in _NEVER or (again and code in _REFUSALS):
                raise NothingStagedError(error.errno, error.strerror or str(error)) from error
            raise

    def withdraw(self, row: Row) -> None:
        with contextlib.suppress(OSError):
            self._end(row.target, _parsed(row)["upload"])

    def has_its_name(self, row: Row) -> bool:
        name = _parsed(row)["name"]
        try:
            head = self.call("head_object", **self.object_of(row.target))
        except FileNotFoundError:
            return False
        made_by = head.get("Metadata", {}).get(_ATTEMPT_KEY)
        return (made_by, head["ContentLength"]) == (name, row.target_size)

    def clear(self, job_id: str, root: str, folders: Iterable[str] | None, staged: Uploads) -> bool:
        # A ledger must not make us end the uploads of others.
        ours = [upload for upload in staged if self.holds(root, upload[0])]
        ended = [error is None for _, error in in_pool(lambda upload: self._end(*upload), ours)]
        return all(ended)


async def _get(fs: Any, where: Mapping[str, str], offset: int, size: int, version: str) -> bytes:
    answer = await fs._call_s3("get_object", **where, Range=f"bytes={offset}-{offset + size - 1}")
    try:
        if answer["ETag"] != version:
            raise Ags1Error(CHANGED)
        if answer["ContentLength"] > size:
            raise OSError(errno.EIO, "the storage sent more bytes than it was asked for")
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
    raise NothingStagedError(errno.EINVAL, "the ledger names no upload of a job", row.target)


def _doubt(target: str, error: OSError) -> UnknownOutcomeError:
    message = f"S3 did not say whether it completed the object: {error}; the next job asks again"
    return UnknownOutcomeError(message, file=target)


def _code(error: OSError) -> str:
    """Return S3's code for an error."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
