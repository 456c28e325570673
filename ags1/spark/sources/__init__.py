"""What the data source "ags1" is made of: files opened and cut, their formats, and the sinks."""
