"""Anthropic's Messages API: bodies become chats, events become its answers."""
