"""Anthropic's Messages API: its bodies become chats, and its answers are made of the same events."""
