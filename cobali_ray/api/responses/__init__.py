"""OpenAI's Responses API: bodies become chats, answers become items. Knows no engine."""
