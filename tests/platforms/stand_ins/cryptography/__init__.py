"""What the tests of the format need of ``cryptography``, where it has no package."""
