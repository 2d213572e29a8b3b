"""An upstream that costs nothing: fixed OpenAI answers, plain or in 33 chunks, over kept connections.
`python bench/scripted.py` prints its address and ends with stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys

CHUNKS = 33
USAGE = {"prompt_tokens": 16, "completion_tokens": CHUNKS - 2, "total_tokens": 14 + CHUNKS}


def _chunk(**choice: object) -> bytes:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "up",
        "choices": [{"index": 0, "finish_reason": None, **choice}],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


LAST = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "up", "choices": [], "usage": USAGE}
STREAM = [
    _chunk(delta={"role": "assistant", "content": ""}),
    *(_chunk(delta={"content": f" word{number}"}) for number in range(CHUNKS - 2)),
    _chunk(delta={}, finish_reason="stop"),
    b"data: " + json.dumps(LAST).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]
MESSAGE = {"role": "assistant", "content": "A short answer."}
PLAIN = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "up",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "A short answer."},
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Upstream(asyncio.Protocol):
    """Answers a request as soon as its body is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            length = 0
            if (at := head.find(b"content-length:")) >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self.answer(b'"stream":true' in body.replace(b" ", b""))

    def answer(self, streamed: bool) -> None:
        if not streamed:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self.transport.write(head % len(PLAIN) + PLAIN)
            return
        # One write for each, as a server that draws tokens does.
        self.transport.write(HEAD)
        for part in STREAM:
            self.transport.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.transport.write(b"0\r\n\r\n")


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
