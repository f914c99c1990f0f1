"""Ollama's API: its bodies become chats and completions, its answers are lines of JSON."""
