"""The KMS of a run: its options, settings and clients, and the keychains over it."""
