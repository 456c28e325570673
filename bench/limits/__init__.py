"""What no AGS1 in this process could beat: bare EVP calls on the same libcrypto, and copying."""

from .copies import copy_memory, run_command
from .evp import EvpLoop, LimitError
from .pieces import LIMIT, Limit, find_limit

__all__ = [
    "LIMIT",
    "EvpLoop",
    "Limit",
    "LimitError",
    "copy_memory",
    "find_limit",
    "run_command",
]
