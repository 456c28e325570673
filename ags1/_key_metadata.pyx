# cython: freethreading_compatible=True
"""The fields of ``KeyMetadata``, and whether its key is used. A batch of small messages makes one
object for each message. So these are made in compiled code, and the garbage collector, which they
cannot occupy with cycles, does not know them."""

cimport cython

from ags1._gcm cimport this_process
from atomics cimport atomic_load, atomic_set

cdef extern from *:
    """
    static PyObject *ags1_new_object(PyObject *kind, PyObject *none) {
        return ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, none, NULL);
    }
    """
    object ags1_new_object(object kind, object none)


@cython.no_gc
cdef class KeyMetadataFields:
    """``_fill`` sets them once, to values that its caller has checked: a key, a prefix or None, and
    a length or None."""

    def _fill(self, bytes encryption_key not None, bytes aad_prefix, file_length):
        if self._encryption_key is not None:
            raise TypeError("key metadata is immutable")
        fill(self, encryption_key, aad_prefix, file_length)

    @property
    def used(self):
        """Whether the key may have encrypted a file already, as far as this object can know: it has
        a file length, a writer took it, or it was made before a fork (the parent has it too)."""
        return bool(atomic_load(&self._taken)) or self._process != this_process()

    def claim(self):
        """Mark the key as used; a writer does so before its first block. Return whether this call
        was the first, even if several threads try."""
        return not atomic_set(&self._taken)


cdef inline void fill(
    KeyMetadataFields self, bytes encryption_key, bytes aad_prefix, object file_length
):
    self._encryption_key = encryption_key
    self._aad_prefix = aad_prefix
    self._file_length = file_length
    # With a length, the key counts as used.
    self._taken = file_length is not None
    self._process = this_process()


cdef KeyMetadataFields new_key_metadata(
    object kind, bytes encryption_key, bytes aad_prefix, object file_length
):
    """Return an object of the class ``kind``, with values that are known to be right."""
    cdef KeyMetadataFields fields = <KeyMetadataFields>ags1_new_object(kind, ())
    fill(fields, encryption_key, aad_prefix, file_length)
    return fields
