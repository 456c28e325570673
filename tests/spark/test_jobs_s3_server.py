"""Jobs on a real S3 server (``s3_server``), which keeps its own rules about uploads and conditions.

What moto is asked for in ``test_jobs_remote`` is asked for here again where a server may differ.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .test_jobs_remote import (
    BUCKET,
    ClientError,
    Places,
    TestUploads,
    boto3,
    endpoint,
    places,
    test_a_driver_that_is_killed,
    test_a_large_file_is_many_tasks_and_parts,
    test_a_tree_comes_back,
    test_uploads_that_a_killed_job_has_begun,
)
from .test_jobs_remote import tasks as tasks

__all__ = [
    "TestUploads",
    "endpoint",
    "places",
    "test_a_driver_that_is_killed",
    "test_a_large_file_is_many_tasks_and_parts",
    "test_a_tree_comes_back",
    "test_uploads_that_a_killed_job_has_begun",
]

pytestmark = pytest.mark.cluster
MANY = 10_000


@pytest.fixture(scope="module")
def s3_environment(real_s3: dict[str, str]) -> dict[str, str]:
    """As the module's that this one takes its tests from, but of the real server."""
    return real_s3


def test_many_small_objects(places: Places) -> None:
    """More than ten listings, and requests that executors share."""
    plain = {f"d{n % 7}/{n:05}": b"%d" % n for n in range(MANY)}

    def put(name: str) -> None:
        places.s3.put_object(Bucket=BUCKET, Key=f"in/{name}", Body=plain[name])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, plain))
    where = places.url("s3", "in"), places.url("s3", "sealed")
    done = places.encrypt(*where)
    assert (done.done, done.failed) == (MANY, 0), done.failures[:3]
    again = places.encrypt(*where)
    assert (again.done, again.unchanged) == (0, MANY)
    back = places.decrypt(where[1], places.url("local", "back"))
    assert (back.done, back.failed) == (MANY, 0), back.failures[:3]
    assert places.read("local", "back") == plain
    assert places.uploads() == []


def test_a_wrong_secret_is_refused(real_s3: dict[str, str]) -> None:
    """moto takes any: so this is the server that the other tests believe."""
    where = {"endpoint_url": real_s3["AWS_ENDPOINT_URL"], "region_name": "us-east-1"}
    user = {"aws_access_key_id": real_s3["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": "wrong"}
    client: Any = boto3.client("s3", **where, **user)
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client.list_buckets()
