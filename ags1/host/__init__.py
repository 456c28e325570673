"""What the operating system offers, and its corners. Independent of AGS1."""
