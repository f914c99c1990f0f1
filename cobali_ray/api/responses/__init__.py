"""OpenAI's Responses API: its bodies read as chats, their answers written as items. Knows no engine."""
