"""Which files a job does, and how their work is cut into tasks."""
