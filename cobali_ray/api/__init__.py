"""HTTP and SSE: OpenAI's API, and others over the same requests; knows no Ray and no llama.cpp.

Every other API is a folder that reads its bodies into a `ChatBody` or a `CompletionBody` and has its own way
to write the answers (`Dialect` in `routes/generation.py`): a chat of Anthropic's, Ollama's or the Responses
API is the same request with other names, and errors name the fields of the API that was called.
"""
