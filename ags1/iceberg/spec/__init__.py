"""The specification's own structures and rules, as functions of dictionaries and types."""
