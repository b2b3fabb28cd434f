"""Uploads: S3 tasks, each a file that goes to a bucket."""
