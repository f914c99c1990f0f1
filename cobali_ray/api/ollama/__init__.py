"""Ollama's API: bodies become chats and completions, answers lines of JSON."""
