"""The parts that are safe only in careful hands. Most programs need ``encrypt`` and ``open`` alone.

``BlockCipher`` seals the given blocks under the given numbers. It cannot know what else was sealed
under the key. Whoever uses it has to see to it that

- a key is used for one file, and each block number in it once: two calls with the default
  ``first_block=0`` make two blocks 0, and a reader takes either for the other;
- the length of the file is kept where nobody can change it, since a file that is cut at the end of
  a block authenticates;
- the key is wrapped before it is stored.
"""

from ._gcm import BlockCipher

__all__ = ["BlockCipher"]
