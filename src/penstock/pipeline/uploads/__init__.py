"""S3 tasks: uploads of files to S3 buckets."""
