"""How a change becomes the table's next version, in each kind of catalog."""
