"""The terminal app. `app.py` is a shell, `session.py` holds a chat; what needs no screen needs no Textual."""
