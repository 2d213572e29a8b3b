"""langchain-openai, instructor and pydantic-ai against BASE, in a venv of their own; prints what they got."""

import json
import os

import instructor
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import OpenAI
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

base = os.environ["BASE"] + "/v1"
model = "smollm2"
result: dict[str, object] = {}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    age: int


chain = ChatOpenAI(base_url=base, api_key="x", model=model, stream_usage=True, max_tokens=12, temperature=0)
answer = chain.invoke("Name the days of the week.")
result["langchain"] = answer.content
result["langchain_usage"] = answer.usage_metadata["output_tokens"]
result["langchain_streamed"] = "".join(chunk.content for chunk in chain.stream("Name the days of the week."))
embeddings = OpenAIEmbeddings(base_url=base, api_key="x", model="minilm", check_embedding_ctx_length=False)
result["langchain_dimensions"] = len(embeddings.embed_query("hello"))

structured = instructor.from_openai(
    OpenAI(base_url=base, api_key="x"), mode=instructor.Mode.JSON_SCHEMA
).chat.completions.create(
    model=model,
    response_model=Person,
    messages=[{"role": "user", "content": "Ada is 36 years old."}],
    max_tokens=80,
    temperature=0,
)
result["instructor"] = type(structured.age).__name__

agent = Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=base, api_key="x")))
result["pydantic_ai"] = agent.run_sync("Say hello.", model_settings={"max_tokens": 12}).output

print(json.dumps(result))
