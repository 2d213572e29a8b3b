"""How long oterm takes to open a long chat, in its own venv: NUM_MESSAGES ANSWER; seconds, CPU seconds and
widgets out, as JSON.

Its store is seeded as its own code writes it; of two chats the second is opened from its list.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

folder = tempfile.mkdtemp()
os.environ["OTERM_DATA_DIR"] = folder
Path(folder, "config.json").write_text('{"splash-screen": false}')

from oterm.app.oterm import OTerm  # noqa: E402
from oterm.app.widgets.chat import ChatContainer  # noqa: E402
from oterm.store.store import Store  # noqa: E402
from oterm.types import ChatModel, MessageModel  # noqa: E402
from textual.widgets import TabbedContent  # noqa: E402

num_messages, answer = int(sys.argv[1]), sys.argv[2]


async def main():
    store = await Store.get_store()
    for name in ("short", "long"):
        id = await store.save_chat(ChatModel(name=name, model="m", provider="ollama"))
        for number in range(num_messages if name == "long" else 2):
            role, text = ("assistant", answer) if number % 2 else ("user", f"question {number}")
            await store.save_message(MessageModel(id=None, chat_id=id, role=role, text=text, images=[]))
    app = OTerm()
    async with app.run_test(size=(120, 36)) as pilot:
        while len(app.query(ChatContainer)) < 2 or not app.query(ChatContainer).first().loaded:
            await pilot.pause(0.1)
        container = list(app.query(ChatContainer))[1]
        began, cpu = time.monotonic(), time.process_time()
        app.query_one(TabbedContent).active = f"chat-{container.chat_model.id}"
        while not container.loaded:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await pilot.pause(0)
        spent = time.monotonic() - began, time.process_time() - cpu, len(container.query("*"))
        print(json.dumps(spent))
        sys.stdout.flush()
        os._exit(0)


asyncio.run(main())
