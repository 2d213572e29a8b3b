"""What was asked and answered: chats as trees of messages, in `edgecloud.db`.

A message knows the hash of its whole path, so a request that carries its history again (an agent, a web page)
finds the chat it continues by its longest known prefix, and only what is new is written.
"""

from .removing import Removal
from .store import History
from .tables import MIGRATIONS

__all__ = ["MIGRATIONS", "History", "Removal"]
