// The openai package for Node against BASE; prints one JSON object of what it got.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.BASE}/v1`, apiKey: "x", maxRetries: 0 });
const model = "smollm2";
const messages = [{ role: "user", content: "Name the days of the week." }];
const result = {};

result.models = (await client.models.list()).data.map((card) => card.id);

const chat = await client.chat.completions.create({ model, messages, temperature: 0, max_completion_tokens: 12 });
result.text = chat.choices[0].message.content;
result.usage = chat.usage.completion_tokens;

let streamed = "";
let usage = null;
const stream = await client.chat.completions.create({
  model, messages, temperature: 0, max_completion_tokens: 12, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
result.streamed = streamed;
result.streamedUsage = usage.completion_tokens;

// The helper takes an answer that met its limit for a failure.
const helper = client.chat.completions.stream({ model, messages, temperature: 0, stop: ["."] });
result.helper = (await helper.finalChatCompletion()).choices[0].message.content;

const schema = { type: "object", properties: { age: { type: "integer" } }, required: ["age"], additionalProperties: false };
const parsed = await client.chat.completions.parse({
  model, messages: [{ role: "user", content: "Ada is 36 years old." }], temperature: 0, max_tokens: 60,
  response_format: { type: "json_schema", json_schema: { name: "person", schema, strict: true } },
});
result.parsed = typeof parsed.choices[0].message.parsed.age;

const embedding = await client.embeddings.create({ model: "minilm", input: ["a", "b"] });
result.dimensions = embedding.data.map((entry) => entry.embedding.length);

const response = await client.responses.create({ model, input: "Name the days of the week.", temperature: 0, max_output_tokens: 16 });
result.response = response.output_text;
let events = [];
for await (const event of await client.responses.create({ model, input: "Hi", max_output_tokens: 16, stream: true })) {
  events.push(event.type);
}
result.events = [events[0], events.at(-1)];

try {
  await client.chat.completions.create({ model: "nope", messages });
} catch (error) {
  result.error = [error.constructor.name, error.status, error.code];
}

const aborted = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
for await (const _ of aborted) break; // leaving the loop hangs up

console.log(JSON.stringify(result));
