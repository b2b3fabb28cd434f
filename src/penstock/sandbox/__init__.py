"""Simulated AWS services on this machine: Kinesis, S3, IoT SiteWise, IoT Analytics; and faults."""
