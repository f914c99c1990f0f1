"""What slots, host memory and the disk hold, and where a prompt is placed."""
