"""What every KMS client has to do, asked of each one against its real server or emulator.

A test module subclasses ``KmsContract`` and provides the fixtures below; one that a service cannot
offer raises ``pytest.skip`` with the reason.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ags1.errors import (
    KmsAccessDeniedError,
    KmsError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from ags1.keys import KeyEncryptionKey
from ags1.kms import KmsClient

KEY = bytes(range(100, 116))


def spellings(secret: bytes) -> list[bytes]:
    """Return how a secret could stand in a text: raw, hex, base64, as Python prints it."""
    import base64

    raw = [secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")]
    return [*raw, repr(secret)[2:-1].encode()]


def check_rights(
    kms: KmsClient, key_id: str, wrapped: bytes, may: str, **more: Callable[[], object]
) -> None:
    """Check that the service allows the calls that ``may`` names and no others: to make a KEK, to
    wrap, to unwrap, and ``more``."""
    for name, call in {
        "make": lambda: KeyEncryptionKey.generate(kms, key_id, key_size=16),
        "wrap": lambda: kms.wrap_key(KEY, key_id),
        "unwrap": lambda: kms.unwrap_key(wrapped, key_id),
        **more,
    }.items():
        if name in may.split():
            call()
        else:
            with pytest.raises(KmsAccessDeniedError):
                call()


def check_faults(
    client: KmsClient,
    server: Any,
    key_id: str,
    faults: Iterable[tuple[Any, type[KmsError], int]],
    token: str,
    subtests: pytest.Subtests,
) -> Iterator[tuple[Any, KmsError]]:
    """Check that each fault of the server, after so many attempts, becomes an error of exactly this
    class, which names the key and the server and shows no secret. Yields each fault with it."""
    wrapped = client.wrap_key(KEY, key_id)
    for fault, kind, attempts in faults:
        server.faults.clear()
        with subtests.test(repr(fault)):
            for call in (
                lambda: client.wrap_key(KEY, key_id),
                lambda: client.unwrap_key(wrapped, key_id),
            ):
                server.faults.extend([fault] * attempts)
                with pytest.raises(kind) as caught:
                    call()
                assert type(caught.value) is kind
                assert not server.faults
                assert key_id in str(caught.value)
                assert server.url.removeprefix("https://") in str(caught.value)
                said = everything_said(caught.value)
                assert not any(form in said for form in [*spellings(KEY), token.encode()])
                assert caught.value.__context__ is None
                yield fault, caught.value
            assert client.unwrap_key(wrapped, key_id) == KEY


def check_passing_faults(
    client: KmsClient, server: Any, key_id: str, faults: Iterable[Any], subtests: pytest.Subtests
) -> None:
    """Check that faults that pass are waited out, each for up to three times."""
    client.wrap_key(KEY, key_id)
    for fault in faults:
        server.requests.clear()
        server.faults.clear()
        with subtests.test(repr(fault)):
            server.faults.extend([fault] * 3)
            wrapped = client.wrap_key(KEY, key_id)
            assert len(server.requests) == 4
            server.faults.append(fault)
            assert client.unwrap_key(wrapped, key_id) == KEY
            assert len(server.requests) == 6


def everything_said(error: BaseException) -> bytes:
    """Return an exception as any logger could print it, causes and contexts included."""
    said = "".join(traceback.format_exception(error))
    chain: BaseException | None = error
    while chain is not None:
        said += repr(chain) + repr(chain.args) + repr(vars(chain))
        chain = chain.__cause__ or chain.__context__
    return said.encode("utf-8", "surrogateescape")


class KmsContract:
    """Fixtures to provide: ``kms`` (connected), ``key_id``, ``other_key_id`` (both exist),
    ``missing_key_id``, ``unreachable`` (a client of the same kind for a port nobody listens on, its
    time-outs short)."""

    @pytest.mark.parametrize("size", [16, 24, 32])
    def test_a_wrapped_key_unwraps(self, kms: KmsClient, key_id: str, size: int) -> None:
        key = os.urandom(size)
        wrapped = kms.wrap_key(key, key_id)
        assert key not in wrapped
        assert kms.unwrap_key(wrapped, key_id) == key

    def test_wrapping_twice_gives_two_wrapped_keys(self, kms: KmsClient, key_id: str) -> None:
        assert kms.wrap_key(KEY, key_id) != kms.wrap_key(KEY, key_id)

    def test_generated_keys_unwrap(self, kms: KmsClient, key_id: str) -> None:
        if not kms.supports_key_generation:
            with pytest.raises(NotImplementedError):
                kms.generate_key(key_id, 16)
            return
        made = [kms.generate_key(key_id, size) for size in (16, 32, 32)]
        assert [len(one.key) for one in made] == [16, 32, 32]
        assert made[1].key != made[2].key
        for one in made:
            assert kms.unwrap_key(one.wrapped_key, key_id) == one.key
            assert not any(form in repr(one).encode() for form in spellings(one.key))

    def test_another_master_key_does_not_unwrap(
        self, kms: KmsClient, key_id: str, other_key_id: str
    ) -> None:
        wrapped = kms.wrap_key(KEY, key_id)
        with pytest.raises(KmsUnwrapError) as caught:
            kms.unwrap_key(wrapped, other_key_id)
        assert not any(form in everything_said(caught.value) for form in spellings(KEY))

    @pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 1.0])
    def test_a_changed_wrapped_key_does_not_unwrap(
        self, kms: KmsClient, key_id: str, where: float
    ) -> None:
        wrapped = bytearray(kms.wrap_key(KEY, key_id))
        wrapped[int(where * (len(wrapped) - 1))] ^= 1
        # A changed byte may also turn the name of the master key into an unknown one.
        with pytest.raises((KmsUnwrapError, KmsKeyNotFoundError)):
            kms.unwrap_key(bytes(wrapped), key_id)

    @pytest.mark.parametrize(
        "wrapped", [b"", b"x", b"not a wrapped key at all, but of some length"]
    )
    def test_what_is_no_wrapped_key_does_not_unwrap(
        self, kms: KmsClient, key_id: str, wrapped: bytes
    ) -> None:
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(wrapped, key_id)

    def test_a_missing_master_key_is_named(self, kms: KmsClient, missing_key_id: str) -> None:
        with pytest.raises(KmsKeyNotFoundError) as caught:
            kms.wrap_key(KEY, missing_key_id)
        assert missing_key_id in str(caught.value)
        assert not any(form in everything_said(caught.value) for form in spellings(KEY))

    def test_a_service_that_is_down_is_unavailable(
        self, unreachable: KmsClient, key_id: str
    ) -> None:
        with pytest.raises(KmsUnavailableError) as caught:
            unreachable.wrap_key(KEY, key_id)
        assert not any(form in everything_said(caught.value) for form in spellings(KEY))

    def test_many_threads_share_a_client(self, kms: KmsClient, key_id: str) -> None:
        results: list[bytes] = []

        def work() -> None:
            key = os.urandom(32)
            results.append(
                b"ok" if kms.unwrap_key(kms.wrap_key(key, key_id), key_id) == key else b""
            )

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [b"ok"] * 8

    def test_a_closed_client_connects_again(self, kms: KmsClient, key_id: str) -> None:
        wrapped = kms.wrap_key(KEY, key_id)
        kms.close()
        kms.close()
        assert kms.unwrap_key(wrapped, key_id) == KEY

    def test_a_forked_child_has_a_connection_of_its_own(
        self, kms: KmsClient, key_id: str, in_a_fork: Callable[[Callable[[], object]], None]
    ) -> None:
        wrapped = kms.wrap_key(KEY, key_id)

        def child() -> None:
            assert kms.unwrap_key(wrapped, key_id) == KEY

        in_a_fork(child)
        assert kms.unwrap_key(wrapped, key_id) == KEY

    def test_a_pickle_holds_no_secret(self, kms: KmsClient, key_id: str) -> None:
        wrapped = kms.wrap_key(KEY, key_id)
        try:
            data = pickle.dumps(kms)
        except TypeError as error:
            assert "pickle" in str(error)  # noqa: PT017 - both outcomes are right
            return
        assert pickle.loads(data).unwrap_key(wrapped, key_id) == KEY

    def test_logs_and_repr_hold_no_key(
        self, kms: KmsClient, key_id: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        key = os.urandom(32)
        kms.close()
        with caplog.at_level(logging.DEBUG):
            wrapped = kms.wrap_key(key, key_id)
            assert kms.unwrap_key(wrapped, key_id) == key
        said = (
            caplog.text + repr(kms) + str(kms) + repr(vars(kms) if hasattr(kms, "__dict__") else "")
        ).encode()
        assert not any(form in said for form in spellings(key))

    def test_errors_are_ours(self, kms: KmsClient, key_id: str) -> None:
        for call in (
            lambda: kms.unwrap_key(b"", key_id),
            lambda: kms.unwrap_key(b"\0" * 70_000, key_id),
            lambda: kms.wrap_key(KEY, ""),
        ):
            with pytest.raises(KmsError):
                call()
