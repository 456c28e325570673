"""What is known of the formats inside encrypted files, for callers with and without PyIceberg."""
