"""What no AGS1 in this process could beat: bare EVP calls on the same libcrypto, and copying."""

from .copies import copy_memory, run_command
from .evp import EvpLoop, LimitError

__all__ = ["EvpLoop", "LimitError", "copy_memory", "run_command"]
