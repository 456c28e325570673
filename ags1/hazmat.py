"""``BlockCipher``, which is safe only if its caller is careful. Most programs need only ``encrypt``
and ``open``. It encrypts blocks under the numbers that the caller gives, and does not know what
else was encrypted under the key. So the caller must

- use a key for one file only, and each block number in it once. Two calls with the default
  ``first_block=0`` make two blocks 0, and a reader accepts either of them;
- keep the length of the file where nobody can change it, because a file that was cut at the end of
  a block authenticates;
- wrap the key before storing it.
"""

from .engine._gcm import BlockCipher

__all__ = ["BlockCipher"]
