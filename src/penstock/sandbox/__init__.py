"""A cloud on this machine: Kinesis, S3, IoT SiteWise and IoT Analytics, with faults on demand."""
