"""The dispatcher: which engine gets which request, and what becomes of both. Pure, one per ingress."""
