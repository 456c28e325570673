"""The AGS1 format: streams, whole files and messages, and the keys of a file.

The modules of the format, from the users' functions down to libcrypto::

    oneshot: encrypt, decrypt    stream: open                       bulk: encrypt_file, decrypt_file
       |                            |                                  |
       |                         reader       writer                   |
       |                            |            |                     |
       |                         blocks          |                     |
       |                            |            |                     |
       |                         source        sink --> atomic <-------+
       v                            v            v                     v
    _messages, _columns          _reading     _writing               _pump (file to file)
       |                            |            |                     |
       +----------------------------+--- _gcm ---+---------------------+

All of them use ``layout`` (the format's arithmetic), ``geometry`` (which sizes to trust) and
``key_metadata``. Independent of wrapped keys, tables, and where files lie.
"""
