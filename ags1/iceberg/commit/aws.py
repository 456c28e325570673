"""``AwsCommits``: what commits to AWS Glue and to DynamoDB have in common.

**What is trusted.** The metadata.json is in storage where others may write; the entry in Glue or
DynamoDB is not. So an entry also has the ID of the table's master key and the hash of its metadata,
under the names that Java's ``HiveTableOperations`` uses. ``read`` requires that the metadata
agrees with them. Other writers of Glue and DynamoDB do not know the hash: their commits replace the
location and leave the hash. So a parameter of ours says which location the hash is of. After such a
commit, the entry confirms only the master key's ID, until our next commit. If the metadata then
names a folder outside the table's own, such as ``write.data.path``, this lasts until a commit of
ours sets that folder, or the catalog's properties name it. Otherwise somebody who changed
metadata.json in between could have files in any folder deleted. Java's ``GlueTableOperations`` and
``DynamoDbTableOperations`` keep nothing for encryption.

**Lost answers.** botocore repeats a request that got no answer. If the first one was carried out,
the second one is refused, although the commit was made. So a refusal counts only if the request was
sent once (as in Java, ``RetryDetector``).
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.typedef import Identifier

from .file_commits import FileCommits

# Raised before anything is sent.
_NOT_SENT = (ParamValidationError, NoCredentialsError, PartialCredentialsError)


class AwsCommits(FileCommits):
    """Commits to a catalog in AWS, whose entries confirm the metadata."""

    keeps_hash = True

    def _may_still_commit(self, error: BaseException, is_new: bool) -> bool:
        if isinstance(error, ClientError):
            answer: dict[str, Any] = dict(error.response.get("ResponseMetadata", {}))
            # An earlier request may still be under way if this one was a repetition.
            return answer.get("HTTPStatusCode", 500) >= 500 or was_repeated(error)
        return not isinstance(error, _NOT_SENT)


def error_code(error: ClientError) -> str:
    """Return the name of the service's exception."""
    return str(error.response.get("Error", {}).get("Code", ""))


def was_repeated(error: ClientError) -> bool:
    """Return whether the refused request was sent more than once."""
    return bool(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def updated_by_another(identifier: Identifier) -> CommitFailedException:
    """Return the exception for a commit whose base another commit has replaced."""
    return CommitFailedException(
        f"Table has been updated by another process: {'.'.join(identifier)}"
    )
