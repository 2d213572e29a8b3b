from __future__ import annotations

from tests.http.conftest import Serve, serve

__all__ = ["Serve", "serve"]
