"""The engines behind the API: who they are, and how a request reaches one."""
