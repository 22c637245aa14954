"""The Lua scripts, as data of the package; `tasks_emq/core/scripts.py` reads them."""
