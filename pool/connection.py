"""The HTTP side of one upstream: a kept session, its own key and no one else's, and every failure in one
sentence.
"""

from __future__ import annotations

import email.utils
import ipaddress
import json
import math
import socket
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from edgecloud.errors import EdgeCloudError, NoPermittedRoute, UpstreamError
from edgecloud.settings import PoolEntry
from edgecloud.wire.upstream_errors import decode_error, quote

from .patience import Patience

# Below the 120 s for which our servers keep an idle connection, so that we are the side that closes it.
KEEP_ALIVE_S = 60.0
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 3600.0
_SOMEBODY = "The upstream"
_LOOPBACK_ADDRESSES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


class Connection:
    """Requests to the endpoint of one pool entry. Paths are relative to its base (`/v1`); `/…` ones to the
    server's root.

    Raises `ConfigError` for a URL that can't be one.
    """

    def __init__(self, entry: PoolEntry, *, offline: bool) -> None:
        self.name = entry.name
        self._base = _base_url(entry)
        self._root = self._base.parent if self._base.name == "v1" else self._base
        self._offline = offline
        self._local = entry.local
        self._connect_s = entry.connect_timeout_s
        self._key = entry.api_key.get_secret_value() if entry.api_key is not None else None
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    @property
    def host(self) -> str:
        """Host and port, for people."""
        return self._base.authority

    @property
    def is_loopback(self) -> bool:
        return _is_loopback(self._base.host or "")

    def permit(self, *, offline: bool = False) -> None:
        """Raises `NoPermittedRoute` if nothing may leave this machine and the endpoint is elsewhere, or on
        loopback and not said to compute here, and `UpstreamError` if its key is still to be found. Looks up
        no name.
        """
        if offline or self._offline:
            if not self.is_loopback:
                raise NoPermittedRoute(
                    f"{self.name} is at {self.host}, and offline mode allows this machine only."
                )
            if not self._local:
                raise NoPermittedRoute(
                    f"{self.name} at {self.host} may be a tunnel, and offline mode allows this machine only: "
                    "set `local = true` in its entry if it computes here (`edgecloud pool add --local`)."
                )
        if self._key is not None and self._key.startswith("env:"):
            variable = self._key.removeprefix("env:")
            raise UpstreamError(
                f"The key of {self.name} is in the environment variable {variable}, which is not set.",
                upstream_status=401,
            )

    async def open(
        self,
        method: str,
        path: str,
        patience: Patience,
        *,
        body: Any = None,
        headers: dict[str, str] | None = None,
        silence_s: float,
    ) -> aiohttp.ClientResponse:
        """Send one request and wait for the status line; the caller closes the response.

        Raises the classed error of an answer that is not 200, and `UpstreamError` if there is none.
        """
        try:
            response = await patience.wait(
                self._send(method, path, body, headers or {}), silence_s, "did not answer"
            )
        except (aiohttp.ClientError, OSError) as error:
            raise self.broken(error, answering=False) from error
        if response.status == 200:
            return response
        try:
            raise await self._refusal(response, path, patience)
        finally:
            response.close()

    async def json(
        self, method: str, path: str, patience: Patience, *, body: Any = None, silence_s: float
    ) -> dict[str, Any]:
        """One whole JSON object. Raises as `open`, and `UpstreamError` if the answer is something else."""
        response = await self.open(method, path, patience, body=body, silence_s=silence_s)
        try:
            text = await patience.wait(
                _read(response, MAX_BODY_BYTES), silence_s, "stopped in the middle of its answer"
            )
        except (aiohttp.ClientError, OSError) as error:
            raise self.broken(error) from error
        finally:
            response.close()
        answer = _decode(text)
        if not isinstance(answer, dict):
            raise UpstreamError(f"{self.name} answered with something that is not a JSON object.")
        return answer

    async def said(self, response: aiohttp.ClientResponse, patience: Patience) -> str:
        """The message of an error body, "" if it is none."""
        body = await self._error_body(response, patience)
        return quote(body) if isinstance(body, dict) and body.get("error") else ""

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def told(self, error: EdgeCloudError) -> EdgeCloudError:
        """The error with a sentence that says which upstream it is, without our key should it be repeated
        there.
        """
        if error.message.startswith(_SOMEBODY):
            error.message = self.name + error.message.removeprefix(_SOMEBODY)
        if self._key:
            error.message = error.message.replace(self._key, "[key]")
        error.args = (error.message,)
        return error

    def broken(self, error: BaseException, *, answering: bool = True) -> UpstreamError:
        """What a failure of the transport means, as one sentence."""
        match error:
            case aiohttp.ClientConnectorDNSError():
                why = "has a host name that can't be found: check its url, or the network"
            case aiohttp.ClientConnectorCertificateError():
                why = (
                    "showed a certificate that can't be trusted: check the host name in its url, or name the "
                    "file of its authority in the variable SSL_CERT_FILE"
                )
            case aiohttp.ClientSSLError():
                why = (
                    "could not agree on a TLS connection: check whether its url should be http:// or https://"
                )
            case aiohttp.ConnectionTimeoutError():
                why = f"could not be connected to within {self._connect_s:g} s"
            case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
                why = "refused the connection: check that it runs"
            case aiohttp.ClientConnectorError():
                why = "could not be connected to: check its url, or the network"
            case aiohttp.InvalidURL():
                why = "has a url that can't be used"
            case aiohttp.ServerDisconnectedError():
                why = "closed the connection without an answer"
            case aiohttp.ClientResponseError():
                why = "does not speak HTTP as it should: check its url"
            case _ if not answering:
                why = (
                    "broke the connection without an answer: "
                    "check that it still runs, and whether its url should be https://"
                )
            case _:
                why = "broke off in the middle of its answer"
        return UpstreamError(f"{self.name} ({self.host}) {why}.")

    # ------------------------------------------------------------------------------------------------- inside

    async def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        url = self._url(path)
        if self._key is not None:
            headers = {**headers, "Authorization": f"Bearer {self._key}"}
        data = None
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
            data = _encode(body)
        for again in (False, True):
            trace = SimpleNamespace(reused=False)
            try:
                return await self._open_session().request(
                    method, url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=trace
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # A kept connection that the server closed as we wrote to it never carried the request.
                if again or not trace.reused:
                    raise
        raise AssertionError("unreachable")

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = self._root / path[1:] if path.startswith("/") else self._base / path
            url = self._urls[path] = url.with_query(self._base.query)
        return url

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_reuse)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=KEEP_ALIVE_S, resolver=_Resolver(offline=self._offline)
                ),
                # Nothing of one request may travel with another, and no key but the entry's: no cookies, no
                # netrc, no proxy of the environment.
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "edgecloud"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
                trace_configs=[trace],
            )
        return self._session

    async def _refusal(
        self, response: aiohttp.ClientResponse, path: str, patience: Patience
    ) -> EdgeCloudError:
        status = response.status
        if 300 <= status < 400:
            # Following would carry the key and the prompt to a host that no one configured.
            return UpstreamError(
                f"{self.name} redirects elsewhere: put the final address into its url.",
                upstream_status=status,
            )
        body = await self._error_body(response, patience)
        if not isinstance(body, dict) and status in (404, 405):
            return UpstreamError(
                f"{self.name} has no {path} at {self.host}: check its url, which usually ends in /v1.",
                upstream_status=status,
            )
        return decode_error(status, body, retry_after=_retry_after(response.headers.get("Retry-After")))

    async def _error_body(self, response: aiohttp.ClientResponse, patience: Patience) -> Any:
        """JSON, plain text, or None: a page of HTML says nothing to a person in one sentence."""
        try:
            text = await patience.wait(
                _read(response, MAX_ERROR_BYTES), self._connect_s, "stopped in its error"
            )
        except (aiohttp.ClientError, OSError, UpstreamError):
            return None
        body = _decode(text)
        return (
            text.decode(errors="replace") if body is None and response.content_type == "text/plain" else body
        )


def _base_url(entry: PoolEntry) -> URL:
    url = URL(entry.url)
    return url.with_path("/v1").with_query(url.query) if url.path in ("", "/") else url.with_fragment(None)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _note_reuse(
    _session: aiohttp.ClientSession, trace: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    trace.trace_request_ctx.reused = True


async def _read(response: aiohttp.ClientResponse, at_least: int) -> bytes:
    """The body, or its beginning of `at_least` bytes."""
    parts = bytearray()
    while len(parts) < at_least and (part := await response.content.readany()):
        parts += part
    return bytes(parts)


def _encode(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        # Half a character, which only an escape can carry, or a number of more than 64 bits.
        return json.dumps(body).encode()


def _decode(text: bytes) -> Any:
    """The JSON value, or None where there is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _retry_after(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header, which gives them or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


class _Resolver(AbstractResolver):
    """`localhost` is answered without a lookup, and offline nothing else is."""

    def __init__(self, *, offline: bool) -> None:
        self._offline = offline
        self._lookup = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if _is_loopback(host):
            families = [family] if family in _LOOPBACK_ADDRESSES else [socket.AF_INET, socket.AF_INET6]
            return [
                ResolveResult(
                    hostname=host,
                    host=_LOOPBACK_ADDRESSES[each],
                    port=port,
                    family=each,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for each in families
            ]
        if self._offline:
            raise OSError("no name is looked up offline")
        return await self._lookup.resolve(host, port, family)

    async def close(self) -> None:
        await self._lookup.close()
