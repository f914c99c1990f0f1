"""The engines behind the API: which there are, and how a request reaches one."""
