// A strict reader of server-sent events, fed the bytes of every stream in random pieces. Prints how often it read what.
import { createParser } from "eventsource-parser";

const base = process.env.BASE;
const messages = [{ role: "user", content: "Say: é 🦙 \n\n data: [DONE] \r\n and more." }];
const streams = {
  "/v1/chat/completions": { messages, stream: true, max_tokens: 40, logprobs: true, top_logprobs: 2, stream_options: { include_usage: true } },
  "/v1/completions": { prompt: "é 🦙", stream: true, max_tokens: 40, echo: true },
  "/v1/responses": { input: "é 🦙", stream: true, max_output_tokens: 40 },
  "/v1/messages": { messages, stream: true, max_tokens: 40 },
};

let seed = 7;
const random = (limit) => (seed = (seed * 48271) % 2147483647) % limit;

function read(bytes, size) {
  const events = [];
  const parser = createParser({
    onEvent: (event) => events.push(event),
    onError: (error) => { throw error; },
  });
  const decoder = new TextDecoder("utf-8", { fatal: true });
  for (let at = 0; at < bytes.length; ) {
    const end = Math.min(bytes.length, at + size());
    parser.feed(decoder.decode(bytes.subarray(at, end), { stream: true }));
    at = end;
  }
  return events.map((event) => {
    if (event.data !== "[DONE]") JSON.parse(event.data);
    return [event.event ?? "", event.data];
  });
}

const result = {};
for (const [path, body] of Object.entries(streams)) {
  const answer = await fetch(base + path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const whole = read(bytes, () => bytes.length);
  let same = true;
  for (let round = 0; round < 20; round++) {
    same &&= JSON.stringify(read(bytes, () => 1 + random(40))) === JSON.stringify(whole);
  }
  result[path] = { status: answer.status, events: whole.length, same, last: whole.at(-1) };
}
console.log(JSON.stringify(result));
