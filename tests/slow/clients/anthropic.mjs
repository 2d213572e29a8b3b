// @anthropic-ai/sdk against BASE; prints one JSON object of what it got.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.BASE, apiKey: "x", maxRetries: 0 });
const body = { model: "smollm2", max_tokens: 12, temperature: 0, messages: [{ role: "user", content: "Name the days of the week." }] };
const result = {};

const message = await client.messages.create(body);
result.text = message.content[0].text;
result.stop = message.stop_reason;

const stream = client.messages.stream(body);
let streamed = "";
stream.on("text", (text) => (streamed += text));
const final = await stream.finalMessage();
result.streamed = streamed;
result.final = final.content[0].text;
result.usage = final.usage.output_tokens;

const { max_tokens, temperature, ...counted } = body;
result.counted = (await client.messages.countTokens(counted)).input_tokens;

try {
  await client.messages.create({ ...body, model: "nope" });
} catch (error) {
  result.error = [error.constructor.name, error.status];
}
console.log(JSON.stringify(result));
